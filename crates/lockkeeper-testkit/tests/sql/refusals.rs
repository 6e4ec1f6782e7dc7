//! Servers that cannot be used: a clear error, in time, and nothing half done.

use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, Keeper, Sql};
use lockkeeper_testkit::server::free_port;
use lockkeeper_testkit::sql::{Flavour, Settings, SqlServer};

/// The error of connecting, which must come in time and without secrets.
async fn refused(url: &str) -> (ErrorKind, String) {
    let start = Instant::now();
    let error = Keeper::connect(url).await.expect_err("this must not connect");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}: {error}", start.elapsed());
    let text = format!("{error} {error:?}");
    assert!(!text.contains("hunter2") && !text.contains("se%cret"), "{text}");
    (error.kind(), error.to_string())
}

/// How many tables a database has whose names start with `prefix`.
fn tables(server: &SqlServer, database: &str, prefix: &str) -> usize {
    let schema = match server.flavour() {
        Flavour::MariaDb => "DATABASE()",
        Flavour::Postgres => "'public'",
    };
    let query = format!(
        "SELECT count(*) FROM information_schema.tables WHERE table_schema = {schema} \
         AND table_name LIKE '{prefix}%'"
    );
    server.sql(database, &query).parse().expect("a number")
}

#[tokio::test]
async fn a_wrong_login_or_database_is_told() {
    for flavour in Flavour::ALL {
        let server = SqlServer::start(flavour);
        let (scheme, port, database) = (flavour.scheme(), server.port(), server.database());
        for login in ["keeper:hunter2", "nobody:hunter2", "keeper"] {
            let url = format!("{scheme}://{login}@127.0.0.1:{port}/{database}");
            let (kind, text) = refused(&url).await;
            assert_eq!(kind, ErrorKind::Invalid, "{text}");
            assert!(text.contains("password") || text.contains("login"), "{text}");
        }
        let (kind, text) = refused(&server.url("nothing_here")).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        assert!(text.contains("database"), "{text}");
        assert_eq!(tables(&server, &database, ""), 0);
    }
}

#[tokio::test]
async fn a_user_who_may_not_make_tables_is_told_the_statements() {
    for flavour in Flavour::ALL {
        let server = SqlServer::start(flavour);
        server.sql("", "CREATE DATABASE other");
        let rights = "SELECT, INSERT, UPDATE, DELETE";
        if flavour == Flavour::MariaDb {
            server.sql("", &format!("GRANT {rights} ON other.* TO keeper@'%'"));
        }
        let url = server.url("other");
        let (kind, text) = refused(&url).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        for word in ["lockkeeper schema", "CREATE TABLE IF NOT EXISTS", "lockkeeper_claims"] {
            assert!(text.contains(word), "{word} is not in {text}");
        }
        assert_eq!(tables(&server, "other", "lockkeeper"), 0, "half done");
        // What it prints is enough.
        server.sql("other", &Sql::parse(&url).unwrap().schema());
        if flavour == Flavour::Postgres {
            let grant = format!("GRANT {rights} ON ALL TABLES IN SCHEMA public TO keeper");
            server.sql("other", &grant);
        }
        let keeper = Keeper::connect(&url).await.unwrap();
        drop(keeper.mutex("a").lock().await.unwrap());
    }
}

#[tokio::test]
async fn a_user_who_may_only_read_is_told() {
    for flavour in Flavour::ALL {
        let server = SqlServer::start(flavour);
        server.sql("", "CREATE DATABASE other");
        let url = server.url("other");
        server.sql("other", &Sql::parse(&url).unwrap().schema());
        server.sql(
            "other",
            &match flavour {
                Flavour::MariaDb => "GRANT SELECT ON other.* TO keeper@'%'".to_owned(),
                Flavour::Postgres => {
                    "GRANT SELECT ON ALL TABLES IN SCHEMA public TO keeper".to_owned()
                }
            },
        );
        let keeper = Keeper::connect(&url).await.unwrap();
        let error = keeper.mutex("a").lock().await.expect_err("it may not lock");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("allow"), "{error}");
        assert_eq!(server.sql("other", "SELECT count(*) FROM lockkeeper_names"), "0");
    }
}

#[tokio::test]
async fn a_server_that_only_reads_is_told() {
    for flavour in Flavour::ALL {
        let server = SqlServer::with(flavour, Settings { read_only: true, ..Settings::default() });
        if flavour == Flavour::MariaDb {
            server.sql("", "GRANT ALL ON lk.* TO keeper@'%'");
        }
        let (kind, text) = refused(&server.url("lk")).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        assert!(text.contains("only reads"), "{text}");
    }
}

#[tokio::test]
async fn foreign_tables_are_left_alone() {
    for flavour in Flavour::ALL {
        let server = SqlServer::start(flavour);
        for table in ["names", "claims", "meta"] {
            let database = server.database();
            let create = format!("CREATE TABLE lockkeeper_{table} (one int, what text)");
            server.sql(&database, &create);
            server.sql(&database, &format!("INSERT INTO lockkeeper_{table} VALUES (1, 'ours')"));
            if flavour == Flavour::Postgres {
                server.sql(&database, &format!("GRANT ALL ON lockkeeper_{table} TO keeper"));
                server.sql(&database, "GRANT ALL ON SCHEMA public TO keeper");
            }
            let url = server.url(&database);
            let (kind, text) = refused(&url).await;
            assert_eq!(kind, ErrorKind::Invalid, "{table}: {text}");
            assert!(text.contains("prefix"), "{table}: {text}");
            assert_eq!(tables(&server, &database, "lockkeeper"), 1, "{table}: half done");
            let kept = format!("SELECT what FROM lockkeeper_{table}");
            assert_eq!(server.sql(&database, &kept), "ours");
            let keeper = Keeper::connect(&format!("{url}?prefix=mine_")).await.unwrap();
            drop(keeper.mutex("a").lock().await.unwrap());
        }
    }
}

