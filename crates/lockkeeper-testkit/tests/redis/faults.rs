//! Servers and connections that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Cause, Guard, Keeper, LockOptions, Released, State};
use lockkeeper_testkit::history::Recorder;
use lockkeeper_testkit::proxy::{Proxy, Weather};
use lockkeeper_testkit::server::RedisServer;
use lockkeeper_testkit::{eventually, within};

fn lease(millis: u64) -> LockOptions {
    LockOptions::default()
        .with_lease(Duration::from_millis(millis))
        .with_wait(Duration::from_secs(20))
}

async fn locked(keeper: &Keeper, name: &str, options: LockOptions) -> Guard {
    let mutex = keeper.mutex(name).with_options(options);
    within(Duration::from_secs(20), "the lock", mutex.lock()).await.unwrap()
}

/// Waits until the guard is lost, and says how long that took.
async fn until_lost(guard: &Guard, limit: Duration) -> (Cause, Duration) {
    let start = Instant::now();
    let cause = within(limit, "the loss", guard.lost()).await;
    assert!(!guard.is_held());
    (cause, start.elapsed())
}

/// A server that comes back with its disk still has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_a_disk_keeps_the_lock() {
    let mut server = RedisServer::durable();
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    let guard = locked(&keeper, "kept", lease(8000)).await;
    server.restart();
    let renewed = async || guard.verify().await.is_ok();
    assert!(eventually(Duration::from_secs(5), renewed).await, "{:?}", guard.state());
    assert_eq!(guard.state(), State::Held);
    let other = Keeper::connect(&server.url()).await.unwrap();
    assert!(other.mutex("kept").try_lock().await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

/// A server that comes back empty is noticed at the next renewal, and the next
/// token is higher all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_a_disk_loses_the_lock_but_not_the_order_of_tokens() {
    let mut server = RedisServer::start();
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    let guard = locked(&keeper, "lost", lease(6000)).await;
    server.restart();
    // The connection comes back by itself and renews at once.
    let (cause, took) = until_lost(&guard, Duration::from_secs(4)).await;
    assert_eq!(cause, Cause::Expired);
    assert!(took < Duration::from_secs(3), "noticed after {took:?}");
    let next = locked(&keeper, "lost", lease(6000)).await;
    assert!(next.token() > guard.token(), "{} then {}", guard.token(), next.token());
}

