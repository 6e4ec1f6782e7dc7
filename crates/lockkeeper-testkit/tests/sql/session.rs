//! What only row locks have: sessions that must be their own, tables of their
//! own, an end by the database's own limits.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::engine::Revoke;
use lockkeeper::{Cause, ErrorKind, Keeper, Sql};
use lockkeeper_testkit::server::{folder, free_port};
use lockkeeper_testkit::sql::{Flavour, PASSWORD, Settings, SqlServer};
use lockkeeper_testkit::{eventually, within};

use crate::kit::{Place, Strategy, lease, locked};

/// The error of connecting, which must come in time and without secrets.
async fn refused(url: &str) -> (ErrorKind, String) {
    let start = Instant::now();
    let error = Keeper::connect(url).await.expect_err("this must not connect");
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}: {error}", start.elapsed());
    let text = format!("{error} {error:?}");
    assert!(!text.contains(PASSWORD) && !text.contains("se%25cret"), "{text}");
    (error.kind(), error.to_string())
}

/// A proxy that gives a session to whoever comes is found out, and the way
/// out is named; one that keeps sessions apart is fine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_pooling_is_refused_and_session_pooling_is_not() {
    let place = Place::new(Flavour::Postgres, Strategy::Session);
    for (mode, fine) in [("transaction", false), ("statement", false), ("session", true)] {
        let pooler = Pooler::start(place.server.port(), mode);
        let url = place.url_at(pooler.port);
        if fine {
            let keeper = Keeper::connect(&url).await.unwrap();
            locked(&keeper, "pooled", lease(5000)).await.verify().await.unwrap();
            continue;
        }
        let (kind, text) = refused(&url).await;
        assert!([ErrorKind::Unsupported, ErrorKind::Invalid].contains(&kind), "{mode}: {text}");
        if mode == "transaction" {
            assert!(text.contains("session pooling"), "{text}");
        }
    }
}

/// Leases work on any session, but ours are prepared: whoever gets one that
/// another prefix prepared is refused, and never served from its tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_behind_a_pooler_do_not_share_tables() {
    let place = Place::new(Flavour::Postgres, Strategy::Lease);
    let refused = |error: lockkeeper::Error| {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("session mode"), "{error}");
    };
    for round in 0..6 {
        // Its sessions are new, so both can prepare; then they are mixed up.
        let pooler = Pooler::start(place.server.port(), "transaction");
        let connect = async |prefix: &str| {
            Keeper::connect(&format!("{}&prefix={prefix}", place.url_at(pooler.port))).await
        };
        let (Ok(prod), Ok(stage)) = tokio::join!(connect("prod_"), connect("stage_")) else {
            continue;
        };
        // Whether it could be locked, and given back soon.
        let lock = async |keeper: &Keeper, name: String| {
            let mutex = keeper.mutex(name).with_options(lease(1000));
            match mutex.lock().await {
                Ok(guard) => {
                    let released = tokio::time::timeout(Duration::from_secs(1), guard.release());
                    matches!(released.await, Ok(Ok(_)))
                }
                Err(error) => {
                    refused(error);
                    false
                }
            }
        };
        for number in 0..20 {
            let name = |prefix: &str| format!("{prefix}{round}-{number}");
            let locked = tokio::join!(lock(&prod, name("prod_")), lock(&stage, name("stage_")));
            if locked != (true, true) {
                break;
            }
        }
    }
    for (prefix, other) in [("prod_", "stage_"), ("stage_", "prod_")] {
        let strays = format!("SELECT count(*) FROM {prefix}names WHERE name LIKE '{other}%'");
        assert_eq!(place.sql(&strays), "0", "names of {other} are in {prefix}names");
    }
}

/// Two who prepare the same are given one session: the second is told why it
/// cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_another_prepared_is_refused() {
    let place = Place::new(Flavour::Postgres, Strategy::Lease);
    let pooler = Pooler::start(place.server.port(), "transaction");
    let url = place.url_at(pooler.port);
    let first = Keeper::connect(&url).await.unwrap();
    let error = Keeper::connect(&url).await.expect_err("it shares a session with the first");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("session mode"), "{error}");
    assert!(format!("{error:?}").contains("42P05"), "refused for another reason: {error:?}");
    drop(first);
}

