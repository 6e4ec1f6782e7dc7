//! One connection to one server: commands out, answers and pushes in.
//!
//! It is re-made for as long as it is wanted. A command never waits for
//! that: without a connection it fails at once and nothing was sent, with one
//! it was sent, and only its answer says what it did. So nothing is ever sent
//! twice behind the engine's back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, FromRedisValue, PushInfo, PushKind, RedisError, Value, cmd,
};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use super::address;
use super::config::{Confirm, Place, Redis};
use super::fault::{refused_connection, told};
use super::push;
use super::scripts::SCRIPTS;
use crate::engine::{Connect, Event, Seat};
use crate::error::{Error, ErrorKind, Result, invalid};

/// How long to pause between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(500));
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

    /// Makes a connection that is ready for everything.
    async fn dial(self: &Arc<Self>) -> Result<()> {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        let limit = self.redis.connect;
        let dialled = tokio::time::timeout(limit, self.connect(generation)).await;
        let lines = dialled.unwrap_or_else(|_| {
            let text = format!("no connection within {limit:?}");
            Err(Error::new(ErrorKind::Unreachable, text))
        })?;
        *self.state() = State::Up { generation, lines };
        Ok(())
    }

    async fn connect(self: &Arc<Self>, generation: u64) -> Result<Lines> {
        let pushed = Arc::downgrade(self);
        let config = AsyncConnectionConfig::new()
            // Both limits are our own: one for the whole of connecting, one
            // per command.
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |info: PushInfo| -> Result<(), ()> {
                let shared = pushed.upgrade().ok_or(())?;
                shared.on_push(generation, info);
                Ok(())
            });
        let place = match &self.target {
            Target::Server(place) | Target::Node { place, .. } => place.clone(),
            Target::Master { sentinels, name } => {
                address::master(&self.redis, sentinels, name).await?
            }
        };
        let connection = address::connect(&self.redis, &place, &config).await?;
        self.greet(&connection).await?;
        let witness = match self.redis.confirm {
            Confirm::None => None,
            _ => Some(self.witness(&place).await?),
        };
        Ok(Lines { connection, witness })
    }

    /// Connects once more, for grants that replicas must confirm.
    async fn witness(&self, place: &Place) -> Result<Witness> {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let mut connection = address::connect(&self.redis, place, &config).await?;
        let mut info = cmd("INFO");
        info.arg("replication");
        let info = info.query_async::<String>(&mut connection).await.map_err(refused_connection)?;
        let count = info.lines().find_map(|line| line.strip_prefix("connected_slaves:"));
        let count = count.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        // A replica that is away for the moment still counts.
        let replicas = self.replicas.fetch_max(count, Ordering::Relaxed).max(count);
        Ok(Witness { connection, needed: self.redis.confirm.needed(replicas) })
    }

    /// Subscribes, loads the scripts, and sees whether locks can be had here.
    async fn greet(&self, connection: &MultiplexedConnection) -> Result<()> {
        let in_cluster = matches!(self.target, Target::Node { .. });
        let mut commands = vec![cmd("INFO")];
        commands[0].arg("server");
        for script in SCRIPTS.all() {
            let mut load = cmd("SCRIPT");
            load.arg("LOAD").arg(&script.code);
            commands.push(load);
        }
        // A node's channels go by slot, and so would the key of a probe.
        if !in_cluster {
            let mut subscribe = cmd("SUBSCRIBE");
            subscribe.arg(push::channel(&push::channels(&self.redis.prefix), self.seat.keeper));
            let mut probe = cmd("EVALSHA");
            let key = format!("{}{{probe:{}}}", self.redis.prefix, self.seat.keeper);
            probe.arg(&SCRIPTS.probe.hash).arg(1).arg(key);
            commands.extend([subscribe, probe]);
        }
        // Together, but each with its own answer: an error must name its cause.
        let answers = join_all(commands.iter().map(|command| {
            let mut connection = connection.clone();
            async move { command.query_async::<Value>(&mut connection).await }
        }));
        let mut answers = answers.await.into_iter();
        // Whoever may not look learns it from the first lock.
        if let Some(Ok(Value::VerbatimString { text, .. })) = answers.next()
            && let Some(mode) = text.lines().find_map(|line| line.strip_prefix("redis_mode:"))
        {
            match (mode.trim(), in_cluster) {
                ("standalone", false) | ("cluster", true) => {}
                ("standalone", true) => {
                    return Err(invalid("the server is no part of a cluster; try redis://"));
                }
                (mode, _) => {
                    return Err(invalid(format!(
                        "the server is part of a {mode}; try redis+{mode}://"
                    )));
                }
            }
        }
        answers.try_for_each(|answer| answer.map(drop)).map_err(refused_connection)
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

    /// Looks after the connection for as long as the keeper lives.
    async fn stay(self: Arc<Self>, mut troubles: mpsc::UnboundedReceiver<Trouble>) {
        while let Some(trouble) = troubles.recv().await {
            let (Trouble::Over(about) | Trouble::Silent(about)) = trouble;
            let Ok((generation, connection)) = self.current() else { continue };
            if about != generation {
                continue;
            }
            if matches!(trouble, Trouble::Silent(_)) && self.answers(connection).await {
                continue;
            }
            self.again().await;
        }
    }

    /// Whether a connection that is suspected still works.
    async fn answers(&self, mut connection: MultiplexedConnection) -> bool {
        let limit = self.redis.command.min(2 * SUSPICIOUS);
        let ping = cmd("PING");
        let answer = tokio::time::timeout(limit, ping.query_async::<Value>(&mut connection)).await;
        matches!(answer, Ok(Ok(_)))
    }

    /// Says that the connection is lost, and makes a new one.
    async fn again(self: &Arc<Self>) {
        let why = Error::new(ErrorKind::Unreachable, "the connection is lost");
        *self.state() = State::Down { why };
        tracing::warn!(engine = %self.label(), "the connection is lost");
        self.seat.events.push(Event::Link { shard: self.shard, up: false });
        self.channels().clear();
        self.tell();
        let mut pause = PAUSES.0;
        while let Err(why) = self.dial().await {
            tracing::debug!(engine = %self.label(), error = %why, "not connected");
            // Whatever keeps us out now is not the caller's mistake.
            let why = Error::new(ErrorKind::Unreachable, why.to_string());
            *self.state() = State::Down { why };
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        tracing::info!(engine = %self.label(), "connected again");
        self.seat.events.push(Event::Link { shard: self.shard, up: true });
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
