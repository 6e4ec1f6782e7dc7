//! What operations ask of a server, by the server's own count, and when they
//! read its clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::engine::{
    About, Belief, Claim, Engine, Events, Intent, Keep, Mode, Release, Seat, Standing, at,
};
use lockkeeper::{ClaimId, Clock, Keeper, KeeperId, LockName, LockOptions, Sql, Token};
use lockkeeper_testkit::sql::{Flavour, Settings, SqlServer};
use lockkeeper_testkit::{eventually, within};

const WORDS: [&str; 6] = ["begin", "select", "insert", "update", "delete", "commit"];

/// A server that counts statements, or writes them down.
struct Counted(SqlServer);

impl Counted {
    fn start(flavour: Flavour) -> Self {
        let settings = match flavour {
            Flavour::MariaDb => Vec::new(),
            Flavour::Postgres => vec!["log_statement=all".to_owned()],
        };
        Counted(SqlServer::with(flavour, Settings { settings, ..Settings::default() }))
    }

    /// How many statements of each sort there have been.
    fn now(&self) -> BTreeMap<&'static str, i64> {
        match self.0.flavour() {
            Flavour::MariaDb => {
                let rows = self.0.sql("", "SHOW GLOBAL STATUS LIKE 'Com_%'");
                let count = |word| {
                    let row =
                        rows.lines().find_map(|row| row.strip_prefix(&format!("Com_{word}\t")));
                    (word, row.and_then(|number| number.parse().ok()).expect("a number"))
                };
                WORDS.into_iter().map(count).collect()
            }
            Flavour::Postgres => {
                let log = std::fs::read_to_string(self.0.folder().join("log")).expect("a log");
                let said = log.lines().filter_map(|line| line.split_once("LOG:  statement: "));
                let mut counts: BTreeMap<_, _> = WORDS.map(|word| (word, 0)).into();
                for statement in said.flat_map(|(_, said)| said.split("; ")) {
                    *counts.entry(sort(statement)).or_default() += 1;
                }
                counts
            }
        }
    }

    /// What happened since then, but for what we asked ourselves.
    fn since(&self, before: &BTreeMap<&'static str, i64>) -> [i64; 6] {
        let after = self.now();
        let again = self.now();
        WORDS.map(|word| (after[word] - before[word]) - (again[word] - after[word]))
    }
}

/// What a statement of ours is, behind the name under which it is prepared.
fn sort(statement: &str) -> &'static str {
    let phrases = [
        ("EXECUTE lockkeeper_lock", "select"),
        ("EXECUTE lockkeeper_claims", "select"),
        ("EXECUTE lockkeeper_set", "update"),
        ("EXECUTE lockkeeper_keep", "update"),
        ("EXECUTE lockkeeper_add", "insert"),
        ("EXECUTE lockkeeper_drop", "delete"),
    ];
    // A connection that is made meanwhile looks at settings, and sets them.
    if statement.contains("current_setting(") {
        return "others";
    }
    let plain = WORDS.into_iter().find(|word| statement.to_lowercase().starts_with(word));
    let phrase = phrases.into_iter().find(|(start, _)| statement.starts_with(start));
    plain.or(phrase.map(|(_, word)| word)).unwrap_or("others")
}

/// Lock and release change one row twice, and ask for nothing beside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_pair_is_two_bare_transactions() {
    const PAIRS: i64 = 20;
    for flavour in Flavour::ALL {
        let counted = Counted::start(flavour);
        let keeper = Keeper::connect(&counted.0.url(&counted.0.database())).await.unwrap();
        let mutex = keeper.mutex("solo");
        let _ = mutex.lock().await.unwrap().release().await.unwrap();
        let before = counted.now();
        for _ in 0..PAIRS {
            let _ = mutex.lock().await.unwrap().release().await.unwrap();
        }
        let twice = 2 * PAIRS;
        assert_eq!(counted.since(&before), [twice, twice, 0, twice, 0, twice], "{flavour:?}");
    }
}

