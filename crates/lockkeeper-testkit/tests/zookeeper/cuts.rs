//! Connections that are cut, at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::Released;
use lockkeeper_testkit::history::Recorder;
use lockkeeper_testkit::proxy::{Proxy, Weather};
use lockkeeper_testkit::within;
use lockkeeper_testkit::zookeeper::url;

use crate::kit::{Nodes, connect, locked, name, patient, server};

/// Long enough that no session ends in these tests.
const REST: &str = "/?session=10s&tick=200ms";

/// A request that was cut off before the server saw it, and one that was cut
/// off after the server had done it: both are found out by asking again, with
/// the same session, and nothing is counted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_cut_in_flight_is_found_out_by_asking_again() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await;
    let keeper = connect(&url(&[proxy.port()], REST)).await;
    let nodes = Nodes::of(&server).await;
    let weathers = [Weather::LoseRequest, Weather::LoseReply];
    for weather in weathers.into_iter().cycle().take(6) {
        let name = name("cut");
        let path = format!("/{name}");
        let start = Instant::now();
        // The word is in every request about a node of a claim.
        proxy.arm(weather, "-lock-");
        let guard = locked(&keeper, &name).await;
        assert!(!proxy.is_armed(), "nothing was cut");
        assert_eq!(nodes.claims(&path).await.len(), 1, "{weather:?}");
        let node = format!("{path}/{}", nodes.claims(&path).await[0]);
        let stat = nodes.0.check_stat(&node).await.unwrap().unwrap();
        assert_eq!(u64::try_from(stat.czxid).unwrap(), guard.token().get());
        proxy.arm(weather, "-lock-");
        let released = within(Duration::from_secs(8), "the release", guard.release()).await;
        assert_eq!(released.unwrap(), Released::Released, "{weather:?}");
        assert!(!proxy.is_armed(), "no release was cut");
        assert!(nodes.claims(&path).await.is_empty(), "{weather:?}");
        // Not by waiting for the session to end.
        assert!(start.elapsed() < Duration::from_secs(7), "{weather:?}: {:?}", start.elapsed());
    }
}

/// Three keepers lock one name while all connections are cut again and again:
/// no two inside, tokens rise, and no node is left while the sessions live on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_cuts_leave_no_orphan_and_let_no_two_in() {
    let seed = lockkeeper_testkit::seed();
    let server = server().await;
    let proxy = Arc::new(Proxy::start(server.port()).await);
    let (name, recorder) = (name("random"), Recorder::new());
    let over = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    let mut keepers = Vec::new();
    for _ in 0..3 {
        let keeper = connect(&url(&[proxy.port()], REST)).await;
        keepers.push(keeper.clone());
        let (name, recorder, over) = (name.clone(), recorder.clone(), over.clone());
        workers.push(tokio::spawn(async move {
            let mutex = keeper.mutex(&name).with_options(patient());
            let mut grants = 0;
            while !over.load(Ordering::Relaxed) {
                let arrival = recorder.now();
                let guard = mutex.lock().await.expect("the lock");
                let entry = recorder.enter(&name, arrival, guard.token());
                tokio::task::yield_now().await;
                if guard.is_held() {
                    recorder.leave(entry);
                }
                drop(guard);
                grants += 1;
            }
            grants
        }));
    }
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(random.u64(20..200))).await;
        proxy.cut();
    }
    over.store(true, Ordering::Relaxed);
    let mut grants = 0;
    for worker in workers {
        grants += within(Duration::from_secs(25), "a worker", worker).await.unwrap();
    }
    let history = recorder.history();
    println!("{grants} grants with 40 cuts, {} stays seen", history.total());
    assert!(grants > 100, "hardly anything was granted: {grants}");
    history.check();
    // The sessions still live: whatever is left now was forgotten.
    let nodes = Nodes::of(&server).await;
    nodes.deserted(&format!("/{name}"), Duration::from_secs(8)).await;
    drop(keepers);
}

/// A waiter whose connection was away while its turn came is served when it
/// is back, in its old place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_came_during_an_outage_is_not_missed() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await;
    let (away, here) =
        (connect(&url(&[proxy.port()], REST)).await, connect(&url(&[server.port()], REST)).await);
    let name = name("turn");
    let guard = locked(&here, &name).await;
    let first = crate::kit::locking(away, &name);
    crate::kit::waiters(&here, &name, 1).await;
    proxy.set(Weather::Refuse);
    proxy.cut();
    let second = crate::kit::locking(here.clone(), &name);
    crate::kit::waiters(&here, &name, 2).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!first.is_finished() && !second.is_finished());
    proxy.set(Weather::Fair);
    let (first, _away) = within(Duration::from_secs(5), "the turn", first).await.unwrap();
    assert!(first.is_held() && !second.is_finished());
    let token = first.token();
    assert_eq!(first.release().await.unwrap(), Released::Released);
    let (second, _) = within(Duration::from_secs(2), "the next turn", second).await.unwrap();
    assert!(second.token() > token);
}

/// What was asked for during an outage, and given up, is not asked for when
/// the connection is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_given_up_during_an_outage_is_never_asked_for() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await;
    let keeper = connect(&url(&[proxy.port()], REST)).await;
    let (name, nodes) = (name("given-up"), Nodes::of(&server).await);
    let path = format!("/{name}");
    nodes.make(&path).await;
    let guard = locked(&keeper, &crate::kit::name("link")).await;
    proxy.set(Weather::Refuse);
    proxy.cut();
    within(Duration::from_secs(5), "the outage to be noticed", guard.at_risk()).await;
    let impatient = patient().with_wait(Duration::from_millis(1200));
    let mutex = keeper.mutex(&name).with_options(impatient);
    let error = within(Duration::from_secs(4), "the end of the wait", mutex.lock()).await;
    assert_eq!(error.unwrap_err().kind(), lockkeeper::ErrorKind::Unreachable);
    proxy.set(Weather::Fair);
    assert!(crate::kit::verified(&guard, Duration::from_secs(6)).await);
    drop(locked(&keeper, &crate::kit::name("after")).await);
    let stat = nodes.0.check_stat(&path).await.unwrap().expect("the node of the name");
    assert_eq!(stat.cversion, 0, "a node was made for nobody");
}
