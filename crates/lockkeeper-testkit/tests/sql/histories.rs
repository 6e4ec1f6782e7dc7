//! Histories of many processes that hammer few names: nobody overlaps, tokens
//! rise, nothing is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_testkit::child::Worker;
use lockkeeper_testkit::eventually;
use lockkeeper_testkit::history::History;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::sql::Flavour;

use crate::kit::{Place, Strategy};

const PROCESSES: u64 = 8;
const EACH: u32 = 60;
const NAMES: [&str; 3] = ["north", "east", "south"];

fn seed() -> u64 {
    let given = std::env::var("LOCKKEEPER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..1 << 40));
    println!("LOCKKEEPER_SEED={seed} repeats the choices of this run");
    seed
}

/// Lets all processes hammer the names, and puts their histories together.
async fn hammer(url: &str, seed: u64) -> History {
    let mut threads = Vec::new();
    for process in 0..PROCESSES {
        let url = url.to_owned();
        threads.push(tokio::task::spawn_blocking(move || {
            let mut worker = Worker::start(env!("CARGO_BIN_EXE_lk-worker"), &url);
            worker.send(&format!("hammer {EACH} {} {}", seed + process, NAMES.join(" ")));
            worker.entries(Duration::from_secs(120))
        }));
    }
    let mut entries = Vec::new();
    for thread in threads {
        entries.extend(thread.await.expect("a worker"));
    }
    History::new(entries)
}

/// What is left: one row a name, which keeps its last token; no session, no
/// transaction, nobody who holds or waits.
async fn check_leftovers(place: &Place) {
    let gone = async || place.server.sessions(&place.database) == 0;
    assert!(eventually(Duration::from_secs(10), gone).await, "{place:?}: sessions are left");
    assert_eq!(place.open_transactions(), 0, "{place:?}");
    let count = |table: &str| place.sql(&format!("SELECT count(*) FROM lockkeeper_{table}"));
    match place.strategy {
        Strategy::Lease => {
            assert_eq!(count("names"), NAMES.len().to_string(), "{place:?}");
            assert_eq!(count("claims WHERE state <> 'finished'"), "0", "{place:?}");
        }
        Strategy::Session => {
            assert_eq!(count("session_locks"), NAMES.len().to_string(), "{place:?}");
            assert_eq!(count("session_tokens"), NAMES.len().to_string(), "{place:?}");
            assert_eq!(count("session_breaks"), "0", "{place:?}");
        }
    }
}

async fn calm(flavour: Flavour, strategy: Strategy) {
    let place = Place::new(flavour, strategy);
    let history = hammer(&place.url(), seed()).await;
    assert_eq!(history.total(), PROCESSES as usize * EACH as usize);
    history.check();
    check_leftovers(&place).await;
    if strategy == Strategy::Session {
        assert_eq!(place.sql("SELECT count(*) FROM lockkeeper_session_holders"), "0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calm_history_of_leases_in_mariadb_is_sound() {
    calm(Flavour::MariaDb, Strategy::Lease).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calm_history_of_leases_in_postgres_is_sound() {
    calm(Flavour::Postgres, Strategy::Lease).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calm_history_of_row_locks_in_mariadb_is_sound() {
    calm(Flavour::MariaDb, Strategy::Session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calm_history_of_row_locks_in_postgres_is_sound() {
    calm(Flavour::Postgres, Strategy::Session).await;
}

/// The same with every connection cut again and again.
async fn cut(flavour: Flavour, strategy: Strategy) {
    let seed = seed();
    let place = Place::new(flavour, strategy);
    let proxy = Arc::new(Proxy::start(place.server.port()).await);
    let over = Arc::new(AtomicBool::new(false));
    let cutting = tokio::spawn({
        let (proxy, over) = (proxy.clone(), over.clone());
        async move {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut cuts = 0;
            // Workers that cannot even connect would tell us nothing.
            tokio::time::sleep(Duration::from_millis(1500)).await;
            while !over.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(random.u64(600..2500))).await;
                proxy.cut();
                cuts += 1;
            }
            cuts
        }
    });
    let history = hammer(&place.url_at(proxy.port()), seed).await;
    over.store(true, Ordering::Relaxed);
    let cuts = cutting.await.unwrap();
    let (total, asked) = (history.total(), PROCESSES as usize * EACH as usize);
    println!("{place:?}: {total} stays of {asked}, {cuts} cuts");
    history.check();
    // A row lock that was cut is lost, and its stay is not taken down.
    let least = if strategy == Strategy::Lease { asked } else { asked / 2 };
    assert!(total >= least, "{place:?}: {total}");
    proxy.cut();
    check_leftovers(&place).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_of_leases_over_cut_connections_is_sound() {
    for flavour in Flavour::ALL {
        cut(flavour, Strategy::Lease).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_of_row_locks_over_cut_connections_is_sound() {
    for flavour in Flavour::ALL {
        cut(flavour, Strategy::Session).await;
    }
}
