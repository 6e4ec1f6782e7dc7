//! Makes a wire's connection, and makes it again whenever it is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, PushInfo, RedisError, Value, cmd};
use tokio::sync::mpsc;

use super::{Lines, SUSPICIOUS, Shared, State, Target, Trouble, Witness};
use crate::engine::Event;
use crate::engine::redis::address;
use crate::engine::redis::config::{Confirm, Place};
use crate::engine::redis::fault::refused_connection;
use crate::engine::redis::push;
use crate::engine::redis::scripts::{SCRIPTS, Script};
use crate::error::{Error, ErrorKind, Result, invalid};

/// How long to pause between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(500));

/// Sends commands together, but each with its own answer: an error must name
/// its cause.
async fn together(
    connection: &MultiplexedConnection,
    commands: &[Cmd],
) -> Vec<Result<Value, RedisError>> {
    join_all(commands.iter().map(|command| {
        let mut connection = connection.clone();
        async move { command.query_async::<Value>(&mut connection).await }
    }))
    .await
}

impl Shared {
    /// Makes a connection that is ready for everything.
    pub(super) async fn dial(self: &Arc<Self>) -> Result<()> {
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

    /// Subscribes, loads the scripts that are missing, and sees whether locks
    /// can be had here.
    async fn greet(&self, connection: &MultiplexedConnection) -> Result<()> {
        let in_cluster = matches!(self.target, Target::Node { .. });
        let mut commands = vec![cmd("INFO"), cmd("SCRIPT")];
        commands[0].arg("server");
        commands[1].arg("EXISTS").arg(&SCRIPTS.all().map(|script| &*script.hash));
        // A node's channels go by slot, and so would the key of a probe.
        if !in_cluster {
            let mut subscribe = cmd("SUBSCRIBE");
            subscribe.arg(push::channel(&push::channels(&self.redis.prefix), self.seat.keeper));
            let mut probe = cmd("EVAL");
            let key = format!("{}{{probe:{}}}", self.redis.prefix, self.seat.keeper);
            probe.arg(&SCRIPTS.probe).arg(1).arg(key);
            commands.extend([subscribe, probe]);
        }
        let mut answers = together(connection, &commands).await.into_iter();
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
        // Whoever may not ask loads them all.
        let known = match answers.next() {
            Some(Ok(Value::Array(known))) => known,
            _ => Vec::new(),
        };
        answers.try_for_each(|answer| answer.map(drop)).map_err(refused_connection)?;
        let is_missing = |index: usize| known.get(index) != Some(&Value::Int(1));
        let load = |(_, script): (usize, &Script)| {
            let mut load = cmd("SCRIPT");
            load.arg("LOAD").arg(&script.code);
            load
        };
        let scripts = SCRIPTS.all().into_iter().enumerate();
        let missing: Vec<_> = scripts.filter(|&(index, _)| is_missing(index)).map(load).collect();
        let mut loaded = together(connection, &missing).await.into_iter();
        loaded.try_for_each(|answer| answer.map(drop)).map_err(refused_connection)
    }

    /// Looks after the connection for as long as the keeper lives.
    pub(super) async fn stay(self: Arc<Self>, mut troubles: mpsc::UnboundedReceiver<Trouble>) {
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
}
