//! Starts engines for tests: one function per engine, each returning a
//! [`Stage`] that ends what it started.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::fleet::{RedisCluster, Replicated, Sentinels, TlsServer};
use crate::server::RedisServer;
use crate::sql::{Flavour, SqlServer};
use crate::stage::Stage;
use crate::zookeeper::{Ensemble, ZooKeeper};

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

/// A ZooKeeper server.
pub async fn zookeeper() -> Stage {
    let server = zookeeper_server();
    Stage::new(server.url(), server).await
}

/// The ZooKeeper server that this process shares.
pub fn zookeeper_server() -> Arc<ZooKeeper> {
    static SHARED: Mutex<Weak<ZooKeeper>> = Mutex::new(Weak::new());
    kept(shared(&SHARED, ZooKeeper::start))
}

/// A ZooKeeper ensemble of three members.
pub async fn zookeeper_ensemble() -> Stage {
    static SHARED: Mutex<Weak<Ensemble>> = Mutex::new(Weak::new());
    let ensemble = kept(shared(&SHARED, Ensemble::start));
    Stage::new(ensemble.url(), ensemble).await
}

/// A MariaDB server, with leases in rows.
pub async fn mariadb() -> Stage {
    sql(Flavour::MariaDb, "").await
}

/// A PostgreSQL server, with leases in rows.
pub async fn postgres() -> Stage {
    sql(Flavour::Postgres, "").await
}

/// A MariaDB server, with row locks of open transactions.
pub async fn mariadb_session() -> Stage {
    sql(Flavour::MariaDb, "?strategy=session&connections=100").await
}

/// A PostgreSQL server, with row locks of open transactions.
pub async fn postgres_session() -> Stage {
    sql(Flavour::Postgres, "?strategy=session&connections=100").await
}

/// A database of its own on a server that overlapping cases share.
async fn sql(flavour: Flavour, parameters: &str) -> Stage {
    let server = sql_server(flavour);
    let url = server.url(&server.database()) + parameters;
    Stage::new(url, server).await
}

/// A database server that overlapping cases share.
pub fn sql_server(flavour: Flavour) -> Arc<SqlServer> {
    static MARIADB: Mutex<Weak<SqlServer>> = Mutex::new(Weak::new());
    static POSTGRES: Mutex<Weak<SqlServer>> = Mutex::new(Weak::new());
    match flavour {
        Flavour::MariaDb => shared(&MARIADB, || SqlServer::start(flavour)),
        Flavour::Postgres => shared(&POSTGRES, || SqlServer::start(flavour)),
    }
}

/// What takes seconds to start is started once for the cases that overlap;
/// the last of them ends it. Cases use names of their own.
pub(crate) fn shared<T>(place: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    place.upgrade().unwrap_or_else(|| {
        let started = Arc::new(start());
        *place = Arc::downgrade(&started);
        started
    })
}

/// Keeps something up until this process leaves: virtual machines are slow to
/// start, and cases that do not overlap can share them too.
pub(crate) fn kept<T: Send + Sync + 'static>(shared: Arc<T>) -> Arc<T> {
    static KEPT: Mutex<Vec<Arc<dyn Any + Send + Sync>>> = Mutex::new(Vec::new());
    extern "C" fn end() {
        let kept = std::mem::take(&mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner));
        drop(kept);
    }
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.is_empty() {
        // SAFETY: the function stays where it is and needs nothing of the
        // thread that calls it.
        unsafe { libc::atexit(end) };
    }
    let known =
        kept.iter().any(|other| std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(&shared)));
    if !known {
        kept.push(shared.clone());
    }
    shared
}
