//! Holders that are cut off know that they lost before anybody else holds.

use std::time::{Duration, Instant};

use lockkeeper::{Cause, Guard, Keeper, State};
use lockkeeper_testkit::proxy::{Proxy, Weather};
use lockkeeper_testkit::zookeeper::{Outpost, url};
use lockkeeper_testkit::{eventually, within};

use crate::kit::{Nodes, connect, keeper, locked, locking, name, server, until_lost, verified};

/// The session of these tests, and the same with a write as its heartbeat.
const REST: &str = "/?session=2s&tick=200ms";
const STRICT: &str = "/?session=2s&tick=200ms&strict=yes";

/// Follows a guard whose holder is cut off: it is at risk, then lost, and only
/// then has its successor the lock.
async fn lost_before_the_successor(
    what: &str,
    guard: &Guard,
    successor: tokio::task::JoinHandle<(Guard, Keeper)>,
) {
    let start = Instant::now();
    let mut states = vec![guard.state()];
    let mut lost_after = Duration::ZERO;
    // Looked at without pause: what counts is the very moment of the grant.
    while !successor.is_finished() {
        let state = guard.state();
        if states.last() != Some(&state) {
            states.push(state);
            lost_after = start.elapsed();
        }
        assert!(start.elapsed() < Duration::from_secs(12), "{what}: nobody follows");
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    let followed = start.elapsed();
    assert!(!guard.is_held(), "{what}: two hold after {followed:?}, states {states:?}");
    println!("{what}: lost after {lost_after:?}, followed after {followed:?}, {states:?}");
    assert!(states.contains(&State::AtRisk), "{what}: {states:?}");
    assert_eq!(states.last(), Some(&State::Lost(Cause::Expired)), "{what}");
    let (next, _) = successor.await.unwrap();
    assert!(next.token() > guard.token(), "{what}");
}

/// The member a holder is on is cut off from its leader: it goes on answering
/// reads and pings, also of the holder's own node, and tells nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_cut_off_from_its_leader_loses_its_locks_in_time() {
    let outpost = Outpost::start().await;
    let far = [outpost.member().port()];
    let plain = connect(&url(&far, REST)).await;
    let strict = connect(&url(&far, STRICT)).await;
    let (held, held_strictly) = (locked(&plain, "far").await, locked(&strict, "strict").await);
    let near = connect(&outpost.others()).await;
    let other = connect(&outpost.others()).await;
    // Quiet for a while: renewed by heartbeats alone.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!((held.state(), held_strictly.state()), (State::Held, State::Held));
    let (next, next_strict) = (locking(near.clone(), "far"), locking(other, "strict"));
    crate::kit::waiters(&near, "far", 1).await;
    crate::kit::waiters(&near, "strict", 1).await;
    outpost.cut_off();
    tokio::join!(
        lost_before_the_successor("sync", &held, next),
        lost_before_the_successor("write", &held_strictly, next_strict),
    );
    // The member is back: the same keepers lock again, with new sessions.
    outpost.reconnect();
    let start = Instant::now();
    for (keeper, name) in [(&plain, "far"), (&strict, "strict")] {
        let again = locked(keeper, name).await;
        assert!(again.token() > held.token());
        assert!(verified(&again, Duration::from_secs(5)).await);
    }
    println!("the keepers lock again after {:?}", start.elapsed());
}

/// A network that swallows everything; then the session is over, and the
/// keeper makes a new one for new claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_loses_the_lock_in_time_and_the_keeper_goes_on() {
    let server = server().await;
    for (what, rest) in [("sync", REST), ("write", STRICT)] {
        let proxy = Proxy::start(server.port()).await;
        let keeper = connect(&url(&[proxy.port()], rest)).await;
        let near = crate::kit::keeper(&[server.port()]).await;
        let (name, beside) = (name("hole"), name("beside"));
        let guard = locked(&keeper, &name).await;
        let second = locked(&keeper, &beside).await;
        let nodes = Nodes::of(&server).await;
        let session = owner(&nodes, &name).await;
        let successor = locking(near.clone(), &name);
        crate::kit::waiters(&near, &name, 1).await;
        proxy.set(Weather::Silent);
        lost_before_the_successor(what, &guard, successor).await;
        // All that the session held is lost.
        assert_eq!(second.state(), State::Lost(Cause::Expired));
        nodes.deserted(&format!("/{beside}"), Duration::from_secs(3)).await;
        proxy.cut();
        proxy.set(Weather::Fair);
        let start = Instant::now();
        let again = locked(&keeper, &name).await;
        println!("{what}: locked again after {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
        assert!(again.token() > guard.token() && verified(&again, Duration::from_secs(2)).await);
        assert_ne!(owner(&nodes, &name).await, session, "a session that was over was used again");
        // The old guards do not come back to life, nor free the new one.
        assert!(!guard.is_held() && !second.is_held());
        drop((guard, second));
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(again.verify().await.is_ok() && again.is_held());
    }
}

