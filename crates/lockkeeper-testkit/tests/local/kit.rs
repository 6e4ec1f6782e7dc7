//! Worker processes on a directory, and waiting for conditions.

use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::engine::Status;
use lockkeeper::{Keeper, Local};
use lockkeeper_testkit::child::Worker;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The program that takes locks in another process.
pub(crate) const WORKER: &str = env!("CARGO_BIN_EXE_lk-worker");

/// The URL of the engine in a directory.
pub(crate) fn url(dir: &Path) -> String {
    format!("local:{}", dir.display())
}

/// Starts a process that locks in a directory.
pub(crate) fn worker(dir: &Path) -> Worker {
    Worker::start(WORKER, &url(dir))
}

pub(crate) async fn keeper(dir: &Path) -> Keeper {
    Keeper::new(Local::at(dir)).await.expect("a keeper opens")
}

/// Asks until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until this many wait for a name.
pub(crate) async fn waiters(keeper: &Keeper, name: &str, count: usize) -> Status {
    let status = async || keeper.status(name).await.expect("a status");
    until("waiters", async || status().await.waiters.len() == count).await;
    status().await
}
