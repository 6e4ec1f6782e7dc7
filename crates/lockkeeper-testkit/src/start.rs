//! Starts engines for tests: one function per engine, each returning a
//! [`Stage`] that ends what it started.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::fleet::{RedisCluster, Replicated, Sentinels, TlsServer};
use crate::server::RedisServer;
use crate::stage::Stage;

/// An in-process engine that nobody else in the process uses.
pub async fn memory() -> Stage {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    Stage::new(format!("memory:stage-{number}"), ()).await
}

/// The embedded engine in a directory of its own.
pub async fn local() -> Stage {
    let temp = tempfile::tempdir().expect("a directory for the engine");
    Stage::new(format!("local:{}", temp.path().display()), temp).await
}

/// A Redis server of its own, which keeps nothing on disk.
pub async fn redis() -> Stage {
    let server = RedisServer::start();
    Stage::new(server.url(), server).await
}

/// A Redis server that speaks only TLS, to a user limited to our prefix.
pub async fn redis_tls() -> Stage {
    let server = TlsServer::start();
    Stage::new(server.url(), server).await
}

/// A master and its replica, found through three sentinels.
pub async fn redis_sentinel() -> Stage {
    static SHARED: Mutex<Weak<Sentinels>> = Mutex::new(Weak::new());
    let fleet = shared(&SHARED, Sentinels::start);
    Stage::new(fleet.url(), fleet).await
}

/// A master and its replica, which must have every grant.
pub async fn redis_confirm() -> Stage {
    static SHARED: Mutex<Weak<Replicated>> = Mutex::new(Weak::new());
    let fleet = shared(&SHARED, || Replicated::start(1));
    Stage::new(format!("{}?confirm=one", fleet.master.url()), fleet).await
}

/// A cluster of three masters with a replica each.
pub async fn redis_cluster() -> Stage {
    static SHARED: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());
    let cluster = shared(&SHARED, RedisCluster::start);
    Stage::new(cluster.url(), cluster).await
}

/// What takes seconds to start is started once for the cases that overlap;
/// the last of them ends it. Cases use names of their own.
fn shared<T>(place: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    place.upgrade().unwrap_or_else(|| {
        let started = Arc::new(start());
        *place = Arc::downgrade(&started);
        started
    })
}