/// The session that has the one claim below a name.
async fn owner(nodes: &Nodes, name: &str) -> i64 {
    let path = format!("/{name}");
    let claims = nodes.claims(&path).await;
    assert_eq!(claims.len(), 1, "{claims:?}");
    let stat = nodes.0.check_stat(&format!("{path}/{}", claims[0])).await.unwrap().unwrap();
    stat.ephemeral_owner
}

/// A session that somebody else ends takes the locks with it; that is told at
/// once, not after the time-out, and the next claim has a new session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_ended_is_told_and_replaced() {
    let server = server().await;
    let keeper = connect(&url(&[server.port()], "/?session=10s&tick=200ms")).await;
    let (name, nodes) = (name("ended"), Nodes::of(&server).await);
    let guard = locked(&keeper, &name).await;
    // Without its node there is no lock, whoever removed it.
    let node = format!("/{name}/{}", nodes.claims(&format!("/{name}")).await[0]);
    nodes.0.delete(&node, None).await.unwrap();
    let (cause, took) = until_lost(&guard, Duration::from_secs(8)).await;
    println!("{cause:?} after {took:?}");
    assert!(matches!(cause, Cause::TakenOver | Cause::Broken { .. }), "{cause:?}");
    let next = locked(&keeper, &name).await;
    assert!(next.token() > guard.token());
}

/// An outage shorter than the session is a risk, no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_outage_is_ridden_out() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await;
    let rest = "/?session=8s&tick=200ms";
    let keeper = connect(&url(&[proxy.port()], rest)).await;
    let guard = locked(&keeper, &name("short")).await;
    proxy.set(Weather::Refuse);
    proxy.cut();
    let at_risk = async || guard.state() == State::AtRisk;
    assert!(eventually(Duration::from_secs(5), at_risk).await, "{:?}", guard.state());
    proxy.set(Weather::Fair);
    let held = async || guard.state() == State::Held;
    assert!(eventually(Duration::from_secs(5), held).await, "{:?}", guard.state());
    guard.verify().await.unwrap();
}

/// Idle keepers with a lock do not write, unless they are strict; and no
/// heartbeat wakes whoever waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_strict_heartbeats_write() {
    let server = lockkeeper_testkit::zookeeper::ZooKeeper::start();
    let writes = || {
        let answer = server.word("srvr");
        let zxid = answer.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).unwrap();
        u64::from_str_radix(zxid, 16).unwrap()
    };
    for (rest, strict) in [(REST, false), (STRICT, true)] {
        let holder = connect(&url(&[server.port()], rest)).await;
        let waiter = keeper(&[server.port()]).await;
        let name = name("idle");
        let guard = locked(&holder, &name).await;
        let waiting = locking(waiter, &name);
        crate::kit::waiters(&holder, &name, 1).await;
        let before = writes();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let written = writes() - before;
        println!("strict {strict}: {written} writes in two seconds");
        assert_eq!(written > 2, strict, "{written} writes in two seconds");
        assert!(written < 20, "{written} writes in two seconds");
        assert!(guard.is_held() && !waiting.is_finished());
        drop(guard);
        drop(within(Duration::from_secs(2), "the waiter", waiting).await.unwrap());
    }
}

/// A keeper that had nothing to do for long knows that its session is alive
/// as well as one that is busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_keeper_locks_as_well_as_a_busy_one() {
    let server = server().await;
    let keeper = connect(&url(&[server.port()], REST)).await;
    tokio::time::sleep(Duration::from_millis(4500)).await;
    let name = name("idle");
    let guard = locked(&keeper, &name).await;
    let valid = guard.valid_for();
    // At the first try: one that cannot be trusted is given back and repeated.
    let claims = Nodes::of(&server).await.claims(&format!("/{name}")).await;
    assert!(claims.len() == 1 && claims[0].ends_with("-lock-0000000000"), "{claims:?}");
    assert!(valid > Duration::from_millis(900), "held for {valid:?} only");
    assert!(valid < Duration::from_secs(2), "held for {valid:?} of a session of two seconds");
    assert_eq!(guard.state(), State::Held);
}