/// A PgBouncer in front of a server.
struct Pooler {
    port: u16,
    child: Child,
    folder: std::path::PathBuf,
}

impl Pooler {
    fn start(server: u16, mode: &str) -> Self {
        let (port, folder) = (free_port(), folder("pooler"));
        std::fs::write(folder.join("users"), format!("\"keeper\" \"{PASSWORD}\"\n")).unwrap();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_port = {port}\n\
             listen_addr = 127.0.0.1\nunix_socket_dir =\nauth_type = plain\n\
             auth_file = {0}/users\npool_mode = {mode}\ndefault_pool_size = 20\n\
             ignore_startup_parameters = extra_float_digits,options\nlogfile = {0}/log\n",
            folder.display()
        );
        let file = folder.join("pgbouncer.ini");
        std::fs::write(&file, settings).unwrap();
        let program = match std::path::Path::new("/usr/sbin/pgbouncer").exists() {
            true => "/usr/sbin/pgbouncer",
            false => "pgbouncer",
        };
        // It refuses to be root, too.
        // SAFETY: only reads the process's user.
        let mut command = if unsafe { libc::geteuid() } == 0 {
            let owned = Command::new("chown").args(["-R", "postgres:"]).arg(&folder).status();
            assert!(owned.unwrap().success());
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", program]);
            command
        } else {
            Command::new(program)
        };
        let child = command
            .arg("-q")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pgbouncer is installed (scripts/setup does it)");
        let pooler = Pooler { port, child, folder };
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(10), "pgbouncer does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        pooler
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Row locks and leases do not exclude each other, so they do not share tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_strategies_do_not_share_a_prefix() {
    for flavour in Flavour::ALL {
        for first in Strategy::ALL {
            let place = Place::new(flavour, first);
            let second = match first {
                Strategy::Lease => Strategy::Session,
                Strategy::Session => Strategy::Lease,
            };
            let keeper = place.keeper().await;
            let url = place.server.url(&place.database) + second.parameters();
            let (kind, text) = refused(&url).await;
            assert_eq!(kind, ErrorKind::Invalid, "{text}");
            assert!(text.contains("prefix="), "{text}");
            let apart = Keeper::connect(&(url + "&prefix=other_")).await.unwrap();
            locked(&apart, "apart", lease(5000)).await.verify().await.unwrap();
            locked(&keeper, "apart", lease(5000)).await.verify().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_make_tables_is_told_the_statements() {
    for flavour in Flavour::ALL {
        let server = SqlServer::start(flavour);
        server.sql("", "CREATE DATABASE other");
        let rights = "SELECT, INSERT, UPDATE, DELETE";
        if flavour == Flavour::MariaDb {
            server.sql("", &format!("GRANT {rights} ON other.* TO keeper@'%'"));
        }
        let url = server.url("other") + Strategy::Session.parameters();
        let (kind, text) = refused(&url).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        assert!(text.contains("CREATE TABLE") && text.contains("session_locks"), "{text}");
        // What it names is enough, and what `schema` prints is the same.
        let schema = Sql::parse(&url).unwrap().schema();
        assert!(text.contains(schema.trim()), "{schema}");
        server.sql("other", &schema);
        if flavour == Flavour::Postgres {
            server
                .sql("other", &format!("GRANT {rights} ON ALL TABLES IN SCHEMA public TO keeper"));
        }
        let keeper = Keeper::connect(&url).await.unwrap();
        locked(&keeper, "made", lease(5000)).await.verify().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_only_reads_and_foreign_tables_are_told() {
    for flavour in Flavour::ALL {
        let settings = Settings { read_only: true, ..Settings::default() };
        let server = SqlServer::with(flavour, settings);
        if flavour == Flavour::MariaDb {
            server.sql("", "GRANT ALL ON lk.* TO keeper@'%'");
        }
        let (kind, text) = refused(&(server.url("lk") + Strategy::Session.parameters())).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        assert!(text.contains("only reads"), "{text}");

        let place = Place::new(flavour, Strategy::Session);
        place.sql("CREATE TABLE lockkeeper_session_tokens (id int)");
        place.sql("INSERT INTO lockkeeper_session_tokens VALUES (7)");
        if flavour == Flavour::Postgres {
            place.sql("GRANT ALL ON lockkeeper_session_tokens TO keeper");
        }
        let (kind, text) = refused(&place.url()).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        assert!(text.contains("prefix="), "{text}");
        assert_eq!(place.sql("SELECT id FROM lockkeeper_session_tokens"), "7");
    }
}

/// A forgotten name that readers use first still goes on above its tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_do_not_hide_the_tokens_of_a_forgotten_name() {
    for flavour in Flavour::ALL {
        let place = Place::new(flavour, Strategy::Session);
        let keeper = place.keeper().await;
        // As if it had been granted by a clock that was a century ahead.
        let last = 5_000_000_000_000_000;
        place.sql(&format!(
            "INSERT INTO lockkeeper_session_tokens (name, token, used) \
             VALUES ('', {last}, '2026-01-01 00:00:00')"
        ));
        let lock = keeper.rwlock("again").with_options(lease(5000));
        for _ in 0..2 {
            drop(lock.read().await.unwrap());
            assert_eq!(keeper.status("again").await.unwrap().token, None, "{place:?}");
        }
        let first = lock.write().await.unwrap().token();
        assert!(first.get() > last, "{place:?}: {first}");
        drop(lock.read().await.unwrap());
        assert_eq!(keeper.status("again").await.unwrap().token, Some(first), "{place:?}");
        assert!(lock.write().await.unwrap().token() > first, "{place:?}");
    }
}

/// Names that people or collations might take for one another are different.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_look_alike_are_different() {
    let names =
        ["cafe", "CAFE", "café", "cafe\u{301}", "cafe ", "cafe  ", " cafe", "cafe\0", "cafe\\"];
    for flavour in Flavour::ALL {
        let place = Place::new(flavour, Strategy::Session);
        let keeper = place.keeper().await;
        let mut guards = Vec::new();
        for name in names {
            let guard = keeper.mutex(name).with_options(lease(9000)).try_lock().await.unwrap();
            guards.push(guard.unwrap_or_else(|| panic!("{flavour:?}: {name:?} is taken")));
        }
        let listed = keeper.list("", None, 100).await.unwrap();
        let mut listed: Vec<String> =
            listed.entries.iter().map(|entry| entry.name.as_str().to_owned()).collect();
        listed.sort();
        let mut expected: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        expected.sort();
        assert_eq!(listed, expected, "{flavour:?}");
    }
}

/// Another keeper ends the session of a holder; a restricted user who may not
/// is told so, and nothing happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn break_now_ends_the_session_or_says_why_not() {
    for flavour in Flavour::ALL {
        let place = Place::new(flavour, Strategy::Session);
        let one = place.keeper().await;
        let guard = locked(&one, "broken", lease(30_000)).await;
        let user = format!("guest_{}", place.database);
        match flavour {
            Flavour::MariaDb => {
                place.sql(&format!("CREATE USER {user}@'%' IDENTIFIED BY 'guest'"));
                place.sql(&format!("GRANT ALL ON {}.* TO {user}@'%'", place.database))
            }
            Flavour::Postgres => {
                place.sql(&format!("CREATE ROLE {user} LOGIN PASSWORD 'guest'"));
                place.sql(&format!("GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}"))
            }
        };
        let url = place.url().replace("keeper:se%25cret", &format!("{user}:guest"));
        let guest = Keeper::connect(&url).await.unwrap();
        let victim = guest.status("broken").await.unwrap().holders.remove(0);
        let error = guest.revoke("broken", &victim, Revoke::Now, "mine").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("session"), "{error}");

        let two = place.keeper().await;
        let _ = two.revoke("broken", &victim, Revoke::Now, "on fire").await.unwrap();
        let next = two.mutex("broken").try_lock().await.unwrap().expect("free at once");
        assert!(next.token() > guard.token());
        let cause = within(Duration::from_secs(2), "the news", guard.lost()).await;
        assert!(matches!(cause, Cause::Broken { .. }), "{cause:?}");
        // Whoever may not end it has still said that it is to end.
        drop(guard);
        next.verify().await.unwrap();
    }
}

/// A reader, too, is lost when its session is; others go on reading.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_have_sessions_of_their_own() {
    for flavour in Flavour::ALL {
        let place = Place::new(flavour, Strategy::Session);
        let (one, two) = (place.keeper().await, place.keeper().await);
        let first = one.rwlock("read").with_options(lease(10_000)).read().await.unwrap();
        let second = two.rwlock("read").with_options(lease(10_000)).read().await.unwrap();
        let holders = two.status("read").await.unwrap().holders;
        assert_eq!(holders.len(), 2, "{flavour:?}: {holders:?}");
        let victim = holders.iter().find(|holder| holder.claim == first.claim_id()).unwrap();
        let _ = two.revoke("read", victim, Revoke::Now, "one of two").await.unwrap();
        within(Duration::from_secs(2), "the loss", first.lost()).await;
        second.verify().await.unwrap();
        assert!(two.rwlock("read").try_write().await.unwrap().is_none());
        drop(second);
        let write = async || two.rwlock("read").try_write().await.unwrap().is_some();
        assert!(eventually(Duration::from_secs(3), write).await, "{flavour:?}");
    }
}

/// Idle names are forgotten on demand; their tokens are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_names_are_forgotten_and_their_tokens_are_not() {
    for flavour in Flavour::ALL {
        let place = Place::new(flavour, Strategy::Session);
        let keeper = place.keeper().await;
        let day = Duration::from_secs(24 * 3600);
        let mut tokens = Vec::new();
        for name in ["old", "older", "fresh"] {
            tokens.push(locked(&keeper, name, lease(5000)).await.token());
        }
        let held = locked(&keeper, "held", lease(5000)).await;
        let sql = Sql::parse(&place.url()).unwrap();
        assert_eq!(sql.forget_idle(day).await.unwrap(), 0);
        assert_eq!(sql.forget_idle(day / 2).await.unwrap_err().kind(), ErrorKind::Invalid);
        let past = match flavour {
            Flavour::MariaDb => "used - INTERVAL 2 DAY",
            Flavour::Postgres => "used - interval '2 days'",
        };
        // As if the clock had been ahead by an hour when they were granted.
        let ahead = "token + 3600000000";
        place.sql(&format!(
            "UPDATE lockkeeper_session_tokens SET used = {past}, token = {ahead} \
             WHERE name <> 'fresh'"
        ));
        assert_eq!(sql.forget_idle(day).await.unwrap(), 2, "{flavour:?}");
        let left = place.sql("SELECT count(*) FROM lockkeeper_session_locks");
        assert_eq!(left, "2", "{flavour:?}");
        held.verify().await.unwrap();
        assert!(keeper.mutex("held").try_lock().await.unwrap().is_none());
        let again = locked(&keeper, "old", lease(5000)).await.token();
        assert!(again.get() > tokens[0].get() + 3_600_000_000, "{flavour:?}: {again}");
    }
}

/// A try that is refused, and a name of another kind, leave no transaction
/// open in a session that is used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_leaves_no_transaction_open() {
    for flavour in Flavour::ALL {
        let place = Place::new(flavour, Strategy::Session);
        let (one, two) = (place.keeper().await, place.keeper().await);
        let guard = locked(&one, "tried", lease(20_000)).await;
        for _ in 0..3 {
            assert!(two.mutex("tried").try_lock().await.unwrap().is_none());
            let error = two.rwlock("tried").try_read().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        // At once, not when the server ends what stands still.
        let only_holder = async || place.open_transactions() == 1;
        let limit = Duration::from_millis(900);
        assert!(eventually(limit, only_holder).await, "{flavour:?}: a transaction is open");
        drop(guard);
    }
}
