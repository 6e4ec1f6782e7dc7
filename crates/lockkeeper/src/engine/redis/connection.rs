//! One connection per keeper: commands out, answers and pushes in.
//!
//! It is re-made for as long as the keeper lives. A command never waits for
//! that: without a connection it fails at once and nothing was sent, with one
//! it was sent, and only its answer says what it did. So nothing is ever sent
//! twice behind the engine's back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    PushInfo, PushKind, RedisConnectionInfo, Value, cmd,
};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::config::{Place, Redis};
use super::fault::{refused_connection, told};
use super::push;
use super::scripts::{SCRIPTS, Script};
use crate::engine::{Event, Seat};
use crate::error::{Error, ErrorKind, Result, invalid};

/// How long to pause between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(500));
/// A command without an answer for this long makes its connection suspect.
const SUSPICIOUS: Duration = Duration::from_millis(250);
/// The one shard of a single server.
const SHARD: u32 = 0;

/// A keeper's connection.
#[derive(Debug)]
pub(super) struct Wire {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    redis: Redis,
    seat: Seat,
    state: Mutex<State>,
    generations: AtomicU64,
    trouble: mpsc::UnboundedSender<Trouble>,
}

#[derive(Debug)]
enum State {
    Up { generation: u64, connection: MultiplexedConnection },
    Down { why: Error },
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
    pub(super) async fn open(redis: Redis, seat: Seat) -> Result<Self> {
        let (trouble, troubles) = mpsc::unbounded_channel();
        let down = State::Down { why: Error::new(ErrorKind::Unreachable, "not connected yet") };
        let shared = Arc::new(Shared {
            redis,
            seat,
            state: Mutex::new(down),
            generations: AtomicU64::new(0),
            trouble,
        });
        shared.dial().await?;
        let task = tokio::spawn(shared.clone().stay(troubles)).abort_handle();
        Ok(Wire { shared, task })
    }

