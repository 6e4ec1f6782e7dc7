//! One connection to one server: commands out, answers and pushes in.
//!
//! It is re-made for as long as it is wanted. A command never waits for
//! that: without a connection it fails at once and nothing was sent, with one
//! it was sent, and only its answer says what it did. So nothing is ever sent
//! twice behind the engine's back.

mod dial;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, PushInfo, PushKind, RedisError, Value, cmd};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use super::config::{Confirm, Place, Redis};
use super::fault::told;
use super::push;
use crate::engine::{Connect, Event, Seat};
use crate::error::{Error, ErrorKind, Result};

/// A command without an answer for this long makes its connection suspect.
const SUSPICIOUS: Duration = Duration::from_millis(250);

/// Where a wire leads.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// One server, which must be no part of a cluster.
    Server(Place),
    /// Whichever server these sentinels call master of this name.
    Master { sentinels: Vec<Place>, name: String },
    /// A node of a cluster; changes of its connection are news to its map.
    Node { place: Place, news: Arc<Notify> },
}

/// A connection that is kept up.
#[derive(Debug)]
pub(super) struct Wire {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    redis: Redis,
    seat: Seat,
    target: Target,
    shard: u32,
    state: Mutex<State>,
    generations: AtomicU64,
    trouble: mpsc::UnboundedSender<Trouble>,
    /// The most replicas that the master had so far.
    replicas: AtomicU32,
    /// Sharded channels that are subscribed, and on which connection.
    channels: Mutex<HashMap<String, u64>>,
}

#[derive(Debug)]
enum State {
    Up { generation: u64, lines: Lines },
    Down { why: Error },
}

/// The connections of one generation.
#[derive(Clone, Debug)]
struct Lines {
    connection: MultiplexedConnection,
    /// For grants that replicas must confirm: WAIT blocks its connection.
    witness: Option<Witness>,
}

#[derive(Clone, Debug)]
struct Witness {
    connection: MultiplexedConnection,
    /// How many replicas must confirm.
    needed: u32,
}

/// A reason to look at a connection.
#[derive(Debug)]
enum Trouble {
    /// It has ended, or its server is not what it was.
    Over(u64),
    /// It has not answered for a while.
    Silent(u64),
}

impl Wire {
    /// Connects, and stays connected until dropped.
    pub(super) async fn open(redis: Redis, seat: Seat, target: Target, shard: u32) -> Result<Self> {
        let (trouble, troubles) = mpsc::unbounded_channel();
        let down = State::Down { why: Error::new(ErrorKind::Unreachable, "not connected yet") };
        let shared = Arc::new(Shared {
            redis,
            seat,
            target,
            shard,
            state: Mutex::new(down),
            generations: AtomicU64::new(0),
            trouble,
            replicas: AtomicU32::new(0),
            channels: Mutex::default(),
        });
        shared.dial().await?;
        let task = tokio::spawn(shared.clone().stay(troubles)).abort_handle();
        Ok(Wire { shared, task })
    }

    /// The number under which its claims are renewed together.
    pub(super) fn shard(&self) -> u32 {
        self.shared.shard
    }

