//! Masters that die and slots that move, while locks are held.

use std::time::{Duration, Instant};

use lockkeeper::{Cause, Guard, Keeper, LockOptions, Released, State};
use lockkeeper_testkit::fleet::{RedisCluster, Sentinels};
use lockkeeper_testkit::server::free_port;
use lockkeeper_testkit::{eventually, within};

fn lease(seconds: u64) -> LockOptions {
    let wait = Duration::from_secs(30);
    LockOptions::default().with_lease(Duration::from_secs(seconds)).with_wait(wait)
}

async fn locked(keeper: &Keeper, name: &str, options: LockOptions) -> Guard {
    let mutex = keeper.mutex(name).with_options(options);
    within(Duration::from_secs(30), "the lock", mutex.lock()).await.unwrap()
}

/// Waits until the engine says that the guard holds.
async fn verified(guard: &Guard, limit: Duration) -> bool {
    eventually(limit, async || guard.verify().await.is_ok()).await
}

/// A grant that reached the replica outlives its master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_keeps_what_was_replicated() {
    let mut fleet = Sentinels::start();
    let keeper = Keeper::connect(&fleet.url()).await.unwrap();
    let guard = locked(&keeper, "kept", lease(20)).await;
    let old = fleet.master();
    let other = 1 - old;
    let copied = async || fleet.servers[other].cli(&["EXISTS", "lk:{kept}"]) == "1";
    assert!(eventually(Duration::from_secs(5), copied).await, "not replicated");
    fleet.servers[old].kill();
    let start = Instant::now();
    assert!(verified(&guard, Duration::from_secs(15)).await, "{:?}", guard.state());
    println!("renewed by the new master {:?} after the old one died", start.elapsed());
    assert_eq!((fleet.master(), guard.state()), (other, State::Held));
    let late = Keeper::connect(&fleet.url()).await.unwrap();
    assert!(late.mutex("kept").try_lock().await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(locked(&late, "kept", lease(5)).await.is_held());
}

/// A grant that did not reach the replica is lost with its master: two can
/// hold for a moment, the second token is larger, and the first one is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_that_forgot_a_grant_is_told() {
    let mut fleet = Sentinels::start();
    let keeper = Keeper::connect(&fleet.url()).await.unwrap();
    let rival = Keeper::connect(&fleet.url()).await.unwrap();
    let old = fleet.master();
    // The replica follows somebody who is not there.
    fleet.servers[1 - old].cli(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    let guard = locked(&keeper, "forgotten", lease(20)).await;
    fleet.servers[old].kill();
    let second = locked(&rival, "forgotten", lease(20)).await;
    assert!(second.token() > guard.token(), "{} then {}", guard.token(), second.token());
    let cause = within(Duration::from_secs(10), "the loss", guard.lost()).await;
    assert!(matches!(cause, Cause::TakenOver | Cause::Expired), "{cause:?}");
    assert!(!guard.is_held());
    second.verify().await.unwrap();
}

/// A node's death moves its slots to its replica, and with them the locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_node_that_dies_is_followed() {
    let mut cluster = RedisCluster::start();
    let keeper = Keeper::connect(&cluster.url()).await.unwrap();
    let guard = locked(&keeper, "slot", lease(20)).await;
    let elsewhere = locked(&keeper, "another", lease(20)).await;
    let old = cluster.master_of("lk:{slot}");
    assert_ne!(old, cluster.master_of("lk:{another}"), "the names must be on two nodes");
    // The replica has it within a moment.
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.nodes[old].kill();
    let start = Instant::now();
    // The other shard does not suffer meanwhile.
    elsewhere.verify().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(verified(&guard, Duration::from_secs(18)).await, "{:?}", guard.state());
    println!("renewed by the new master {:?} after the old one died", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(8), "found after {:?}", start.elapsed());
    assert_eq!(guard.state(), State::Held);
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    drop(locked(&keeper, "slot", lease(5)).await);
}

/// A slot that moves takes its locks along, and its waiters are woken from
/// where it is then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_takes_its_locks_along() {
    let cluster = RedisCluster::start();
    let (one, two) = (
        Keeper::connect(&cluster.url()).await.unwrap(),
        Keeper::connect(&cluster.url()).await.unwrap(),
    );
    let guard = locked(&one, "moving", lease(20)).await;
    let (from, to) = (cluster.master_of("lk:{moving}"), {
        let other = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|key| cluster.master_of(key));
        let from = cluster.master_of("lk:{moving}");
        other.into_iter().find(|&node| node != from).expect("another master")
    });
    let waiter = tokio::spawn(async move { (locked(&two, "moving", lease(20)).await, two) });
    let waiting = async || one.status("moving").await.is_ok_and(|s| s.waiters.len() == 1);
    assert!(eventually(Duration::from_secs(5), waiting).await);
    move_slot(&cluster, "lk:{moving}", from, to);
    assert!(verified(&guard, Duration::from_secs(5)).await, "{:?}", guard.state());
    assert_eq!(guard.state(), State::Held);
    // Long enough for the waiter's beat to find the new place.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let (start, token) = (Instant::now(), guard.token());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let (next, two) = within(Duration::from_secs(5), "the waiter", waiter).await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(500), "not pushed: {:?}", start.elapsed());
    assert!(next.token() > token && next.is_held());
    drop((next, two));
}

/// Moves the slot of a key, with all keys in it, as redis-cli would.
fn move_slot(cluster: &RedisCluster, key: &str, from: usize, to: usize) {
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    let slot = source.cli(&["CLUSTER", "KEYSLOT", key]);
    let (source_id, target_id) =
        (source.cli(&["CLUSTER", "MYID"]), target.cli(&["CLUSTER", "MYID"]));
    assert_eq!(target.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]), "OK");
    assert_eq!(source.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]), "OK");
    // Half moved for a while: the record here, the queue there.
    std::thread::sleep(Duration::from_millis(300));
    let port = target.port().to_string();
    loop {
        let keys = source.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
        let Some(key) = keys.lines().next().filter(|key| !key.is_empty()) else { break };
        source.cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        std::thread::sleep(Duration::from_millis(100));
    }
    for node in [to, from] {
        let node = &cluster.nodes[node];
        assert_eq!(node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]), "OK");
    }
}
