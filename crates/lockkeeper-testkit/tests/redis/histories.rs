//! Long histories of many processes on one server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_testkit::child::Worker;
use lockkeeper_testkit::history::History;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::server::RedisServer;

const PROCESSES: u64 = 8;
/// How many acquisitions each process makes, calm and cut off.
const CALM: u32 = 2500;
const CUT: u32 = 20_000;
const NAMES: [&str; 4] = ["north", "east", "south", "west"];

/// Lets all processes hammer the names, and puts their histories together.
async fn hammer(url: &str, seed: u64, each: u32) -> History {
    let mut threads = Vec::new();
    for process in 0..PROCESSES {
        let url = url.to_owned();
        threads.push(tokio::task::spawn_blocking(move || {
            let mut worker = Worker::start(env!("CARGO_BIN_EXE_lk-worker"), &url);
            worker.send(&format!("hammer {each} {} {}", seed + process, NAMES.join(" ")));
            worker.entries(Duration::from_secs(400))
        }));
    }
    let mut entries = Vec::new();
    for thread in threads {
        entries.extend(thread.await.expect("a worker"));
    }
    History::new(entries)
}

fn seed() -> u64 {
    let given = std::env::var("LOCKKEEPER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..1 << 40));
    println!("LOCKKEEPER_SEED={seed} repeats the choices of this run");
    seed
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
    let history = hammer(&server.url(), seed(), CALM).await;
    assert_eq!(history.total(), PROCESSES as usize * CALM as usize);
    history.check();
    assert_eq!(history.out_of_order(Duration::from_millis(250)), None);
    check_leftovers(&server);
    assert!(!server.cli(&["--scan"]).contains(":x"), "a claim was unsure");
}

/// The same with every connection cut again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_with_cut_connections_is_sound() {
    let seed = seed();
    let server = RedisServer::start();
    let proxy = Arc::new(Proxy::start(server.port()).await);
    let over = Arc::new(AtomicBool::new(false));
    let cutting = tokio::spawn({
        let (proxy, over) = (proxy.clone(), over.clone());
        async move {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut cuts = 0;
            while !over.load(Ordering::Relaxed) {
                let pause = Duration::from_millis(random.u64(20..400));
                tokio::time::sleep(pause).await;
                proxy.cut();
                cuts += 1;
            }
            cuts
        }
    });
    let history = hammer(&proxy.url(), seed, CUT).await;
    over.store(true, Ordering::Relaxed);
    let cuts = cutting.await.unwrap();
    println!("{} grants, {cuts} cuts", history.total());
    // A stay whose guard was lost is not taken down; a lease is long here.
    assert_eq!(history.total(), PROCESSES as usize * CUT as usize);
    assert!(cuts > 50, "only {cuts} cuts");
    history.check();
    // Whoever is cut off may lose its place: a ticket and a beat, at most.
    assert_eq!(history.out_of_order(Duration::from_secs(4)), None);
    check_leftovers(&server);
}
