//! Long histories of many processes on one server.

use std::time::Duration;

use lockkeeper_testkit::hammer::Hammer;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::seed;
use lockkeeper_testkit::server::RedisServer;

/// How many acquisitions each process makes, calm and cut off.
const CALM: u32 = 2500;
const CUT: u32 = 20_000;
const NAMES: [&str; 4] = ["north", "east", "south", "west"];

fn hammer(each: u32) -> Hammer {
    Hammer { each, ..Hammer::new(env!("CARGO_BIN_EXE_lk-worker"), &NAMES) }
}

/// What is left: records, which keep the last tokens, and the memory of claims
/// that were cut off; all with a time to live.
fn check_leftovers(server: &RedisServer) {
    for key in server.cli(&["--scan"]).lines() {
        let ttl: i64 = server.cli(&["PTTL", key]).parse().expect("a time to live");
        let limit = match key {
            key if key.ends_with('}') => 25 * 3600 * 1000,
            key if key.ends_with(":x") => 71_000,
            _ => panic!("{key:?} was left behind"),
        };
        assert!((1..=limit).contains(&ttl), "{key:?} lives for {ttl} ms");
    }
}

/// Undisturbed, the order of arrival is kept to within the time that requests
/// of busy processes take to be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calm_history_is_sound_and_in_order() {
    let server = RedisServer::start();
    let hammer = hammer(CALM);
    let history = hammer.on(&server.url(), seed()).await;
    assert_eq!(history.total(), hammer.total());
    history.check();
    assert_eq!(history.out_of_order(Duration::from_millis(250)), None);
    check_leftovers(&server);
    assert!(!server.cli(&["--scan"]).contains(":x"), "a claim was unsure");
}

/// The same with every connection cut again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_with_cut_connections_is_sound() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let hammer = hammer(CUT);
    let (history, cuts) = hammer.cut_off(&proxy.url(), seed(), &proxy, 20..400).await;
    println!("{} grants, {cuts} cuts", history.total());
    // A stay whose guard was lost is not taken down; a lease is long here.
    assert_eq!(history.total(), hammer.total());
    assert!(cuts > 50, "only {cuts} cuts");
    history.check();
    // Whoever is cut off may lose its place: a ticket and a beat, at most.
    assert_eq!(history.out_of_order(Duration::from_secs(4)), None);
    check_leftovers(&server);
}
