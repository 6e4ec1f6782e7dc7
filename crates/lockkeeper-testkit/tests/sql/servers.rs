//! That the servers of these tests are what they are said to be.

use lockkeeper_testkit::sql::{Flavour, Settings, SqlServer};

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