#[tokio::test]
async fn tables_of_a_later_version_are_told() {
    for flavour in Flavour::ALL {
        let server = SqlServer::start(flavour);
        let database = server.database();
        drop(Keeper::connect(&server.url(&database)).await.unwrap());
        server.sql(&database, "UPDATE lockkeeper_meta SET version = 99");
        let (kind, text) = refused(&server.url(&database)).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        assert!(text.contains("version 99"), "{text}");
    }
}

#[tokio::test]
async fn nobody_there_is_told() {
    for flavour in Flavour::ALL {
        let scheme = flavour.scheme();
        let nobody = format!("{scheme}://u:hunter2@127.0.0.1:{}/db", free_port());
        let (kind, text) = refused(&nobody).await;
        assert_eq!(kind, ErrorKind::Unreachable, "{text}");
        // A server that accepts and says nothing.
        let silent = SqlServer::start(flavour);
        let url = format!("{}?connect=300ms", silent.url(&silent.database()));
        silent.freeze();
        let (kind, text) = refused(&url).await;
        assert_eq!(kind, ErrorKind::Unreachable, "{text}");
        silent.thaw();
    }
}

#[tokio::test]
async fn a_server_without_a_free_connection_is_told() {
    for flavour in Flavour::ALL {
        let settings = vec!["max_connections=10".to_owned()];
        let server = SqlServer::with(flavour, Settings { settings, ..Settings::default() });
        let url = server.url(&server.database());
        let mut keepers = Vec::new();
        let error = loop {
            match Keeper::connect(&url).await {
                Ok(keeper) => keepers.push(keeper),
                Err(error) => break error,
            }
            assert!(keepers.len() < 20, "there is no limit");
        };
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("no connection left"), "{error}");
        // Those who are in are served, with the connections they have.
        drop(keepers[0].mutex("a").lock().await.unwrap());
    }
}

#[tokio::test]
async fn encryption_checks_the_certificate() {
    for flavour in Flavour::ALL {
        let server = SqlServer::with(flavour, Settings { tls: true, ..Settings::default() });
        let url = server.url(&server.database());
        let (kind, text) = refused(&url).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        let (kind, text) = refused(&format!("{url}?tls=on")).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        assert!(text.contains("encrypt") || text.contains("certificate"), "{text}");
        let certificate = server.folder().join("cert.pem").display().to_string();
        let keeper = Keeper::connect(&format!("{url}?tls=on&ca={certificate}")).await.unwrap();
        drop(keeper.mutex("a").lock().await.unwrap());
        // And a server that does not speak it.
        let plain = SqlServer::start(flavour);
        let url = plain.url(&plain.database());
        let (kind, text) = refused(&format!("{url}?tls=on&ca={certificate}")).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_make_the_tables_once() {
    for flavour in Flavour::ALL {
        let server = SqlServer::start(flavour);
        let database = server.database();
        let parameters = match flavour {
            Flavour::MariaDb => "",
            Flavour::Postgres => "?schema=locks",
        };
        let url = server.url(&database) + parameters;
        let connects = (0..12).map(|_| Keeper::connect(&url));
        let keepers = futures_util::future::join_all(connects).await;
        for keeper in keepers {
            let guard = keeper.unwrap().mutex("a").lock().await.unwrap();
            assert!(guard.is_held());
        }
    }
}

#[tokio::test]
async fn names_that_a_collation_takes_for_one_are_many() {
    for flavour in Flavour::ALL {
        let server = SqlServer::start(flavour);
        let keeper = Keeper::connect(&server.url(&server.database())).await.unwrap();
        let long = "é".repeat(256);
        let names = [
            "a",
            "A",
            "a ",
            "a  ",
            "á",
            "a\u{301}",
            "ß",
            "ss",
            "a\0",
            "a\\0",
            "a\\",
            "'; --",
            "%",
            "_",
            "\u{1F512}",
            &long,
        ];
        let mut guards = Vec::new();
        for name in names {
            let guard = keeper.mutex(name).try_lock().await.unwrap();
            guards.push(guard.unwrap_or_else(|| panic!("{name:?} is taken")));
        }
        let page = keeper.list("", None, 100).await.unwrap();
        let mut listed: Vec<&str> =
            page.entries.iter().map(|status| status.name.as_str()).collect();
        let mut expected = names.to_vec();
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
        for prefix in ["a", "a\\", "a\0", "\u{1F512}", "'"] {
            let found = keeper.list(prefix, None, 100).await.unwrap().entries;
            let starts = names.iter().filter(|name| name.starts_with(prefix)).count();
            assert_eq!(found.len(), starts, "{prefix:?}: {found:?}");
        }
    }
}
