//! What the tests here share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Cause, Guard, Keeper, LockOptions};
use lockkeeper_testkit::zookeeper::{USUAL, ZooKeeper, url};
use lockkeeper_testkit::{eventually, start, within};
use zookeeper_client as zk;

/// The program that takes locks in another process.
pub(crate) const WORKER: &str = env!("CARGO_BIN_EXE_lk-worker");

/// The shared server; whoever uses it uses names of its own.
pub(crate) async fn server() -> Arc<ZooKeeper> {
    tokio::task::spawn_blocking(start::zookeeper_server).await.expect("the server starts")
}

/// Connects to the servers at these ports with the usual session.
pub(crate) async fn keeper(ports: &[u16]) -> Keeper {
    connect(&url(ports, USUAL)).await
}

pub(crate) async fn connect(url: &str) -> Keeper {
    within(Duration::from_secs(20), "connecting", Keeper::connect(url)).await.expect("a keeper")
}

/// Options of somebody who waits, but not for ever.
pub(crate) fn patient() -> LockOptions {
    LockOptions::default().with_wait(Duration::from_secs(20))
}

pub(crate) async fn locked(keeper: &Keeper, name: &str) -> Guard {
    let mutex = keeper.mutex(name).with_options(patient());
    within(Duration::from_secs(25), "the lock", mutex.lock()).await.expect("the lock")
}

/// Locks in the background; the keeper comes back with the guard.
pub(crate) fn locking(keeper: Keeper, name: &str) -> tokio::task::JoinHandle<(Guard, Keeper)> {
    let name = name.to_owned();
    tokio::spawn(async move { (locked(&keeper, &name).await, keeper) })
}

/// Waits until this many wait for a name.
pub(crate) async fn waiters(keeper: &Keeper, name: &str, count: usize) {
    let waiting = async || keeper.status(name).await.is_ok_and(|it| it.waiters.len() == count);
    assert!(eventually(Duration::from_secs(10), waiting).await, "not {count} wait for {name}");
}

/// Waits until the guard is lost, and says why and how long that took.
pub(crate) async fn until_lost(guard: &Guard, limit: Duration) -> (Cause, Duration) {
    let start = Instant::now();
    let cause = within(limit, "the loss", guard.lost()).await;
    assert!(!guard.is_held());
    (cause, start.elapsed())
}

/// Waits until the engine says that the guard holds.
pub(crate) async fn verified(guard: &Guard, limit: Duration) -> bool {
    eventually(limit, async || guard.verify().await.is_ok()).await
}

/// The nodes of a server, as a bystander sees them.
pub(crate) struct Nodes(pub(crate) zk::Client);

impl Nodes {
    pub(crate) async fn of(server: &ZooKeeper) -> Self {
        let connector = zk::Client::connector().with_session_timeout(Duration::from_secs(20));
        let place = format!("127.0.0.1:{}", server.port());
        Nodes(connector.connect(&place).await.expect("a bystander's session"))
    }

    /// Makes a node that stays, with its parents.
    pub(crate) async fn make(&self, path: &str) {
        let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
        match self.0.mkdir(path, &options).await {
            Ok(()) | Err(zk::Error::NodeExists) => {}
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// The children of a node; none if it is not there.
    pub(crate) async fn children(&self, path: &str) -> Vec<String> {
        match self.0.list_children(path).await {
            Ok(children) => children,
            Err(zk::Error::NoNode) => Vec::new(),
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// The nodes of claims below a name, also of those on a semaphore.
    pub(crate) async fn claims(&self, path: &str) -> Vec<String> {
        let mut found = Vec::new();
        for dir in [path.to_owned(), format!("{path}/locks"), format!("{path}/leases")] {
            let children = self.children(&dir).await;
            found.extend(children.into_iter().filter(|node| node.starts_with("_c_")));
        }
        found
    }

    /// Waits until nobody has a claim below a name.
    pub(crate) async fn deserted(&self, path: &str, limit: Duration) {
        if !eventually(limit, async || self.claims(path).await.is_empty()).await {
            panic!("left behind under {path}: {:?}", self.claims(path).await);
        }
    }
}

/// A name nobody has used on the shared server.
pub(crate) fn name(label: &str) -> String {
    format!("{label}-{:08x}", fastrand::u32(..))
}