    /// Sends a command. The outer error means that no answer came; the inner
    /// one is the server's answer.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Result<Value, RedisError>> {
        self.shared.send(command).await
    }

    /// Sends a command that may grant; says whether enough replicas have it.
    ///
    /// The server counts what was written on this very connection, so the
    /// question must follow the command on it.
    pub(super) async fn send_firm(
        &self,
        command: &Cmd,
    ) -> Result<Result<(Value, bool), RedisError>> {
        let (generation, lines) = self.shared.lines()?;
        let Some(Witness { connection, needed }) = lines.witness else {
            return Ok(self.shared.send(command).await?.map(|value| (value, true)));
        };
        let value = match self.shared.send_on(generation, connection.clone(), command).await? {
            Ok(value) => value,
            Err(error) => return Ok(Err(error)),
        };
        if !is_grant(&value) {
            return Ok(Ok((value, true)));
        }
        let mut wait = cmd("WAIT");
        let limit = self.shared.redis.command / 2;
        wait.arg(needed).arg(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1));
        // Without an answer nobody knows, so it does not count.
        let answer = self.shared.send_on(generation, connection, &wait).await;
        let confirmed = matches!(answer, Ok(Ok(Value::Int(count))) if count >= i64::from(needed));
        Ok(Ok((value, confirmed)))
    }

    /// Sends a command to a node that is about to take over its slot.
    pub(super) async fn send_asking(&self, command: &Cmd) -> Result<Result<Value, RedisError>> {
        let mut pipe = redis::pipe();
        pipe.cmd("ASKING").ignore().add_command(command.clone());
        let (_, mut connection) = self.shared.current()?;
        let limit = self.shared.redis.command;
        match tokio::time::timeout(limit, pipe.query_async::<Vec<Value>>(&mut connection)).await {
            Err(_) => Err(no_answer(limit)),
            Ok(Err(error)) if error.is_io_error() || error.is_connection_dropped() => {
                Err(broken(error))
            }
            Ok(answer) => Ok(answer.map(|mut values| values.pop().unwrap_or(Value::Nil))),
        }
    }

    /// Hears what is pushed to a sharded channel of this node from now on.
    pub(super) async fn subscribe(&self, channel: &str) -> Result<Result<(), RedisError>> {
        let (generation, _) = self.shared.current()?;
        if self.shared.channels().get(channel) == Some(&generation) {
            return Ok(Ok(()));
        }
        let mut command = cmd("SSUBSCRIBE");
        command.arg(channel);
        let answer = self.shared.send(&command).await?.map(drop);
        if answer.is_ok() {
            self.shared.channels().insert(channel.to_owned(), generation);
        }
        Ok(answer)
    }

    /// Whether grants must be confirmed by replicas.
    pub(super) fn has_witness(&self) -> bool {
        self.shared.redis.confirm != Confirm::None
    }

    /// Watches over a request that is about to be sent.
    pub(super) fn flight(&self) -> Result<Flight<'_>> {
        self.shared.flight()
    }

    /// Tells what a server's error means; a server that is no master is left.
    pub(super) fn judge(&self, error: RedisError, key: &str) -> Error {
        if error.code() == Some("READONLY")
            && let State::Up { generation, .. } = &*self.shared.state()
        {
            let _ = self.shared.trouble.send(Trouble::Over(*generation));
        }
        told(error, key)
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.task.abort();
        let why = Error::new(ErrorKind::Unreachable, "the connection is closed");
        *self.shared.state() = State::Down { why };
        self.shared.channels().clear();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Result<(u64, MultiplexedConnection)> {
        self.lines().map(|(generation, lines)| (generation, lines.connection))
    }

    fn lines(&self) -> Result<(u64, Lines)> {
        match &*self.state() {
            State::Up { generation, lines } => Ok((*generation, lines.clone())),
            State::Down { why } => Err(why.clone()),
        }
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, command: &Cmd) -> Result<Result<Value, RedisError>> {
        let (generation, connection) = self.current()?;
        self.send_on(generation, connection, command).await
    }

    async fn send_on(
        &self,
        generation: u64,
        mut connection: MultiplexedConnection,
        command: &Cmd,
    ) -> Result<Result<Value, RedisError>> {
        let flight = Flight { shared: self, generation, sent: Instant::now() };
        let limit = self.redis.command;
        let answer = tokio::time::timeout(limit, connection.send_packed_command(command)).await;
        let Ok(answer) = answer else { return Err(no_answer(limit)) };
        flight.land();
        match answer {
            Err(error) if error.is_io_error() || error.is_connection_dropped() => {
                // The trouble of one command is the trouble of the connection.
                let _ = self.trouble.send(Trouble::Over(generation));
                Err(broken(error))
            }
            // Errors within a list are the business of whoever asked for it.
            Ok(Value::ServerError(error)) => Ok(Err(error.into())),
            answer => Ok(answer),
        }
    }

    fn flight(&self) -> Result<Flight<'_>> {
        match &*self.state() {
            State::Up { generation, .. } => {
                Ok(Flight { shared: self, generation: *generation, sent: Instant::now() })
            }
            State::Down { why } => Err(why.clone()),
        }
    }

    fn on_push(&self, generation: u64, info: PushInfo) {
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                let event = match push::read(&self.redis.prefix, &info.data) {
                    // Replicas must confirm it first: the guard is made by the
                    // renewal that this nudge brings about.
                    Some(Event::HandedOver { claim, .. })
                        if self.redis.confirm != Confirm::None =>
                    {
                        Some(Event::Nudge(claim))
                    }
                    event => event,
                };
                if let Some(event) = event {
                    self.seat.events.push(event);
                }
            }
            // Its slot moved away. Whoever waits asks again soon, and then
            // subscribes where it is now.
            PushKind::SUnsubscribe => {
                let channel = info.data.first().map(String::from_redis_value_ref);
                if let Some(Ok(channel)) = channel {
                    self.channels().remove(&channel);
                }
                self.tell();
            }
            PushKind::Disconnection => {
                let _ = self.trouble.send(Trouble::Over(generation));
            }
            _ => {}
        }
    }

    /// Tells the map of the cluster that something happened here.
    fn tell(&self) {
        if let Target::Node { news, .. } = &self.target {
            news.notify_one();
        }
    }

    fn label(&self) -> Arc<str> {
        self.redis.label()
    }
}

/// Whether a script's answer is a grant.
fn is_grant(value: &Value) -> bool {
    match value {
        Value::Int(_) => true,
        Value::Array(words) => {
            matches!(words.first(), Some(Value::BulkString(word)) if word == b"held")
        }
        _ => false,
    }
}

fn no_answer(limit: Duration) -> Error {
    Error::new(ErrorKind::Unknown, format!("no answer within {limit:?}"))
}

fn broken(error: RedisError) -> Error {
    Error::new(ErrorKind::Unknown, "the connection broke before the answer").because(error)
}

/// A command under way. Given up after a while, it makes its connection
/// suspect, also if its caller went away before any limit.
pub(super) struct Flight<'a> {
    shared: &'a Shared,
    generation: u64,
    sent: Instant,
}

impl Flight<'_> {
    /// Its answer came.
    pub(super) fn land(self) {
        std::mem::forget(self);
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.sent.elapsed() >= SUSPICIOUS {
            let _ = self.shared.trouble.send(Trouble::Silent(self.generation));
        }
    }
}
