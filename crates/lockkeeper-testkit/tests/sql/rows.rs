//! What the tables hold: to be read by people, and not for ever.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::engine::{
    About, Belief, Claim, Engine, Event, Events, Intent, Keep, Mode, Release, Seat, Standing, at,
};
use lockkeeper::{ClaimId, Clock, ErrorKind, Keeper, KeeperId, LockName, LockOptions, Sql, Token};
use lockkeeper_testkit::eventually;
use lockkeeper_testkit::sql::{Flavour, SqlServer};

#[tokio::test]
async fn an_operator_reads_who_holds_and_who_waits() {
    for flavour in Flavour::ALL {
        let server = SqlServer::start(flavour);
        let database = server.database();
        let keeper = Keeper::connect(&server.url(&database)).await.unwrap();
        let options = LockOptions::default().with_note("release 2.14");
        let guard = keeper.mutex("orders").with_options(options).lock().await.unwrap();
        let query = "SELECT name, mode, pid, note, token FROM lockkeeper_names \
                     WHERE until_us > 0";
        let token = guard.token();
        let pid = std::process::id();
        let expected = format!("orders\texclusive\t{pid}\trelease 2.14\t{token}");
        assert_eq!(server.sql(&database, query), expected);
        let readable = |table: &str| {
            let query = match flavour {
                Flavour::MariaDb => {
                    "SELECT abs(timestampdiff(SECOND, until_at, utc_timestamp())) < 60, \
                     label = 'orders' FROM "
                }
                Flavour::Postgres => {
                    "SELECT (until_at BETWEEN now() AND now() + interval '60 s')::int, 1 FROM "
                }
            };
            server.sql(&database, &format!("{query}{table}"))
        };
        assert_eq!(readable("lockkeeper_names"), "1\t1");
        let mutex = keeper.mutex("orders");
        let waiter = tokio::spawn(async move { mutex.lock().await });
        let others = "SELECT name, state, mode, pid, token FROM lockkeeper_claims";
        let waits = format!("orders\tqueued\texclusive\t{pid}\tNULL");
        let waits =
            if flavour == Flavour::MariaDb { &waits } else { waits.trim_end_matches("\tNULL") };
        let queued = async || server.sql(&database, others) == waits;
        assert!(eventually(Duration::from_secs(5), queued).await);
        assert_eq!(readable("lockkeeper_claims"), "1\t1");
        waiter.abort();
        let _ = guard.release().await.unwrap();
        let gone = async || server.sql(&database, query).is_empty();
        assert!(eventually(Duration::from_secs(5), gone).await);
        // The last who held is known, and that it is over.
        let last = "SELECT count(*) FROM lockkeeper_names WHERE until_us = 0 \
                    AND until_at IS NULL AND claim IS NOT NULL";
        assert_eq!(server.sql(&database, last), "1");
        let counter = server.sql(&database, "SELECT counter FROM lockkeeper_names");
        assert!(counter >= token.to_string(), "{counter} after {token}");
    }
}

