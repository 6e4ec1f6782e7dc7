//! What these tests have in common.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper::{Cause, Guard, Keeper, LockOptions};
use lockkeeper_testkit::sql::{Flavour, SqlServer};
use lockkeeper_testkit::{eventually, start, within};

/// What locks are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    Lease,
    Session,
}

impl Strategy {
    pub(crate) const ALL: [Strategy; 2] = [Strategy::Lease, Strategy::Session];

    /// The end of a URL.
    pub(crate) fn parameters(self) -> &'static str {
        match self {
            Strategy::Lease => "?connect=5s",
            Strategy::Session => "?strategy=session&connect=5s",
        }
    }
}

/// A database on a server, and how to use it.
pub(crate) struct Place {
    pub(crate) server: Arc<SqlServer>,
    pub(crate) database: String,
    pub(crate) strategy: Strategy,
}

impl Place {
    /// A fresh database on a server that these tests share.
    pub(crate) fn new(flavour: Flavour, strategy: Strategy) -> Self {
        Place::on(start::sql_server(flavour), strategy)
    }

    /// A fresh database on this server.
    pub(crate) fn on(server: Arc<SqlServer>, strategy: Strategy) -> Self {
        let database = server.database();
        Place { server, database, strategy }
    }

    /// Every database with every strategy.
    pub(crate) fn all() -> impl Iterator<Item = Place> {
        let pairs = Flavour::ALL
            .into_iter()
            .flat_map(|flavour| Strategy::ALL.into_iter().map(move |strategy| (flavour, strategy)));
        pairs.map(|(flavour, strategy)| Place::new(flavour, strategy))
    }

    pub(crate) fn url(&self) -> String {
        self.server.url(&self.database) + self.strategy.parameters()
    }

    pub(crate) fn url_at(&self, port: u16) -> String {
        self.server.url_at(port, &self.database) + self.strategy.parameters()
    }

    pub(crate) async fn keeper(&self) -> Keeper {
        Keeper::connect(&self.url()).await.expect("a keeper")
    }

    /// What is asked of the database by its administrator.
    pub(crate) fn sql(&self, query: &str) -> String {
        self.server.sql(&self.database, query)
    }

    /// Waits until a row that is written now is known to be younger than the
    /// server's start: MariaDB counts its life in whole seconds.
    pub(crate) async fn settled(&self) {
        if self.server.flavour() == Flavour::MariaDb {
            let uptime = "SHOW GLOBAL STATUS LIKE 'Uptime'";
            let up = async || {
                let seconds = self.sql(uptime);
                seconds.split_whitespace().last().is_some_and(|text| text.parse().unwrap_or(0) > 2)
            };
            assert!(eventually(Duration::from_secs(10), up).await);
        }
    }

    /// How many sessions have a transaction open.
    pub(crate) fn open_transactions(&self) -> usize {
        let count = match self.server.flavour() {
            Flavour::MariaDb => self.mariadb_transactions("count(*)", ""),
            Flavour::Postgres => self.sql(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                 AND usename = 'keeper' AND xact_start IS NOT NULL",
            ),
        };
        count.parse().expect("a number")
    }

    /// Ends every session that has a transaction open; returns how many.
    pub(crate) fn kill_open_transactions(&self) -> usize {
        match self.server.flavour() {
            Flavour::MariaDb => {
                let ids =
                    self.mariadb_transactions("t.trx_mysql_thread_id", "AND p.user = 'keeper'");
                ids.lines().map(|id| self.server.sql("", &format!("KILL {id}"))).count()
            }
            Flavour::Postgres => {
                let ended = self.sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE datname = current_database() AND usename = 'keeper' \
                     AND state = 'idle in transaction'",
                );
                ended.lines().count()
            }
        }
    }

    /// MariaDB answers from a copy that it makes anew only when nobody has
    /// read it for 100 ms: whoever asks more often sees the past for ever.
    fn mariadb_transactions(&self, what: &str, and: &str) -> String {
        static LAST_READ: Mutex<Option<Instant>> = Mutex::new(None);
        let mut last = LAST_READ.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = *last {
            let rest = Duration::from_millis(150).saturating_sub(last.elapsed());
            std::thread::sleep(rest);
        }
        let answer = self.sql(&format!(
            "SELECT {what} FROM information_schema.innodb_trx t \
             JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
             WHERE p.db = DATABASE() {and}"
        ));
        *last = Some(Instant::now());
        answer
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}", self.server.flavour(), self.strategy)
    }
}

pub(crate) fn lease(millis: u64) -> LockOptions {
    LockOptions::default()
        .with_lease(Duration::from_millis(millis))
        .with_wait(Duration::from_secs(30))
}

pub(crate) async fn locked(keeper: &Keeper, name: &str, options: LockOptions) -> Guard {
    let mutex = keeper.mutex(name).with_options(options);
    within(Duration::from_secs(30), "the lock", mutex.lock()).await.unwrap()
}

/// Waits until the guard is lost, and says how long that took.
pub(crate) async fn until_lost(guard: &Guard, limit: Duration) -> (Cause, Duration) {
    let start = Instant::now();
    let cause = within(limit, "the loss", guard.lost()).await;
    assert!(!guard.is_held());
    (cause, start.elapsed())
}