    /// Runs a script on the name behind `key`.
    pub(super) async fn run(
        &self,
        script: &Script,
        key: &str,
        arguments: &[&[u8]],
    ) -> Result<Value> {
        let mut command = cmd("EVALSHA");
        command.arg(&script.hash).arg(1).arg(key);
        for argument in arguments {
            command.arg(*argument);
        }
        let answer = self.shared.send(&command).await?;
        match answer {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                let mut load = cmd("SCRIPT");
                load.arg("LOAD").arg(&script.code);
                // Nothing ran yet, so whatever fails here changed nothing.
                self.shared.send(&load).await?.map_err(|error| told(error, key))?;
                self.shared.send(&command).await?.map_err(|error| self.shared.judge(error, key))
            }
            answer => answer.map_err(|error| self.shared.judge(error, key)),
        }
    }

    /// Sends a command that is no script.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value> {
        self.shared.send(command).await?.map_err(|error| self.shared.judge(error, ""))
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.task.abort();
        let why = Error::new(ErrorKind::Unreachable, "the connection is closed");
        *self.shared.state() = State::Down { why };
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
        match &*self.state() {
            State::Up { generation, connection } => Ok((*generation, connection.clone())),
            State::Down { why } => Err(why.clone()),
        }
    }

    /// Sends a command. The outer error means that no answer came; the inner
    /// one is the server's answer.
    async fn send(&self, command: &Cmd) -> Result<Result<Value, redis::RedisError>> {
        let (generation, mut connection) = self.current()?;
        let mut flight = Flight { shared: self, generation, sent: Instant::now(), landed: false };
        let limit = self.redis.command;
        let answer =
            tokio::time::timeout(limit, command.query_async::<Value>(&mut connection)).await;
        let silence = |why: String| Error::new(ErrorKind::Unknown, why);
        match answer {
            Err(_) => Err(silence(format!("no answer within {limit:?}"))),
            Ok(Err(error)) if error.is_io_error() || error.is_connection_dropped() => {
                flight.landed = true;
                // The trouble of one command is the trouble of the connection.
                let _ = self.trouble.send(Trouble::Over(generation));
                Err(silence("the connection broke before the answer".to_owned()).because(error))
            }
            Ok(answer) => {
                flight.landed = true;
                Ok(answer)
            }
        }
    }

    /// Tells what a server's error means; one that is no master is left.
    fn judge(&self, error: redis::RedisError, key: &str) -> Error {
        if error.code() == Some("READONLY")
            && let State::Up { generation, .. } = &*self.state()
        {
            let _ = self.trouble.send(Trouble::Over(*generation));
        }
        told(error, key)
    }

    /// Makes a connection that is ready for everything.
    async fn dial(self: &Arc<Self>) -> Result<()> {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        let limit = self.redis.connect;
        let dialled = tokio::time::timeout(limit, self.connect(generation)).await;
        let connection = dialled.unwrap_or_else(|_| {
            let text = format!("no connection within {limit:?}");
            Err(Error::new(ErrorKind::Unreachable, text))
        })?;
        *self.state() = State::Up { generation, connection };
        Ok(())
    }

    async fn connect(self: &Arc<Self>, generation: u64) -> Result<MultiplexedConnection> {
        let client = Client::open(self.address()?).map_err(refused_connection)?;
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
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(refused_connection)?;
        self.greet(&connection).await?;
        Ok(connection)
    }

    /// Subscribes, loads the scripts, and sees whether locks can be had here.
    async fn greet(&self, connection: &MultiplexedConnection) -> Result<()> {
        let mut commands = vec![cmd("INFO"), cmd("SUBSCRIBE")];
        commands[0].arg("server");
        commands[1].arg(push::channel(&self.redis.prefix, self.seat.keeper));
        for script in SCRIPTS.all() {
            let mut load = cmd("SCRIPT");
            load.arg("LOAD").arg(&script.code);
            commands.push(load);
        }
        let mut probe = cmd("EVALSHA");
        let key = format!("{}{{probe:{}}}", self.redis.prefix, self.seat.keeper);
        probe.arg(&SCRIPTS.probe.hash).arg(1).arg(key);
        commands.push(probe);
        // Together, but each with its own answer: an error must name its cause.
        let answers = join_all(commands.iter().map(|command| {
            let mut connection = connection.clone();
            async move { command.query_async::<Value>(&mut connection).await }
        }));
        let mut answers = answers.await.into_iter();
        // Whoever may not look learns it from the first lock.
        if let Some(Ok(Value::VerbatimString { text, .. })) = answers.next()
            && !text.contains("redis_mode:standalone")
        {
            let text = "the server is part of a cluster or a sentinel, which this URL does not say";
            return Err(invalid(text));
        }
        answers.try_for_each(|answer| answer.map(drop)).map_err(refused_connection)
    }

    fn address(&self) -> Result<redis::ConnectionInfo> {
        let redis = &self.redis;
        let place = match &redis.place {
            Place::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
            Place::Unix(path) => ConnectionAddr::Unix(path.clone()),
        };
        let mut login = RedisConnectionInfo::default()
            // Pushes and answers on one connection.
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(i64::from(redis.database))
            .set_lib_name("lockkeeper", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &redis.user {
            login = login.set_username(user);
        }
        if let Some(password) = &redis.password {
            login = login.set_password(password);
        }
        let info = place.into_connection_info().map_err(refused_connection)?;
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        Ok(info.set_redis_settings(login).set_tcp_settings(tcp))
    }

    fn on_push(&self, generation: u64, info: PushInfo) {
        match info.kind {
            PushKind::Message => {
                if let Some(event) = push::read(&self.redis.prefix, &info.data) {
                    self.seat.events.push(event);
                }
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
        self.seat.events.push(Event::Link { shard: SHARD, up: false });
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
        self.seat.events.push(Event::Link { shard: SHARD, up: true });
    }

    fn label(&self) -> Arc<str> {
        crate::engine::Connect::label(&self.redis)
    }
}

/// A command under way. Given up after a while, it makes its connection
/// suspect, also if its caller went away before any limit.
struct Flight<'a> {
    shared: &'a Shared,
    generation: u64,
    sent: Instant,
    landed: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.landed && self.sent.elapsed() >= SUSPICIOUS {
            let _ = self.shared.trouble.send(Trouble::Silent(self.generation));
        }
    }
}
