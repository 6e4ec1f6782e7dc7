//! Servers, clocks and connections that fail, under either strategy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Cause, ErrorKind, Keeper, State};
use lockkeeper_testkit::history::Recorder;
use lockkeeper_testkit::proxy::{Proxy, Weather};
use lockkeeper_testkit::sql::{Flavour, Settings, SqlServer};
use lockkeeper_testkit::{eventually, within};
use tokio::task::JoinHandle;

use crate::kit::{Place, Strategy, lease, locked, until_lost};

/// Workers that lock two names until told to stop; every stay is taken down.
async fn load(
    urls: &[String],
    millis: u64,
    stop: &Arc<AtomicBool>,
    recorder: &Recorder,
) -> Vec<JoinHandle<u32>> {
    let mut workers = Vec::new();
    for (number, url) in urls.iter().enumerate() {
        let keeper = Keeper::connect(url).await.unwrap();
        let (stop, recorder) = (stop.clone(), recorder.clone());
        workers.push(tokio::spawn(async move {
            let name = format!("loaded-{}", number % 2);
            let mutex = keeper.mutex(&name).with_options(lease(millis));
            let mut grants = 0;
            while !stop.load(Ordering::Relaxed) {
                let arrival = recorder.now();
                // While the server is away nobody answers; that is no failure.
                let Ok(guard) = mutex.lock().await else { continue };
                let entry = recorder.enter(&name, arrival, guard.token());
                tokio::time::sleep(Duration::from_millis(5)).await;
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

/// A crash of the server under load: what was granted stays granted or is
/// lost, nobody meets anybody, tokens rise, and all goes on by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_under_load_never_grants_twice() {
    for flavour in Flavour::ALL {
        let mut server = SqlServer::durable(flavour);
        let mut loads = Vec::new();
        for strategy in Strategy::ALL {
            let database = server.database();
            let url = server.url(&database) + strategy.parameters();
            let (stop, recorder) = (Arc::new(AtomicBool::new(false)), Recorder::new());
            let urls = vec![url; 4];
            let workers = load(&urls, 1500, &stop, &recorder).await;
            loads.push((strategy, stop, recorder, workers));
        }
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            server = tokio::task::spawn_blocking(move || {
                server.kill();
                server.restart();
                server
            })
            .await
            .unwrap();
            // All of them get on again before the next crash.
            let before: Vec<usize> =
                loads.iter().map(|(_, _, recorder, _)| recorder.entries().len()).collect();
            let going = async || {
                loads
                    .iter()
                    .zip(&before)
                    .all(|((_, _, recorder, _), before)| recorder.entries().len() > before + 4)
            };
            assert!(eventually(Duration::from_secs(20), going).await, "{flavour:?}: stuck");
        }
        for (strategy, stop, recorder, workers) in loads {
            stop.store(true, Ordering::Relaxed);
            for worker in workers {
                let grants = within(Duration::from_secs(40), "a worker", worker).await.unwrap();
                assert!(grants > 3, "{flavour:?} {strategy:?}: only {grants} grants");
            }
            recorder.history().check();
        }
    }
}

/// A lease survives the crash; an open transaction does not, and its holder
/// is told at once. Either way the next token is higher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_keeps_leases_and_ends_sessions() {
    for flavour in Flavour::ALL {
        let mut server = SqlServer::durable(flavour);
        let (leases, sessions) = (server.database(), server.database());
        let leases = Keeper::connect(&(server.url(&leases) + "?connect=5s")).await.unwrap();
        let url = server.url(&sessions) + Strategy::Session.parameters();
        let (one, two) =
            (Keeper::connect(&url).await.unwrap(), Keeper::connect(&url).await.unwrap());
        let kept = locked(&leases, "crash", lease(20_000)).await;
        let lost = locked(&one, "crash", lease(4000)).await;
        let start = Instant::now();
        server.kill();
        let (cause, took) = until_lost(&lost, Duration::from_secs(2)).await;
        assert_eq!(cause, Cause::TakenOver, "{flavour:?}");
        assert!(took < Duration::from_millis(700), "{flavour:?}: told after {took:?}");
        server.restart();
        let renewed = async || kept.verify().await.is_ok();
        assert!(eventually(Duration::from_secs(10), renewed).await, "{:?}", kept.state());
        assert_eq!(kept.state(), State::Held);
        // A holder that was cut off by the crash might not have been told: the
        // name stays closed until its lease would have been over.
        let next = locked(&two, "crash", lease(4000)).await;
        assert!(start.elapsed() >= Duration::from_millis(3900), "{:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
        assert!(next.token() > lost.token());
    }
}

/// Steps of the server's clock: row locks do not care; leases may end early
/// or late, but tokens rise and nobody is stuck.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stepped_clock_never_lowers_a_token_nor_stops_anybody() {
    for flavour in Flavour::ALL {
        let settings = Settings { stepped: true, ..Settings::default() };
        let server = Arc::new(SqlServer::with(flavour, settings));
        for strategy in Strategy::ALL {
            let place = Place::on(server.clone(), strategy);
            let (stop, recorder) = (Arc::new(AtomicBool::new(false)), Recorder::new());
            let workers = load(&vec![place.url(); 4], 1500, &stop, &recorder).await;
            let one = place.keeper().await;
            let held = locked(&one, "held", lease(3000)).await;
            for seconds in [3600, 0, -3600, 0] {
                place.server.step_clock(seconds);
                let before = recorder.entries().len();
                let going = async || recorder.entries().len() > before + 4;
                assert!(eventually(Duration::from_secs(15), going).await, "{place:?}: stuck");
                if strategy == Strategy::Session {
                    assert!(held.is_held(), "{place:?}: lost by the clock");
                    held.verify().await.unwrap();
                }
            }
            stop.store(true, Ordering::Relaxed);
            for worker in workers {
                let grants = within(Duration::from_secs(40), "a worker", worker).await.unwrap();
                // A lease from before a step back may be waited for.
                let stuck = strategy == Strategy::Session && grants <= 3;
                assert!(!stuck, "{place:?}: only {grants} grants");
            }
            if strategy == Strategy::Session {
                recorder.history().check();
            }
            let mut stays = recorder.entries();
            stays.sort_by_key(|stay| (stay.name.clone(), stay.token));
            for pair in stays.windows(2).filter(|pair| pair[0].name == pair[1].name) {
                assert!(pair[0].token < pair[1].token, "{place:?}: a token twice: {pair:?}");
                assert!(pair[0].entered < pair[1].entered, "{place:?}: out of order: {pair:?}");
            }
        }
    }
}

/// A network that swallows everything: at risk, lost in time, followed after
/// that and not before; and locks can be had again when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_is_lost_before_anybody_follows() {
    for place in Place::all() {
        let proxy = Proxy::start(place.server.port()).await;
        let far = Keeper::connect(&place.url_at(proxy.port())).await.unwrap();
        let near = place.keeper().await;
        let guard = Arc::new(locked(&far, "hole", lease(2000)).await);
        let (first, mutex) = (guard.clone(), near.mutex("hole").with_options(lease(2000)));
        let next = tokio::spawn(async move {
            let next = mutex.lock().await.unwrap();
            (next, first.is_held())
        });
        proxy.set(Weather::Silent);
        let at_risk = async || guard.state() == State::AtRisk;
        assert!(eventually(Duration::from_secs(2), at_risk).await, "{place:?}: no warning");
        let (cause, _) = until_lost(&guard, Duration::from_secs(3)).await;
        assert_eq!(cause, Cause::Expired, "{place:?}");
        let (next, both) = within(Duration::from_secs(8), "the next", next).await.unwrap();
        assert!(!both, "{place:?}: two held it at once");
        assert!(next.token() > guard.token());
        drop(next);
        proxy.set(Weather::Fair);
        proxy.cut();
        let start = Instant::now();
        let again = locked(&far, "hole", lease(2000)).await;
        assert!(again.is_held(), "{place:?}");
        assert!(start.elapsed() < Duration::from_secs(8), "{place:?}: {:?}", start.elapsed());
    }
}

/// Connections that are cut: leases ride it out; a row lock is lost at once,
/// and nobody follows before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_is_told_at_once_or_ridden_out() {
    for place in Place::all() {
        place.settled().await;
        let proxy = Proxy::start(place.server.port()).await;
        let far = Keeper::connect(&place.url_at(proxy.port())).await.unwrap();
        let near = place.keeper().await;
        let guard = Arc::new(locked(&far, "cut", lease(10_000)).await);
        let (first, mutex) = (guard.clone(), near.mutex("cut").with_options(lease(10_000)));
        let next = tokio::spawn(async move {
            let next = mutex.lock().await.unwrap();
            (next, first.is_held())
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.cut();
        if place.strategy == Strategy::Lease {
            let renewed = async || guard.verify().await.is_ok();
            assert!(eventually(Duration::from_secs(5), renewed).await, "{:?}", guard.state());
            assert!(!next.is_finished());
            next.abort();
            continue;
        }
        let (cause, took) = until_lost(&guard, Duration::from_secs(2)).await;
        assert_eq!(cause, Cause::TakenOver, "{place:?}");
        assert!(took < Duration::from_millis(500), "{place:?}: told after {took:?}");
        let (next, both) = within(Duration::from_secs(5), "the next", next).await.unwrap();
        assert!(!both, "{place:?}: two held it at once");
        assert!(next.token() > guard.token());
    }
}

/// A frozen server answers nobody: guards are lost in time, and nobody else
/// has the name before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_loses_locks_in_time() {
    for flavour in Flavour::ALL {
        let server = Arc::new(SqlServer::start(flavour));
        for strategy in Strategy::ALL {
            let place = Place::on(server.clone(), strategy);
            let (one, two) = (place.keeper().await, place.keeper().await);
            let guard = locked(&one, "frozen", lease(1500)).await;
            let mutex = two.mutex("frozen").with_options(lease(1500));
            let waiter = tokio::spawn(async move { mutex.lock().await });
            tokio::time::sleep(Duration::from_millis(200)).await;
            place.server.freeze();
            let (cause, took) = until_lost(&guard, Duration::from_secs(3)).await;
            assert_eq!(cause, Cause::Expired, "{place:?}");
            assert!(took < Duration::from_millis(1600), "{place:?}: lost after {took:?}");
            assert!(!waiter.is_finished());
            place.server.thaw();
            let next = within(Duration::from_secs(12), "the waiter", waiter).await.unwrap();
            let next = next.unwrap();
            assert!(next.token() > guard.token() && next.is_held(), "{place:?}");
        }
    }
}

/// The keeper's own limit of connections: said clearly, and nobody who holds
/// is disturbed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_in_use_is_told() {
    for flavour in Flavour::ALL {
        let place = Place::new(flavour, Strategy::Session);
        let keeper = Keeper::connect(&(place.url() + "&connections=2")).await.unwrap();
        let other = place.keeper().await;
        let one = locked(&keeper, "one", lease(5000)).await;
        let busy = locked(&other, "two", lease(5000)).await;
        let mutex = keeper.mutex("two").with_options(lease(5000));
        let waiter = tokio::spawn(async move { mutex.lock().await });
        let waits = async || place.open_transactions() == 3;
        assert!(eventually(Duration::from_secs(3), waits).await);
        for error in [
            keeper.mutex("three").lock().await.map(drop).unwrap_err(),
            keeper.mutex("three").try_lock().await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::TooMany, "{error}");
            assert!(error.to_string().contains("connections="), "{error}");
        }
        one.verify().await.unwrap();
        drop(busy);
        let two = within(Duration::from_secs(5), "the waiter", waiter).await.unwrap().unwrap();
        drop(one);
        let three = async || keeper.mutex("three").try_lock().await.is_ok_and(|got| got.is_some());
        assert!(eventually(Duration::from_secs(3), three).await, "no connection came back");
        drop(two);
    }
}

