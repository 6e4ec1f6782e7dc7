//! The way from callers to the driver: messages, never engine calls.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::{Clock, Moment};
use crate::engine::{About, Engine, EngineInfo, Holder, Intent, Mode};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::hold::{Hold, Released};
use crate::name::LockName;
use crate::token::{ClaimId, KeeperId};

pub(crate) type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
pub(crate) type Call = Box<dyn FnOnce(Arc<dyn Engine>) -> BoxFuture + Send>;

/// What a caller can ask of the driver.
pub(crate) enum Message {
    /// Get hold of a name.
    Acquire(Box<Ask>),
    /// The caller of this acquisition is gone.
    Withdraw { number: u64 },
    /// Give back what a claim holds.
    Release { claim: ClaimId, reply: Option<oneshot::Sender<Result<Released>>> },
    /// Ask the engine whether a claim still holds.
    Verify { claim: ClaimId, reply: oneshot::Sender<Result<()>> },
    /// Run something beside the locks, on the keeper's own runtime.
    Call(Call),
    /// Say when every release posted before this is done.
    Flush(std::sync::mpsc::SyncSender<()>),
    /// Give back everything and end.
    Close { reply: oneshot::Sender<Result<()>> },
    /// Say how much is in hand.
    Measure(oneshot::Sender<Footprint>),
    /// Say what was asked of the engine so far.
    Count(oneshot::Sender<Tally>),
}

/// How much a driver has in hand; for tests that nothing is left in it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Acquisitions and grants, and claims that are being given back.
    pub entries: usize,
    /// Names with a local queue.
    pub queues: usize,
    /// Deadlines of entries.
    pub wakes: usize,
    /// Engine calls under way.
    pub flights: usize,
    /// Claims whose renewal is due.
    pub due: usize,
    /// Latches that somebody waits for.
    pub watches: usize,
}

impl Footprint {
    /// Whether there is nothing left.
    pub fn is_empty(&self) -> bool {
        *self == Footprint::default()
    }
}

/// What a driver has asked of its engine so far, claim by claim; for whoever
/// compares it with the server's own count.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Claims asked for.
    pub acquires: u64,
    /// Places in a queue that were kept alive.
    pub beats: u64,
    /// Grants that were kept alive, or confirmed after a hand-over.
    pub renewals: u64,
    /// Claims given back.
    pub releases: u64,
    /// Grants that came to a claim which had been told to wait.
    pub handed_over: u64,
}

/// The terms of a lock, worked out from its options once per handle.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    pub(crate) margin: Duration,
    pub(crate) lock_delay: Duration,
    pub(crate) min_hold: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) max_waiters: u32,
    pub(crate) about: Arc<About>,
}

/// One acquisition, as its caller posts it.
pub(crate) struct Ask {
    pub(crate) number: u64,
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) intent: Intent,
    pub(crate) under: Option<ClaimId>,
    pub(crate) terms: Arc<Terms>,
    pub(crate) started: Moment,
    /// When to give up waiting; never, for as long as it takes.
    pub(crate) deadline: Moment,
    /// The guard itself is sent, so that an unread answer releases itself.
    pub(crate) reply: oneshot::Sender<Result<Option<Hold>>>,
    pub(crate) waiting: Option<watch::Sender<Option<Waiting>>>,
}

/// Whom an acquisition waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The name waited for.
    pub name: LockName,
    /// Who holds it, as the engine last said.
    pub holders: Vec<Holder>,
    /// How many claims are ahead in the queue, where the engine knows.
    pub ahead: Option<u32>,
    /// For how long already.
    pub waited: Duration,
}

/// The keeper's end of the channel to its driver. Guards share it, so the
/// driver lives as long as anybody can still hold something.
pub(crate) struct Link {
    inbox: mpsc::UnboundedSender<Message>,
    pub(crate) keeper: KeeperId,
    pub(crate) clock: Clock,
    pub(crate) info: Arc<EngineInfo>,
    process: u32,
    numbers: AtomicU64,
}

impl Link {
    pub(crate) fn new(
        inbox: mpsc::UnboundedSender<Message>,
        keeper: KeeperId,
        clock: Clock,
        info: Arc<EngineInfo>,
    ) -> Self {
        let (process, numbers) = (std::process::id(), AtomicU64::new(1));
        Link { inbox, keeper, clock, info, process, numbers }
    }

    /// The number of a new acquisition.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether this process is the one that made the keeper.
    pub(crate) fn is_at_home(&self) -> bool {
        std::process::id() == self.process
    }

    /// Posts a message; never blocks.
    pub(crate) fn post(&self, message: Message) -> Result<()> {
        // A forked child shares the memory, not the thread: its messages
        // would wait for ever, and what it holds is its parent's.
        if !self.is_at_home() {
            return Err(invalid(format!(
                "this keeper belongs to process {}; open one of your own after a fork",
                self.process
            )));
        }
        self.inbox.send(message).map_err(|_| invalid("the keeper is closed").on(&self.info.label))
    }

    /// Runs `work` on the keeper's runtime and brings its answer here.
    ///
    /// Dropping the returned future drops `work` too, at its next await.
    pub(crate) async fn call<T, W, F>(&self, operation: &'static str, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(Arc<dyn Engine>) -> F + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (mut reply, answer) = oneshot::channel();
        let call: Call = Box::new(move |engine| {
            Box::pin(async move {
                let answer = tokio::select! {
                    answer = work(engine) => answer,
                    _ = reply.closed() => return,
                };
                // Nobody left to tell.
                let _ = reply.send(answer);
            })
        });
        self.post(Message::Call(call)).map_err(|error| error.during(operation))?;
        match answer.await {
            Ok(answer) => answer.map_err(|error| error.during(operation).on(&self.info.label)),
            Err(_) if self.inbox.is_closed() => {
                Err(invalid("the keeper is closed").during(operation).on(&self.info.label))
            }
            Err(_) => {
                Err(Error::new(ErrorKind::Unexpected, "the call broke off; the log says why")
                    .during(operation)
                    .on(&self.info.label))
            }
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("keeper", &self.keeper)
            .field("engine", &self.info.label)
            .finish()
    }
}
