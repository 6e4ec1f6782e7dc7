//! How much a lock asks of the server: counted by the server itself.

use std::time::Duration;

use lockkeeper::Keeper;
use lockkeeper_testkit::within;
use lockkeeper_testkit::zookeeper::{ZooKeeper, url};

use crate::kit::{connect, locked, name, patient, waiters};

/// So long that hardly a heartbeat falls into the count.
const REST: &str = "/?session=30s&tick=200ms";

/// How many requests the server has had, but for this one.
fn requests(server: &ZooKeeper) -> u64 {
    server.measure("zk_packets_received")
}

/// Lets `count` keepers wait for one name, and then have it one after the
/// other. Says how many requests each hand-over took.
async fn per_hand_over(server: &ZooKeeper, count: usize) -> f64 {
    let name = name("counted");
    let first = connect(&url(&[server.port()], REST)).await;
    let guard = locked(&first, &name).await;
    let mut waiting = Vec::new();
    for _ in 0..count {
        let keeper: Keeper = connect(&url(&[server.port()], REST)).await;
        let mutex = keeper.mutex(&name).with_options(patient());
        waiting.push(tokio::spawn(async move {
            let _ = mutex.lock().await.unwrap().release().await.unwrap();
            // Its session ends after the count.
            keeper
        }));
    }
    waiters(&first, &name, count).await;
    let before = requests(server);
    drop(guard);
    let mut keepers = Vec::new();
    for waiter in waiting {
        keepers.push(within(Duration::from_secs(20), "a waiter", waiter).await.unwrap());
    }
    let asked = requests(server) - before - 1;
    asked as f64 / (count + 1) as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_asks_the_same_however_many_wait() {
    let server = ZooKeeper::start();
    let mut counts = Vec::new();
    for waiters in [2, 10, 100] {
        let count = per_hand_over(&server, waiters).await;
        println!("{waiters} waiters: {count:.2} requests per hand-over");
        counts.push(count);
    }
    assert!(counts.iter().all(|count| *count < 6.0), "{counts:?}");
    assert!(counts[2] < counts[0] + 1.0, "it grows with the line: {counts:?}");
}

/// A free lock is a create, a look, a delete; a busy one that is only tried
/// writes nothing at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_lock_asks_little_and_a_busy_try_writes_nothing() {
    let server = ZooKeeper::start();
    let keeper = connect(&url(&[server.port()], REST)).await;
    let mutex = keeper.mutex("solo").with_options(patient());
    let _ = mutex.lock().await.unwrap().release().await.unwrap();
    let before = requests(&server);
    for _ in 0..200 {
        let _ = mutex.lock().await.unwrap().release().await.unwrap();
    }
    let each = (requests(&server) - before - 1) as f64 / 200.0;
    println!("{each:.2} requests per lock and release");
    assert!(each < 4.1, "{each} requests per lock and release");
    let written = || {
        let answer = server.word("srvr");
        answer.lines().find(|line| line.starts_with("Zxid: ")).unwrap().to_owned()
    };
    let other = connect(&url(&[server.port()], REST)).await;
    let guard = locked(&keeper, "solo").await;
    let zxid = written();
    for _ in 0..50 {
        assert!(other.mutex("solo").try_lock().await.unwrap().is_none());
    }
    assert_eq!(written(), zxid, "a lock that was only tried wrote something");
    drop(guard);
}

/// A keeper that is closed, and one that is dropped, end their sessions; the
/// server does not have to wait for them to time out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_ends_leaves_no_session() {
    let server = ZooKeeper::start();
    let sessions = || server.measure("zk_global_sessions");
    assert_eq!(sessions(), 0);
    let closed = connect(&url(&[server.port()], REST)).await;
    let dropped = connect(&url(&[server.port()], REST)).await;
    let guard = locked(&closed, "closed").await;
    drop(locked(&dropped, "dropped").await);
    assert_eq!(sessions(), 2);
    closed.close().await.unwrap();
    assert!(!guard.is_held());
    let left = async |count| {
        lockkeeper_testkit::eventually(Duration::from_secs(3), async || sessions() == count).await
    };
    assert!(left(1).await, "{} sessions", sessions());
    drop(dropped);
    assert!(left(0).await, "{} sessions", sessions());
}
