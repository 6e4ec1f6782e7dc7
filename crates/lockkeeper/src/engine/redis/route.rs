//! Which server a name is asked for at.

use std::sync::Arc;

use redis::{Cmd, RedisError, Value, cmd};

use super::batch::{Batch, Verb};
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
    One { wire: Arc<Wire>, channels: String, batch: Batch },
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

/// One claim's part of a script that takes several.
#[derive(Debug)]
pub(super) struct Ask {
    /// The record.
    pub(super) key: String,
    /// What may be shared with other claims, see [`words`](super::words).
    pub(super) words: Arc<str>,
    pub(super) claim: String,
    /// What else the script wants to know of this claim.
    pub(super) argument: Option<String>,
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
        let wire = Arc::new(Wire::open(redis, seat, target, 0).await?);
        let batch = Batch::start(wire.clone(), channels.clone());
        Ok(Route::One { wire, channels, batch })
    }

    /// Runs a script for one claim; on one server together with others that ask
    /// in the same moment. In a cluster a command is for one slot, so every
    /// claim has its own; so has one that replicas must confirm.
    pub(super) async fn ask(&self, verb: Verb, ask: Ask, weight: Weight) -> Result<Answered> {
        let key = ask.key.clone();
        match self {
            Route::One { wire, channels, batch } => {
                let answer = if weight == Weight::Firm && wire.has_witness() {
                    let call = Call::of(verb.script(), channels, &[&ask]);
                    // Boxed, as what follows: rare ways must not make every
                    // request large.
                    Box::pin(call.run(wire, weight)).await?
                } else {
                    batch.ask(verb, ask).await?.map(|value| (value, true))
                };
                let (value, confirmed) = answer.map_err(|error| wire.judge(error, &key))?;
                Ok(Answered { value, shard: wire.shard(), confirmed })
            }
            Route::Many(cluster) => {
                let arguments = Call::of(verb.script(), "", &[&ask]).arguments;
                Box::pin(cluster.run(verb.script(), &key, &arguments, weight)).await
            }
        }
    }

    /// Runs a script on the name behind `key`.
    pub(super) async fn run(
        &self,
        script: &Script,
        key: &str,
        arguments: &[&str],
    ) -> Result<Answered> {
        match self {
            Route::One { wire, channels, .. } => {
                let call =
                    Call { script, keys: vec![key], channels, arguments: arguments.to_vec() };
                let answer = call.run(wire, Weight::Plain).await?;
                let (value, confirmed) = answer.map_err(|error| wire.judge(error, key))?;
                Ok(Answered { value, shard: wire.shard(), confirmed })
            }
            Route::Many(cluster) => cluster.run(script, key, arguments, Weight::Plain).await,
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
            Route::One { wire, batch, .. } => {
                batch.close();
                wire.close();
            }
            Route::Many(cluster) => cluster.close(),
        }
    }
}

/// A script with everything it is to be run with.
pub(super) struct Call<'a> {
    pub(super) script: &'a Script,
    pub(super) keys: Vec<&'a str>,
    pub(super) channels: &'a str,
    pub(super) arguments: Vec<&'a str>,
}

impl<'a> Call<'a> {
    /// A script for several claims that use the same words.
    pub(super) fn of(script: &'a Script, channels: &'a str, asks: &[&'a Ask]) -> Self {
        let words = asks.first().into_iter().flat_map(|ask| ask.words.split('\n'));
        let each = asks.iter().flat_map(|ask| [Some(&*ask.claim), ask.argument.as_deref()]);
        Call {
            script,
            keys: asks.iter().map(|ask| &*ask.key).collect(),
            channels,
            arguments: words.chain(each.flatten()).collect(),
        }
    }

    /// The command that names the script by its hash.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = cmd(verb);
        command.arg(script).arg(self.keys.len()).arg(&self.keys);
        command.arg(self.channels).arg(&self.arguments);
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