fn claim(keeper: KeeperId, number: u64, name: &str) -> Claim {
    Claim {
        id: ClaimId { keeper, number, turn: 0 },
        name: LockName::new(name).unwrap(),
        mode: Mode::Exclusive,
        lease: Duration::from_secs(30),
        margin: Duration::from_millis(10),
        lock_delay: Duration::ZERO,
        max_waiters: 1000,
        under: None,
        about: Arc::new(About::default()),
    }
}

async fn engine(server: &SqlServer, database: &str, keeper: KeeperId) -> Arc<dyn Engine> {
    let (events, _) = Events::channel();
    let seat = Seat { keeper, clock: Clock::system(), events };
    at(&server.url(database)).unwrap().open(seat).await.unwrap()
}

/// One transaction with so many questions, that changes rows by one statement.
fn check(flavour: Flavour, counts: [i64; 6], questions: i64) {
    let [begin, select, insert, update, delete, commit] = counts;
    assert_eq!([begin, insert, update, commit], [1, 0, 1, 1], "{flavour:?}");
    match flavour {
        // It is asked for mail meanwhile, and that is swept once.
        Flavour::MariaDb => assert!(select <= questions + 20 && delete <= 1, "{counts:?}"),
        Flavour::Postgres => assert_eq!([select, delete], [questions, 0]),
    }
}

/// A renewal of many grants and places is as many statements as one of few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beat_of_a_hundred_names_is_a_handful_of_statements() {
    for flavour in Flavour::ALL {
        let counted = Counted::start(flavour);
        let database = counted.0.database();
        let (one, two) = (KeeperId::from_number(1), KeeperId::from_number(2));
        let holder = engine(&counted.0, &database, one).await;
        let waiter = engine(&counted.0, &database, two).await;
        let (mut held, mut queued) = (Vec::new(), Vec::new());
        for number in 0..100 {
            let name = format!("name {number}");
            let first = Arc::new(claim(one, number, &name));
            let standing = holder.acquire(&first, Intent::Queue, Token::ZERO).await.unwrap();
            let Standing::Held(grant) = standing else { panic!("{standing:?}") };
            let belief = Belief::Held { token: grant.token };
            held.push(Keep { claim: first, belief, floor: Token::ZERO });
        }
        let until = "SELECT min(until_us) FROM lockkeeper_";
        let ends = |table: &str| -> i64 {
            counted.0.sql(&database, &format!("{until}{table}")).parse().expect("a number")
        };
        let (end, before) = (ends("names"), counted.now());
        for standing in holder.renew(&held).await {
            assert!(matches!(standing.unwrap(), Standing::Held(_)), "{flavour:?}");
        }
        // Nobody waits: no row of a claim is read, and none written.
        check(flavour, counted.since(&before), 1);
        assert!(ends("names") > end, "{flavour:?}: not renewed");
        for number in 0..100 {
            let second = Arc::new(claim(two, number, &format!("name {number}")));
            let standing = waiter.acquire(&second, Intent::Queue, Token::ZERO).await.unwrap();
            let Standing::Queued(place) = standing else { panic!("{standing:?}") };
            let belief = Belief::Queued { ticket: place.ticket };
            queued.push(Keep { claim: second, belief, floor: Token::ZERO });
            if number % 20 == 19 {
                // On a busy machine a ticket may not live until the last is had.
                waiter.renew(&queued).await;
            }
        }
        let (end, before) = (ends("claims"), counted.now());
        for standing in waiter.renew(&queued).await {
            assert!(matches!(standing.unwrap(), Standing::Queued(_)), "{flavour:?}");
        }
        check(flavour, counted.since(&before), 2);
        assert!(ends("claims") > end, "{flavour:?}: not renewed");
        let how = Release { linger: Duration::ZERO, unsure: false };
        for keep in queued.iter().chain(&held) {
            let engine = if keep.claim.id.keeper == one { &holder } else { &waiter };
            engine.release(&keep.claim, how).await.unwrap();
        }
        assert_eq!(counted.0.sql(&database, "SELECT count(*) FROM lockkeeper_claims"), "0");
    }
}