#[tokio::test]
async fn idle_names_are_forgotten_and_their_tokens_are_not() {
    for flavour in Flavour::ALL {
        let server = SqlServer::start(flavour);
        let database = server.database();
        let url = server.url(&database);
        let sql = Sql::parse(&url).unwrap();
        let keeper = Keeper::connect(&url).await.unwrap();
        for _ in 0..10 {
            let guard = keeper.mutex("old").lock().await.unwrap();
            let _ = guard.release().await.unwrap();
        }
        let last = keeper.status("old").await.unwrap().token.unwrap();
        let held = keeper.mutex("held").lock().await.unwrap();
        keeper.fence("resource").check(last).await.unwrap();
        keeper.latch("latch").set(1).await.unwrap();
        for number in 0..450 {
            let mutex = keeper.mutex(format!("many/{number}"));
            let _ = mutex.try_lock().await.unwrap().unwrap().release().await.unwrap();
        }
        let day = Duration::from_secs(24 * 60 * 60);
        assert_eq!(sql.forget_idle(day).await.unwrap(), 0, "all were used just now");
        // As if nobody had used them for a month.
        let month = 30_i64 * 24 * 60 * 60 * 1_000_000;
        server.sql(&database, &format!("UPDATE lockkeeper_names SET used_us = used_us - {month}"));
        assert_eq!(sql.forget_idle(day * 29).await.unwrap(), 451);
        let left = server.sql(&database, "SELECT name FROM lockkeeper_names ORDER BY name");
        assert_eq!(left, "held\nlatch\nresource");
        assert!(held.verify().await.is_ok());
        let guard = keeper.mutex("old").lock().await.unwrap();
        assert!(guard.token() > last, "{} after {last}", guard.token());
        let error = sql.forget_idle(day / 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

fn claim(keeper: KeeperId, number: u64, name: &LockName, max_waiters: u32) -> Claim {
    Claim {
        id: ClaimId { keeper, number, turn: 0 },
        name: name.clone(),
        mode: Mode::Exclusive,
        lease: Duration::from_secs(30),
        margin: Duration::from_millis(10),
        lock_delay: Duration::ZERO,
        max_waiters,
        under: None,
        about: Arc::new(About::default()),
    }
}

/// A queue too long to be read whole every time is served in order all the same.
#[tokio::test]
async fn a_long_queue_is_served_in_order() {
    const WAITERS: u64 = 150;
    for flavour in Flavour::ALL {
        let server = SqlServer::start(flavour);
        let database = server.database();
        let (events, mut pushed) = Events::channel();
        let keeper = KeeperId::from_number(7);
        let seat = Seat { keeper, clock: Clock::system(), events };
        let engine = at(&server.url(&database)).unwrap().open(seat).await.unwrap();
        let name = LockName::new("long").unwrap();
        let limit = u32::try_from(WAITERS).unwrap();
        let ask = async |number| {
            let claim = claim(keeper, number, &name, limit);
            engine.acquire(&claim, Intent::Queue, Token::ZERO).await
        };
        assert!(matches!(ask(0).await.unwrap(), Standing::Held(_)));
        let mut keeps: Vec<Keep> = Vec::new();
        for number in 1..=WAITERS {
            let standing = ask(number).await.unwrap();
            let Standing::Queued(place) = standing else { panic!("{number}: {standing:?}") };
            assert_eq!(place.ahead, Some(u32::try_from(number - 1).unwrap()), "{number}");
            let claim = Arc::new(claim(keeper, number, &name, limit));
            let belief = Belief::Queued { ticket: place.ticket };
            keeps.push(Keep { claim, belief, floor: Token::ZERO });
            if number % 25 == 0 {
                beat(&*engine, &keeps).await;
            }
        }
        let full = ask(WAITERS + 1).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::TooMany, "{full}");
        assert_eq!(server.sql(&database, "SELECT crowd FROM lockkeeper_names"), "2");
        let how = Release { linger: Duration::ZERO, unsure: false };
        // One gives up, in the middle.
        let quitter = keeps.remove(76);
        engine.release(&quitter.claim, how).await.unwrap();
        let mut holder = Arc::new(claim(keeper, 0, &name, limit));
        while let Some(next) = keeps.first() {
            if keeps.len().is_multiple_of(25) {
                beat(&*engine, &keeps).await;
            }
            engine.release(&holder, how).await.unwrap();
            let winner = loop {
                if let Event::HandedOver { claim, .. } = pushed.recv().await.unwrap() {
                    break claim;
                }
            };
            assert_eq!(winner, next.claim.id, "out of order");
            holder = keeps.remove(0).claim;
        }
        engine.release(&holder, how).await.unwrap();
        assert_eq!(server.sql(&database, "SELECT crowd FROM lockkeeper_names"), "0");
        assert_eq!(server.sql(&database, "SELECT count(*) FROM lockkeeper_claims"), "0");
    }
}

/// Keeps all tickets alive.
async fn beat(engine: &dyn Engine, keeps: &[Keep]) {
    for standing in engine.renew(keeps).await {
        assert!(matches!(standing.unwrap(), Standing::Queued(_)));
    }
}
