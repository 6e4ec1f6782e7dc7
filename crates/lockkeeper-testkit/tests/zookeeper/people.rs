//! Processes that die, and processes that are stopped.

use std::time::{Duration, Instant};

use lockkeeper_testkit::child::Worker;
use lockkeeper_testkit::{eventually, within};

use crate::kit::{Nodes, WORKER, keeper, locked, locking, name, server, waiters};

/// A holder that was stopped past its session knows it at its very first look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_knows_at_the_first_look() {
    let server = server().await;
    let mut worker = Worker::start(WORKER, &server.url());
    let name = name("stopped");
    worker.lock(&name, 5000);
    assert_eq!(worker.ask("watch"), "watching");
    tokio::time::sleep(Duration::from_millis(600)).await;
    worker.stop();
    let keeper = keeper(&[server.port()]).await;
    let guard = locked(&keeper, &name).await;
    worker.go_on();
    let first = worker.line(Duration::from_secs(5));
    assert!(first.ends_with("held false"), "{first}");
    assert_eq!(worker.ask("state"), "lost expired");
    assert!(worker.ask("release").contains("AlreadyLost"));
    // Its release has not freed the later holder, and it can lock again.
    guard.verify().await.unwrap();
    drop(guard);
    worker.lock(&name, 5000);
}

/// A killed holder is followed after its session, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_is_followed_after_its_session() {
    let server = server().await;
    let mut worker = Worker::start(WORKER, &server.url());
    let name = name("killed");
    let token = worker.lock(&name, 5000);
    let keeper = keeper(&[server.port()]).await;
    let waiting = locking(keeper.clone(), &name);
    waiters(&keeper, &name, 1).await;
    worker.kill();
    let start = Instant::now();
    let (guard, _) = within(Duration::from_secs(6), "the next holder", waiting).await.unwrap();
    let waited = start.elapsed();
    assert!((1300..3500).contains(&waited.as_millis()), "{waited:?}");
    assert!(guard.token() > token);
}

/// The lock-delay of a killed holder begins when its session has ended, for
/// who waits already and for who comes later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_keeps_the_name_closed_for_its_lock_delay() {
    let server = server().await;
    let (keeper, other) = (keeper(&[server.port()]).await, keeper(&[server.port()]).await);
    let nodes = Nodes::of(&server).await;
    let delay = Duration::from_millis(1500);
    for waits in [true, false] {
        let name = name("delay");
        let mut worker = Worker::start(WORKER, &server.url());
        worker.send(&format!("lock {name} 5000 {}", delay.as_millis()));
        let (token, _) = worker.granted();
        let waiting = waits.then(|| locking(keeper.clone(), &name));
        waiters(&keeper, &name, usize::from(waits)).await;
        worker.kill();
        let path = format!("/{name}");
        let ended = async || nodes.claims(&path).await.len() == usize::from(waits);
        assert!(eventually(Duration::from_secs(6), ended).await, "the session does not end");
        let start = Instant::now();
        let waiting = waiting.unwrap_or_else(|| locking(keeper.clone(), &name));
        waiters(&other, &name, 1).await;
        let status = other.status(&name).await.unwrap();
        assert!(status.holders.is_empty() && !status.closed_for.is_zero(), "{status:?}");
        let closed = other.mutex(&name).try_lock().await.unwrap().is_none();
        assert!(closed, "waiting: {waits}");
        let next = within(Duration::from_secs(6), "the next holder", waiting).await.unwrap();
        let closed = start.elapsed();
        // We may have seen the end a little later than who waited for it.
        let least = delay - Duration::from_millis(300);
        assert!(closed >= least, "waiting: {waits}: closed for {closed:?} only");
        assert!(next.0.token() > token);
    }
}

/// A process that leaves in order takes its session, and so its locks, with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_exits_frees_its_lock_at_once() {
    let server = server().await;
    let mut worker = Worker::start(WORKER, &server.url());
    let name = name("exits");
    worker.lock(&name, 5000);
    let keeper = keeper(&[server.port()]).await;
    let waiting = locking(keeper.clone(), &name);
    waiters(&keeper, &name, 1).await;
    let start = Instant::now();
    worker.send("exit");
    drop(within(Duration::from_secs(3), "the next holder", waiting).await.unwrap());
    assert!(start.elapsed() < Duration::from_millis(1200), "{:?}", start.elapsed());
}

/// A waiter that is killed is passed over when its session ends; whoever
/// watched it is next, but has no lock by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_waiter_is_passed_over() {
    let server = server().await;
    let (keeper, other) = (keeper(&[server.port()]).await, keeper(&[server.port()]).await);
    let name = name("queue");
    let guard = locked(&keeper, &name).await;
    let mut doomed = Worker::start(WORKER, &server.url());
    doomed.want(&name, 5000);
    waiters(&keeper, &name, 1).await;
    let next = locking(other, &name);
    waiters(&keeper, &name, 2).await;
    doomed.kill();
    let start = Instant::now();
    waiters(&keeper, &name, 1).await;
    assert!(start.elapsed() < Duration::from_millis(3500), "{:?}", start.elapsed());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!next.is_finished() && guard.is_held());
    let token = guard.token();
    drop(guard);
    let (next, _) = within(Duration::from_secs(1), "the next waiter", next).await.unwrap();
    assert!(next.is_held() && next.token() > token);
}
