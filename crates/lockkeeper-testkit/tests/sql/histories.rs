//! Histories of many processes that hammer few names: nobody overlaps, tokens
//! rise, nothing is left behind.

use std::time::Duration;

use lockkeeper_testkit::hammer::Hammer;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::sql::Flavour;
use lockkeeper_testkit::{eventually, seed};

use crate::kit::{Place, Strategy};

const NAMES: [&str; 3] = ["north", "east", "south"];

fn hammer() -> Hammer {
    Hammer { each: 60, ..Hammer::new(env!("CARGO_BIN_EXE_lk-worker"), &NAMES) }
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
    let hammer = hammer();
    let history = hammer.on(&place.url(), seed()).await;
    assert_eq!(history.total(), hammer.total());
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
    let place = Place::new(flavour, strategy);
    let proxy = Proxy::start(place.server.port()).await;
    let (hammer, url) = (hammer(), place.url_at(proxy.port()));
    let (history, cuts) = hammer.cut_off(&url, seed(), &proxy, 600..2500).await;
    let (total, asked) = (history.total(), hammer.total());
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
