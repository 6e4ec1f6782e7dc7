//! That the servers of these tests are what they are said to be.

use std::sync::Arc;

use lockkeeper_testkit::sql::{Flavour, Settings, SqlServer};

use crate::kit::{Place, Strategy, lease, locked};

const COUNT: &str = "SELECT count(*) FROM t";

#[test]
fn a_killed_server_comes_back_with_its_data() {
    for flavour in Flavour::ALL {
        let mut server = SqlServer::durable(flavour);
        let database = server.database();
        server.sql(&database, "CREATE TABLE t (n int)");
        server.sql(&database, "INSERT INTO t VALUES (1)");
        server.kill();
        assert!(server.try_sql(&database, COUNT).is_err());
        server.restart();
        assert_eq!(server.sql(&database, COUNT), "1");
        assert_eq!(server.sessions(""), 0);
    }
}

#[test]
fn a_server_on_standby_refuses_to_write() {
    for flavour in Flavour::ALL {
        let server = SqlServer::with(flavour, Settings { read_only: true, ..Settings::default() });
        let asked = match flavour {
            Flavour::MariaDb => "SELECT @@read_only",
            Flavour::Postgres => "SELECT pg_is_in_recovery()::int",
        };
        assert_eq!(server.sql("lk", asked), "1");
    }
}

#[test]
fn a_stepped_clock_is_what_the_server_sees() {
    for flavour in Flavour::ALL {
        let server = SqlServer::with(flavour, Settings { stepped: true, ..Settings::default() });
        let clock = || -> f64 {
            let query = match flavour {
                Flavour::MariaDb => "SELECT unix_timestamp(now(3))",
                Flavour::Postgres => "SELECT extract(epoch FROM clock_timestamp())",
            };
            server.sql("", query).parse().expect("a number")
        };
        let before = clock();
        server.step_clock(3600);
        assert!((3600.0..3610.0).contains(&(clock() - before)), "{before} then {}", clock());
        server.step_clock(-60);
        assert!((-60.0..-50.0).contains(&(clock() - before)), "{before} then {}", clock());
    }
}

#[test]
fn a_server_with_tls_lets_nobody_in_without() {
    for flavour in Flavour::ALL {
        let server = SqlServer::with(flavour, Settings { tls: true, ..Settings::default() });
        let asked = match flavour {
            Flavour::MariaDb => "SELECT @@have_ssl",
            Flavour::Postgres => "SHOW ssl",
        };
        assert!(["YES", "on"].contains(&server.sql("", asked).as_str()));
        assert!(server.folder().join("cert.pem").exists());
    }
}

/// A server that keeps old answers to questions keeps none of ours: what was
/// true before the last commit is of no use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_question_of_ours_is_answered_from_a_cache() {
    let settings = vec!["query_cache_type=1".to_owned(), "query_cache_size=1M".to_owned()];
    let settings = Settings { settings, ..Settings::default() };
    let server = Arc::new(SqlServer::with(Flavour::MariaDb, settings));
    let count = |what: &str| -> u64 {
        let row = server.sql("", &format!("SHOW GLOBAL STATUS LIKE 'Qcache_{what}'"));
        row.split_whitespace().last().and_then(|text| text.parse().ok()).expect("a number")
    };
    // It keeps those of others.
    let others = server.database();
    server.sql(&others, "CREATE TABLE t (n int)");
    for _ in 0..2 {
        server.sql(&others, COUNT);
    }
    assert!(count("hits") > 0, "the server keeps nothing");
    for strategy in Strategy::ALL {
        let place = Place::on(server.clone(), strategy);
        let (one, two) = (place.keeper().await, place.keeper().await);
        let kept = count("inserts");
        for _ in 0..5 {
            let guard = locked(&one, "asked", lease(1000)).await;
            guard.verify().await.unwrap();
            assert!(two.mutex("asked").try_lock().await.unwrap().is_none());
            assert_eq!(two.status("asked").await.unwrap().holders.len(), 1);
            two.list("", None, 10).await.unwrap();
            let waiting = two.mutex("asked").with_options(lease(1000));
            let waiting = tokio::spawn(async move { waiting.lock().await });
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            let _ = guard.release().await.unwrap();
            let _ = waiting.await.unwrap().unwrap().release().await.unwrap();
        }
        assert_eq!(count("inserts"), kept, "{strategy:?}: answers were kept");
    }
}
