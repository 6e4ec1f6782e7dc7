//! Which server a name is asked for at.

use redis::{Cmd, RedisError, Value, cmd};

use super::cluster::Cluster;
use super::config::{Redis, Topology};
use super::push;
use super::scripts::Script;
use super::wire::{Target, Wire};
use crate::engine::Seat;
use crate::error::Result;

/// The way to every name.
#[derive(Debug)]
pub(super) enum Route {
    /// One server has them all.
    One { wire: Wire, channels: String },
    /// Each is on a node of a cluster.
    Many(Cluster),
}

/// An answer, the shard it came from, and whether it is confirmed as it must be.
pub(super) struct Answered {
    pub(super) value: Value,
    pub(super) shard: u32,
    pub(super) confirmed: bool,
}

/// Whether a script makes a guard, so that replicas must confirm it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    Plain,
    Firm,
}

impl Route {
    pub(super) async fn open(redis: Redis, seat: Seat) -> Result<Self> {
        let target = match redis.topology.clone() {
            Topology::Single(place) => Target::Server(place),
            Topology::Sentinel { sentinels, master } => Target::Master { sentinels, name: master },
            Topology::Cluster { nodes } => {
                return Ok(Route::Many(Cluster::open(redis, seat, nodes).await?));
            }
        };
        let channels = push::channels(&redis.prefix);
        let wire = Wire::open(redis, seat, target, 0).await?;
        Ok(Route::One { wire, channels })
    }

    /// Runs a script on the name behind `key`.
    pub(super) async fn run(
        &self,
        script: &Script,
        key: &str,
        arguments: &[&str],
        weight: Weight,
    ) -> Result<Answered> {
        match self {
            Route::One { wire, channels } => {
                let call = Call { script, keys: &[key], channels, arguments };
                let answer = call.run(wire, weight).await?;
                let (value, confirmed) = answer.map_err(|error| wire.judge(error, key))?;
                Ok(Answered { value, shard: wire.shard(), confirmed })
            }
            Route::Many(cluster) => cluster.run(script, key, arguments, weight).await,
        }
    }

    /// Sends a command to every server.
    pub(super) async fn send_all(&self, command: &Cmd) -> Result<Vec<Value>> {
        match self {
            Route::One { wire, .. } => {
                let value = wire.send(command).await?;
                Ok(vec![value.map_err(|error| wire.judge(error, ""))?])
            }
            Route::Many(cluster) => cluster.send_all(command).await,
        }
    }

    /// Sends a command to the server at `index` of [`send_all`](Self::send_all);
    /// `None` if there are fewer.
    pub(super) async fn send_to(&self, index: usize, command: &Cmd) -> Result<Option<Value>> {
        match self {
            Route::One { wire, .. } if index == 0 => {
                let value = wire.send(command).await?;
                value.map(Some).map_err(|error| wire.judge(error, ""))
            }
            Route::One { .. } => Ok(None),
            Route::Many(cluster) => cluster.send_to(index, command).await,
        }
    }

    pub(super) fn close(&self) {
        match self {
            Route::One { wire, .. } => wire.close(),
            Route::Many(cluster) => cluster.close(),
        }
    }
}

/// A script with everything it is to be run with.
pub(super) struct Call<'a> {
    pub(super) script: &'a Script,
    pub(super) keys: &'a [&'a str],
    pub(super) channels: &'a str,
    pub(super) arguments: &'a [&'a str],
}

impl Call<'_> {
    /// The command that names the script by its hash.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = cmd(verb);
        command.arg(script).arg(self.keys.len()).arg(self.keys);
        command.arg(self.channels).arg(self.arguments);
        command
    }

    /// Runs it on one server; says whether the answer is confirmed.
    pub(super) async fn run(
        &self,
        wire: &Wire,
        weight: Weight,
    ) -> Result<Result<(Value, bool), RedisError>> {
        let send = async |command: &Cmd| match weight {
            Weight::Plain => Ok(wire.send(command).await?.map(|value| (value, true))),
            Weight::Firm => wire.send_firm(command).await,
        };
        match send(&self.by_hash()).await? {
            // Forgotten. Loading it first could be in vain once more; this
            // brings it along, and the server keeps it.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                send(&self.command("EVAL", &self.script.code)).await
            }
            answer => Ok(answer),
        }
    }
}
