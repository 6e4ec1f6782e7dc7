//! Requests that arrive together leave together: claims that ask for the same
//! thing in the same words share one command.
//!
//! To call a script costs the server more than a claim in it, and a command
//! costs this side several times what one more claim in it does. So what the
//! driver asks for in one go waits until the driver has said everything, and
//! leaves in as few commands as its words allow. A request that comes alone
//! leaves alone, as soon; every claim gets its own answer, an error too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;
use redis::{RedisError, Value};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::reply::strange;
use super::route::{Ask, Call, Weight};
use super::scripts::{SCRIPTS, Script};
use super::wire::Wire;
use crate::error::{Error, ErrorKind, Result};

/// How many claims one command takes at most: the server does nothing else
/// meanwhile.
const MOST: usize = 64;

/// What the server says to one claim; the outer error means that no answer came.
type Answer = Result<Result<Value, RedisError>>;

/// The queue in front of one wire.
#[derive(Debug)]
pub(super) struct Batch {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    wire: Arc<Wire>,
    channels: String,
    lanes: Mutex<Lanes>,
    waker: AtomicWaker,
}

/// What waits to be sent, per script. A release goes before an acquire, which
/// may get what it frees; among themselves they keep their order.
#[derive(Debug, Default)]
struct Lanes {
    renew: Vec<Waiting>,
    release: Vec<Waiting>,
    acquire: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    ask: Ask,
    reply: oneshot::Sender<Answer>,
}

/// The scripts that take several claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Acquire,
    Renew,
    Release,
}

impl Verb {
    pub(super) fn script(self) -> &'static Script {
        match self {
            Verb::Acquire => &SCRIPTS.acquire,
            Verb::Renew => &SCRIPTS.renew,
            Verb::Release => &SCRIPTS.release,
        }
    }
}

impl Batch {
    pub(super) fn start(wire: Arc<Wire>, channels: String) -> Self {
        let (lanes, waker) = (Mutex::default(), AtomicWaker::new());
        let shared = Arc::new(Shared { wire, channels, lanes, waker });
        let task = tokio::spawn(shared.clone().send_on()).abort_handle();
        Batch { shared, task }
    }

    /// Sends a request with the others of this moment.
    pub(super) async fn ask(&self, verb: Verb, ask: Ask) -> Answer {
        // Held here too: who gives up early suspects the connection early.
        let flight = self.shared.wire.flight()?;
        let (reply, answer) = oneshot::channel();
        self.shared.lanes().of(verb).push(Waiting { ask, reply });
        self.shared.waker.wake();
        let answer = answer.await;
        flight.land();
        answer.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unknown, "the connection was closed before the answer"))
        })
    }

    pub(super) fn close(&self) {
        self.task.abort();
        // Nobody will send these.
        *self.shared.lanes() = Lanes::default();
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.close();
    }
}

impl Lanes {
    fn of(&mut self, verb: Verb) -> &mut Vec<Waiting> {
        match verb {
            Verb::Acquire => &mut self.acquire,
            Verb::Renew => &mut self.renew,
            Verb::Release => &mut self.release,
        }
    }
}

impl Shared {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends whatever there is whenever it is this task's turn, which is after
    /// the driver's.
    async fn send_on(self: Arc<Self>) {
        let mut flights = FuturesUnordered::new();
        std::future::poll_fn(|context: &mut Context<'_>| -> Poll<()> {
            self.waker.register(context.waker());
            for verb in [Verb::Renew, Verb::Release, Verb::Acquire] {
                let waiting = std::mem::take(self.lanes().of(verb));
                for group in groups(waiting) {
                    flights.push(self.send(verb, group));
                }
            }
            while let Poll::Ready(Some(())) = flights.poll_next_unpin(context) {}
            Poll::Pending
        })
        .await;
    }

    /// Sends one command, and gives every claim its part of the answer.
    async fn send(&self, verb: Verb, group: Vec<Waiting>) {
        let asks: Vec<&Ask> = group.iter().map(|waiting| &waiting.ask).collect();
        let call = Call::of(verb.script(), &self.channels, &asks);
        let answer = call.run(&self.wire, Weight::Plain).await;
        let count = group.len();
        let mut replies = group.into_iter().map(|waiting| waiting.reply);
        let mut each = |answer: Answer| {
            if let Some(reply) = replies.next() {
                // Nobody left to tell.
                let _ = reply.send(answer);
            }
        };
        match answer {
            Ok(Ok((value, _))) if count == 1 => each(Ok(Ok(value))),
            Ok(Ok((Value::Array(values), _))) if values.len() == count => {
                for value in values {
                    each(Ok(match value {
                        Value::ServerError(error) => Err(error.into()),
                        value => Ok(value),
                    }));
                }
            }
            Ok(Ok((value, _))) => (0..count).for_each(|_| each(Err(strange(&value)))),
            Ok(Err(error)) => (0..count).for_each(|_| each(Ok(Err(error.clone())))),
            Err(error) => (0..count).for_each(|_| each(Err(error.clone()))),
        }
    }
}

/// Puts neighbours that use the same words together. Only neighbours: claims on
/// one name must not change places.
fn groups(waiting: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    let mut groups: Vec<Vec<Waiting>> = Vec::new();
    // Whoever is gone wants nothing any more.
    for next in waiting.into_iter().filter(|waiting| !waiting.reply.is_closed()) {
        match groups.last_mut() {
            Some(group) if group.len() < MOST && group[0].ask.words == next.ask.words => {
                group.push(next);
            }
            _ => groups.push(vec![next]),
        }
    }
    groups
}
