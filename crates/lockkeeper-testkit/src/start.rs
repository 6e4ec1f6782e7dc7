//! Starts engines for tests: one function per engine, each returning a
//! [`Stage`] that ends what it started.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::fleet::{RedisCluster, Sentinels, TlsServer};
use crate::server::RedisServer;
use crate::sql::{Flavour, SqlServer};
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

/// A cluster of three masters with a replica each.
pub async fn redis_cluster() -> Stage {
    static SHARED: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());
    let cluster = shared(&SHARED, RedisCluster::start);
    Stage::new(cluster.url(), cluster).await
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
fn shared<T>(place: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    place.upgrade().unwrap_or_else(|| {
        let started = Arc::new(start());
        *place = Arc::downgrade(&started);
        started
    })
}
