//! Processes that die, and processes that are stopped.

use std::time::{Duration, Instant};

use lockkeeper_testkit::child::Worker;
use lockkeeper_testkit::within;

use crate::kit::{WORKER, keeper, locked, locking, name, server, waiters};

/// A holder that was stopped past its session knows it at its very first look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_knows_at_the_first_look() {
    let server = server().await;
    let mut worker = Worker::start(WORKER, &server.url());
    let name = name("stopped");
    assert!(worker.ask(&format!("lock {name} 5000")).starts_with("granted "));
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
    assert!(worker.ask(&format!("lock {name} 5000")).starts_with("granted "));
}

/// A killed holder is followed after its session, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_is_followed_after_its_session() {
    let server = server().await;
    let mut worker = Worker::start(WORKER, &server.url());
    let name = name("killed");
    let granted = worker.ask(&format!("lock {name} 5000"));
    let keeper = keeper(&[server.port()]).await;
    let waiting = locking(keeper.clone(), &name);
    waiters(&keeper, &name, 1).await;
    worker.kill();
    let start = Instant::now();
    let (guard, _) = within(Duration::from_secs(6), "the next holder", waiting).await.unwrap();
    let waited = start.elapsed();
    assert!((1300..3500).contains(&waited.as_millis()), "{waited:?}");
    assert!(guard.token() > granted["granted ".len()..].parse().unwrap());
}

/// A process that leaves in order takes its session, and so its locks, with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_exits_frees_its_lock_at_once() {
    let server = server().await;
    let mut worker = Worker::start(WORKER, &server.url());
    let name = name("exits");
    assert!(worker.ask(&format!("lock {name} 5000")).starts_with("granted "));
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
    doomed.send(&format!("lock {name} 5000"));
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
