//! The bare floor: what the engine's own server, or the system, takes at the
//! least for the same end, through the same client library.

mod local;
mod memory;
mod redis;
mod sql;
mod zookeeper;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::engine::EngineInfo;

use super::meter::Meter;
use crate::exit::Failure;

/// The failure of something bare.
fn broken(why: impl std::fmt::Display) -> Failure {
    Failure::new(crate::exit::FAILED, "bench", format!("bench: the bare floor broke off: {why}"))
}

/// What is measured beside an engine, and what its server counts.
#[async_trait]
pub(super) trait Floor: Send + Sync {
    /// Where lockkeeper itself is measured: the URL asked for, or a place of
    /// its own beside it that is gone afterwards.
    fn url(&self) -> &str;

    /// What a bare pair is, and a bare hand-over, for people.
    fn words(&self) -> Words;

    /// Whether waiters must live in this process: the engine ends with it.
    fn is_private(&self) -> bool {
        false
    }

    /// Whether asking for a claim, keeping its place and giving it back take
    /// one command each, so that a hand-over can be told from queueing.
    fn counts_claims(&self) -> bool {
        false
    }

    /// The server and its version, if there is a server.
    async fn server(&self) -> Result<Option<String>, Failure> {
        Ok(None)
    }

    /// What the server has counted so far; `None` where nobody counts.
    async fn counters(&self, _side: Side) -> Result<Option<Counters>, Failure> {
        Ok(None)
    }

    /// Takes and gives back a name of its own for as long as the meter runs.
    async fn pairs(&self, name: &str, meter: &mut Meter) -> Result<(), Failure>;

    /// Sits down in a ring that passes something from seat to seat.
    async fn sit(&self, ring: &str, seat: usize) -> Result<Option<Box<dyn Ring>>, Failure>;

    /// Removes what these names, and those with `:floor` behind them, left.
    async fn clean(&self, names: &[String]) -> Result<(), Failure>;
}

/// A seat in a ring of processes: a hand-over without a lock.
#[async_trait]
pub(super) trait Ring: Send {
    /// Passes something to another seat.
    async fn pass(&mut self, to: usize, what: &str) -> Result<(), Failure>;

    /// Waits for something.
    async fn receive(&mut self) -> Result<String, Failure>;
}

/// What the bare things are, in words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    pub(super) pair: &'static str,
    pub(super) hand_over: Option<&'static str>,
}

/// Whose commands are counted: scripts of either run other commands inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Lockkeeper,
    Floor,
}

/// What a server has counted since it started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Counters {
    /// What clients have sent.
    pub(super) commands: u64,
    pub(super) cpu: Option<Duration>,
}

impl Counters {
    /// What was counted between two looks.
    pub(super) fn since(self, before: Counters) -> (u64, Option<Duration>) {
        let cpu = self.cpu.zip(before.cpu).map(|(after, before)| after.saturating_sub(before));
        (self.commands.saturating_sub(before.commands), cpu)
    }
}

/// The floor beside an engine. `prepared`: `url` is already the place of its
/// own that somebody else made.
pub(super) async fn open(
    info: &EngineInfo,
    url: &str,
    prepared: bool,
) -> Result<Arc<dyn Floor>, Failure> {
    match &*info.engine {
        "memory" => Ok(Arc::new(memory::MemoryFloor::new(url))),
        "local" => Ok(Arc::new(local::LocalFloor::open(info, url, prepared)?)),
        "redis" => Ok(Arc::new(redis::RedisFloor::open(url).await?)),
        "zookeeper" => Ok(Arc::new(zookeeper::ZooKeeperFloor::open(url).await?)),
        "mysql" | "postgres" => Ok(Arc::new(sql::SqlFloor::open(url, prepared).await?)),
        engine => {
            let text = format!("bench: nothing is known to measure beside {engine}");
            Err(Failure::new(crate::exit::CONFIG, "unsupported", text))
        }
    }
}
