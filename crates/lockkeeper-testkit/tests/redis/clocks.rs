//! A server whose wall clock is stepped.

use std::time::{Duration, Instant};

use lockkeeper::{Keeper, LockOptions, Released, State};
use lockkeeper_testkit::child::Worker;
use lockkeeper_testkit::clock::SteppedClock;
use lockkeeper_testkit::server::RedisServer;
use lockkeeper_testkit::{eventually, within};

const LEASE: Duration = Duration::from_secs(6);

fn options() -> LockOptions {
    LockOptions::default().with_lease(LEASE).with_wait(Duration::from_secs(30))
}

/// The server's wall clock in seconds, as it tells it.
fn wall(server: &RedisServer) -> i64 {
    server.cli(&["TIME"]).lines().next().and_then(|line| line.parse().ok()).expect("a time")
}

/// A step forward ends leases on the server at once. The next in line gets the
/// lock with a larger token; until its next renewal the old holder does not
/// know, which is a third of its lease at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_ends_leases_early_and_truthfully() {
    let clock = SteppedClock::new();
    let server = RedisServer::on(&clock);
    let (one, two) = (
        Keeper::connect(&server.url()).await.unwrap(),
        Keeper::connect(&server.url()).await.unwrap(),
    );
    let first = one.mutex("step").with_options(options()).lock().await.unwrap();
    let kept = one.mutex("kept").with_options(options()).lock().await.unwrap();
    let mutex = two.mutex("step").with_options(options());
    let waiter = tokio::spawn(async move { (mutex.lock().await.unwrap(), Instant::now()) });
    let waiting = async || one.status("step").await.unwrap().waiters.len() == 1;
    assert!(eventually(Duration::from_secs(5), waiting).await);

    let before = wall(&server);
    clock.step_to(600);
    let stepped = Instant::now();
    assert!(wall(&server) >= before + 600, "the server did not notice");
    // The ticket has ended with the lease; a beat finds out and asks anew.
    let (second, entered) =
        within(Duration::from_secs(5), "the next holder", waiter).await.unwrap();
    assert!(entered - stepped < Duration::from_secs(2), "{:?}", entered - stepped);
    assert!(second.token() > first.token());

    let limit = LEASE / 3 + Duration::from_secs(1);
    let lost = async || !first.is_held();
    assert!(eventually(limit, lost).await, "two holders for longer than a third of the lease");
    println!("two held for {:?} of a lease of {LEASE:?}", entered.elapsed());
    let State::Lost(cause) = first.state() else { panic!("{:?}", first.state()) };
    assert!(["expired", "taken_over"].contains(&cause.as_str()), "{cause:?}");
    // Nobody wanted the other, and yet it is lost: it is never revived.
    let gone = async || !kept.is_held();
    assert!(eventually(limit, gone).await, "a lease that is over was revived");

    second.verify().await.unwrap();
    let token = second.token();
    assert_eq!(second.release().await.unwrap(), Released::Released);
    let third = one.mutex("step").with_options(options()).lock().await.unwrap();
    assert!(third.token() > token);
}

/// After a step back nobody loses anything, and tokens go on from the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_loses_nothing_and_tokens_rise() {
    let clock = SteppedClock::new();
    let server = RedisServer::on(&clock);
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    let mutex = keeper.mutex("back").with_options(options().with_lease(Duration::from_secs(2)));
    let guard = mutex.lock().await.unwrap();
    let other = Keeper::connect(&server.url()).await.unwrap();
    let waiting = other.mutex("back").with_options(options());
    let waiter = tokio::spawn(async move { waiting.lock().await.unwrap() });
    let queued = async || keeper.status("back").await.unwrap().waiters.len() == 1;
    assert!(eventually(Duration::from_secs(5), queued).await);

    let before = wall(&server);
    clock.step_to(-3600);
    assert!(wall(&server) < before - 3000, "the server did not notice");
    // Longer than the lease: it is renewed all the while.
    tokio::time::sleep(Duration::from_secs(3)).await;
    guard.verify().await.unwrap();
    let mut token = guard.token();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let next = within(Duration::from_secs(2), "the waiter", waiter).await.unwrap();
    let mut guard = next;
    for _ in 0..3 {
        assert!(guard.token() > token, "{} after {token}", guard.token());
        token = guard.token();
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        guard = mutex.lock().await.unwrap();
    }
}

/// What a dead holder had stays for as much longer as the clock went back, and
/// no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_keeps_what_the_dead_had() {
    let clock = SteppedClock::new();
    let server = RedisServer::on(&clock);
    let mut worker = Worker::start(env!("CARGO_BIN_EXE_lk-worker"), &server.url());
    worker.lock("dead", 1500);
    worker.kill();
    clock.step_to(-5);
    let start = Instant::now();
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    let mutex = keeper.mutex("dead").with_options(options());
    let _guard = within(Duration::from_secs(12), "the next holder", mutex.lock()).await.unwrap();
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(4500) && waited < Duration::from_secs(8), "{waited:?}");
}