/// The server's limit: the same, and what is held goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_connection_left_disturbs_no_holder() {
    for flavour in Flavour::ALL {
        let server = Arc::new(SqlServer::start(flavour));
        let place = Place::on(server, Strategy::Session);
        let keeper = place.keeper().await;
        let held = locked(&keeper, "held", lease(2000)).await;
        let sessions = place.server.sessions("");
        match flavour {
            Flavour::MariaDb => {
                let limit = format!("ALTER USER keeper@'%' WITH MAX_USER_CONNECTIONS {sessions}");
                place.server.sql("", &limit)
            }
            Flavour::Postgres => {
                place.server.sql("", &format!("ALTER ROLE keeper CONNECTION LIMIT {sessions}"))
            }
        };
        // A session may be to spare; the second has none.
        let mut told = None;
        let mut guards = Vec::new();
        for number in 0..3 {
            match keeper.mutex(format!("more-{number}")).with_options(lease(2000)).lock().await {
                Ok(guard) => guards.push(guard),
                Err(error) => told = Some(error),
            }
        }
        let error = told.expect("the server has no connection left");
        assert_eq!(error.kind(), ErrorKind::TooMany, "{error}");
        assert!(error.to_string().contains("no connection left"), "{error}");
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(held.state(), State::Held, "{flavour:?}");
        held.verify().await.unwrap();
    }
}
