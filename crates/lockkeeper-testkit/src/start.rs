//! Starts engines for tests: one function per engine, each returning a
//! [`Stage`] that ends what it started.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::server::RedisServer;
use crate::stage::Stage;

/// An in-process engine that nobody else in the process uses.
pub async fn memory() -> Stage {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    Stage::new(format!("memory:stage-{number}"), ()).await
}

/// A Redis server of its own, which keeps nothing on disk.
pub async fn redis() -> Stage {
    let server = RedisServer::start();
    Stage::new(server.url(), server).await
}