/// A frozen server cannot renew: the guard is lost in time, nobody else has
/// the name before, and afterwards everything goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_frozen_past_the_lease_loses_the_lock_in_time() {
    let server = RedisServer::start();
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    let other = Keeper::connect(&server.url()).await.unwrap();
    let guard = locked(&keeper, "frozen", lease(1500)).await;
    let waiter = tokio::spawn(async move { locked(&other, "frozen", lease(1500)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.freeze();
    let (cause, took) = until_lost(&guard, Duration::from_secs(3)).await;
    assert_eq!(cause, Cause::Expired);
    assert!(took < Duration::from_millis(1600), "lost after {took:?}");
    assert!(!waiter.is_finished());
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.thaw();
    let next = within(Duration::from_secs(8), "the waiter", waiter).await.unwrap();
    assert!(next.token() > guard.token() && next.is_held());
}

/// A freeze shorter than the lease is a risk, no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_frozen_for_a_moment_is_ridden_out() {
    let server = RedisServer::start();
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    let guard = locked(&keeper, "moment", lease(4000)).await;
    server.freeze();
    let at_risk = async || guard.state() == State::AtRisk;
    assert!(eventually(Duration::from_millis(2600), at_risk).await, "{:?}", guard.state());
    server.thaw();
    let held = async || guard.state() == State::Held;
    assert!(eventually(Duration::from_secs(3), held).await, "{:?}", guard.state());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

/// A request that was cut off before the server saw it, and one that was cut
/// off after the server had done it: both are found out by asking again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_in_flight_is_found_out_by_asking_again() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let keeper = Keeper::connect(&proxy.url()).await.unwrap();
    let bystander = Keeper::connect(&server.url()).await.unwrap();
    for (round, weather) in
        [Weather::LoseRequest, Weather::LoseReply].into_iter().cycle().take(10).enumerate()
    {
        let name = format!("cut-{round}");
        let start = Instant::now();
        proxy.arm(weather, "EVALSHA");
        let guard = locked(&keeper, &name, lease(30_000)).await;
        assert!(!proxy.is_armed(), "nothing was cut");
        // Not by waiting for the lease: it has 30 seconds.
        assert!(start.elapsed() < Duration::from_secs(3), "{weather:?}: {:?}", start.elapsed());
        let status = bystander.status(&name).await.unwrap();
        assert_eq!(status.holders.len(), 1, "{weather:?}: {status:?}");
        assert_eq!(status.holders[0].token, Some(guard.token()));
        proxy.arm(weather, "EVALSHA");
        assert_eq!(guard.release().await.unwrap(), Released::Released, "{weather:?}");
        let status = bystander.status(&name).await.unwrap();
        assert!(status.holders.is_empty() && status.waiters.is_empty(), "{status:?}");
    }
}

/// A network that swallows everything: at risk, lost in time, and as soon as
/// it is back, locks can be had again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_network_is_noticed_and_left_behind() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let keeper = Keeper::connect(&proxy.url()).await.unwrap();
    let other = Keeper::connect(&server.url()).await.unwrap();
    let guard = locked(&keeper, "silent", lease(1200)).await;
    proxy.set(Weather::Silent);
    let (cause, took) = until_lost(&guard, Duration::from_secs(3)).await;
    assert_eq!(cause, Cause::Expired);
    assert!(took <= Duration::from_millis(1250), "lost after {took:?}");
    // Somebody with a better network has it next, and not before.
    let next = locked(&other, "silent", lease(1200)).await;
    assert!(next.token() > guard.token());
    drop(next);
    proxy.set(Weather::Fair);
    let start = Instant::now();
    let again = locked(&keeper, "silent", lease(1200)).await;
    assert!(again.is_held() && start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

/// A cut connection is made anew by itself, with its pushes, without a command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_come_back_after_an_outage_of_an_idle_keeper() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let keeper = Keeper::connect(&proxy.url()).await.unwrap();
    let subscribers = || {
        let channels = server.cli(&["PUBSUB", "CHANNELS", "lk:push:*"]);
        channels.lines().filter(|line| !line.is_empty()).count()
    };
    assert_eq!(subscribers(), 1);
    proxy.set(Weather::Refuse);
    proxy.cut();
    assert!(eventually(Duration::from_secs(2), async || subscribers() == 0).await);
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.set(Weather::Fair);
    assert!(eventually(Duration::from_secs(2), async || subscribers() == 1).await);
    drop(keeper);
    assert!(eventually(Duration::from_secs(2), async || subscribers() == 0).await);
}

/// Workers that lock one name until told to stop; every stay is taken down.
async fn load(
    url: &str,
    stop: Arc<AtomicBool>,
    recorder: &Recorder,
) -> Vec<tokio::task::JoinHandle<u32>> {
    let mut workers = Vec::new();
    for _ in 0..4 {
        let keeper = Keeper::connect(url).await.unwrap();
        let (stop, recorder) = (stop.clone(), recorder.clone());
        workers.push(tokio::spawn(async move {
            let mutex = keeper.mutex("loaded").with_options(lease(900));
            let mut grants = 0;
            while !stop.load(Ordering::Relaxed) {
                let arrival = recorder.now();
                let guard = mutex.lock().await.unwrap();
                let entry = recorder.enter("loaded", arrival, guard.token());
                tokio::time::sleep(Duration::from_millis(1)).await;
                if guard.is_held() {
                    recorder.leave(entry);
                }
                drop(guard);
                grants += 1;
            }
            grants
        }));
    }
    workers
}

/// Scripts that the server forgot are loaded again; nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_flush_under_load_goes_unnoticed() {
    let server = RedisServer::start();
    let (stop, recorder) = (Arc::new(AtomicBool::new(false)), Recorder::new());
    let workers = load(&server.url(), stop.clone(), &recorder).await;
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(25)).await;
        server.cli(&["SCRIPT", "FLUSH"]);
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        assert!(within(Duration::from_secs(10), "a worker", worker).await.unwrap() > 5);
    }
    recorder.history().check();
}

/// Data that somebody deletes takes the locks with it: their holders learn it
/// at the next renewal, tokens still rise, and nobody waits for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushall_under_load_ends_nothing_but_the_locks() {
    let server = RedisServer::start();
    let (stop, recorder) = (Arc::new(AtomicBool::new(false)), Recorder::new());
    let workers = load(&server.url(), stop.clone(), &recorder).await;
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    for _ in 0..6 {
        let guard = locked(&keeper, "beside", lease(1800)).await;
        server.cli(&["FLUSHALL"]);
        let (cause, took) = until_lost(&guard, Duration::from_secs(2)).await;
        assert_eq!(cause, Cause::Expired);
        // It renews after 600 ms; without an answer it would end near 1800.
        assert!(took < Duration::from_millis(1200), "noticed after {took:?}");
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        assert!(within(Duration::from_secs(10), "a worker", worker).await.unwrap() > 5);
    }
    // Two can be inside at once after this, but never with tokens out of order.
    let mut stays = recorder.entries();
    stays.sort_by_key(|stay| stay.token);
    assert!(stays.windows(2).all(|pair| pair[0].token < pair[1].token), "a token twice");
    let early = stays.windows(2).find(|pair| pair[1].entered < pair[0].entered);
    assert!(early.is_none(), "a later grant with a lower token: {early:?}");
}