/// Whoever had to wait for a row reads the clock after that, not before: else
/// it would take leases for alive that are over, and grant shorter ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_is_read_after_the_row_is_locked() {
    // A server may be told that all clocks stand still during a statement.
    let still = Settings { settings: vec!["sysdate-is-now".to_owned()], ..Settings::default() };
    let servers = [
        SqlServer::start(Flavour::MariaDb),
        SqlServer::with(Flavour::MariaDb, still),
        SqlServer::start(Flavour::Postgres),
    ];
    for server in servers {
        let flavour = server.flavour();
        let database = server.database();
        let url = server.url(&database);
        let keeper = Keeper::connect(&url).await.unwrap();
        let options = LockOptions::default().with_lease(Duration::from_secs(30));
        let mutex = keeper.mutex("row").with_options(options);
        let _ = mutex.lock().await.unwrap().release().await.unwrap();
        let mut blocker = Sql::parse(&url).unwrap().bare(None).await.unwrap();
        let (begin, commit) = (blocker.begin(), blocker.commit());
        let lock = format!("{begin}; SELECT name FROM lockkeeper_names FOR UPDATE");
        assert_eq!(blocker.batch(&lock).await.unwrap().len(), 1);
        let waiter = tokio::spawn(async move { mutex.lock().await });
        // Shorter than anybody waits for a row.
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(!waiter.is_finished(), "{flavour:?}: the row was not locked");
        let clock = match flavour {
            Flavour::MariaDb => "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)",
            Flavour::Postgres => "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
        };
        let unlocked: i64 = blocker.batch(clock).await.unwrap()[0][0].parse().unwrap();
        blocker.batch(commit).await.unwrap();
        let guard = within(Duration::from_secs(5), "the lock", waiter).await.unwrap().unwrap();
        let since = server.sql(&database, "SELECT since_us FROM lockkeeper_names");
        let since: i64 = since.parse().unwrap();
        assert!(since >= unlocked, "{flavour:?}: {} µs before", unlocked - since);
        drop(guard);
    }
}

/// Whoever waits costs the server by the process and by the second, not by the
/// waiter nor by the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_waiters_for_many_names_cost_what_one_does() {
    const LOOK: Duration = Duration::from_secs(3);
    for flavour in Flavour::ALL {
        let counted = Counted::start(flavour);
        let mut rates = Vec::new();
        for names in [1, 10, 100] {
            let url = counted.0.url(&counted.0.database());
            let (holder, waiter) =
                (Keeper::connect(&url).await.unwrap(), Keeper::connect(&url).await.unwrap());
            let (mut guards, mut waiters) = (Vec::new(), Vec::new());
            for name in 0..names {
                let options = LockOptions::default().with_lease(Duration::from_secs(60));
                let mutex = holder.mutex(format!("{name}")).with_options(options);
                guards.push(mutex.lock().await.unwrap());
                let mutex = waiter.mutex(format!("{name}"));
                waiters.push(tokio::spawn(async move { mutex.lock().await.map(drop) }));
            }
            let waiting = async || {
                let mut waiting = 0;
                for status in waiter.list("", None, 200).await.unwrap().entries {
                    waiting += status.waiters.len();
                }
                waiting == names
            };
            assert!(eventually(Duration::from_secs(10), waiting).await, "{flavour:?}");
            // Until looking for mail has slowed down.
            tokio::time::sleep(Duration::from_secs(2)).await;
            let before = counted.now();
            tokio::time::sleep(LOOK).await;
            let statements: i64 = counted.since(&before).iter().sum();
            rates.push(statements as f64 / LOOK.as_secs_f64());
            waiters.iter().for_each(|waiter| waiter.abort());
            drop(guards);
        }
        println!("{flavour:?}: statements a second for 1, 10 and 100 names: {rates:.1?}");
        let most = rates[0] * 2.0 + 10.0;
        assert!(rates.iter().all(|&rate| rate < most), "{flavour:?}: {rates:?}");
    }
}
