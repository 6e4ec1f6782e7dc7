//! Processes that die, and processes that are stopped.

use std::time::{Duration, Instant};

use lockkeeper::{Keeper, LockOptions};
use lockkeeper_testkit::child::Worker;
use lockkeeper_testkit::server::RedisServer;
use lockkeeper_testkit::{eventually, within};

const WORKER: &str = env!("CARGO_BIN_EXE_lk-worker");

fn patient(lease: Duration) -> LockOptions {
    LockOptions::default().with_lease(lease).with_wait(Duration::from_secs(20))
}

/// Waits until this many wait for a name.
async fn waiters(keeper: &Keeper, name: &str, count: usize) {
    let waiting = async || keeper.status(name).await.unwrap().waiters.len() == count;
    assert!(eventually(Duration::from_secs(5), waiting).await, "not {count} waiters");
}

/// A killed holder is followed after its lease, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_frees_the_lock() {
    let server = RedisServer::start();
    let mut worker = Worker::start(WORKER, &server.url());
    let token = worker.lock("killed", 1500);
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    let mutex = keeper.mutex("killed").with_options(patient(Duration::from_millis(1500)));
    let waiter = tokio::spawn(async move { mutex.lock().await.unwrap() });
    waiters(&keeper, "killed", 1).await;
    worker.kill();
    let start = Instant::now();
    let guard = within(Duration::from_secs(5), "the next holder", waiter).await.unwrap();
    // The last renewal was at most a third of the lease ago.
    let waited = start.elapsed();
    assert!(
        waited > Duration::from_millis(700) && waited < Duration::from_millis(2300),
        "{waited:?}"
    );
    assert!(guard.token() > token);
}

/// A holder that was stopped past its lease knows it at its very first look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_knows_at_the_first_look() {
    let server = RedisServer::start();
    let mut worker = Worker::start(WORKER, &server.url());
    worker.lock("stopped", 1000);
    assert_eq!(worker.ask("watch"), "watching");
    tokio::time::sleep(Duration::from_millis(600)).await;
    worker.stop();
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    let mutex = keeper.mutex("stopped").with_options(patient(Duration::from_secs(5)));
    let guard = within(Duration::from_secs(5), "the next holder", mutex.lock()).await.unwrap();
    worker.go_on();
    let first = worker.line(Duration::from_secs(5));
    assert!(first.ends_with("held false"), "{first}");
    assert_eq!(worker.ask("state"), "lost expired");
    assert!(worker.ask("release").contains("AlreadyLost"));
    // Its release has not freed the later holder.
    guard.verify().await.unwrap();
}

/// A waiter killed at the head of the queue: the next is served within 3 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_waiter_is_passed_over() {
    let server = RedisServer::start();
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    let options = patient(Duration::from_secs(10));
    let guard = keeper.mutex("queue").with_options(options.clone()).lock().await.unwrap();
    let mut doomed = Worker::start(WORKER, &server.url());
    doomed.want("queue", 10_000);
    waiters(&keeper, "queue", 1).await;
    let other = Keeper::connect(&server.url()).await.unwrap();
    let mutex = other.mutex("queue").with_options(options);
    let next = tokio::spawn(async move { mutex.lock().await.unwrap() });
    waiters(&keeper, "queue", 2).await;
    doomed.kill();
    let start = Instant::now();
    drop(guard);
    let next = within(Duration::from_secs(5), "the next waiter", next).await.unwrap();
    assert!(next.is_held());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}
