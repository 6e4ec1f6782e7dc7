//! The statements, in the words of each database.
//!
//! | Table | One row per | Written by |
//! |---|---|---|
//! | `session_locks` | name, for good; its row lock *is* the lock | whoever first uses the name |
//! | `session_tokens` | name, for good: the last token (0: none yet), how long it is closed | the control session |
//! | `session_holders` | grant: whom to ask; row-locked by the session that holds | inserted by the control session, deleted with the row lock's end |
//! | `session_breaks` | grant that is broken, with the reason | whoever breaks it |
//!
//! The token cannot live in the locked row: it is raised by another session,
//! and committed, while the lock is held, or a connection that dies would
//! take it back. A row of `session_holders` that nobody has locked belongs to
//! a session that has died.

use std::fmt::Write;
use std::time::Duration;

use super::super::config::Sql;
use super::super::dialect::Dialect;
use super::super::fault::Fault;
use super::control::unclear;
use crate::engine::words::{kind_word, mode_words};
use crate::engine::{About, Claim, Kind, Mode};
use crate::name::LockName;
use crate::token::{ClaimId, Token};

/// Which database it is, as far as its words differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tongue {
    MySql,
    MariaDb,
    Postgres,
}

/// The words of one database, for the tables of one prefix.
#[derive(Clone, Debug)]
pub(super) struct Words {
    pub(super) tongue: Tongue,
    pub(super) dialect: &'static dyn Dialect,
    pub(super) locks: String,
    pub(super) tokens: String,
    pub(super) holders: String,
    pub(super) breaks: String,
}

/// A dead waiter that is given the row keeps it no longer than this.
const UNCONFIRMED: Duration = Duration::from_secs(2);
/// A holder's row that is not locked is that of a dead session, or of one that
/// is just about to lock it: younger than this, it is left alone.
pub(super) const ARRIVING: Duration = Duration::from_secs(1);

impl Words {
    pub(super) fn new(sql: &Sql, tongue: Tongue) -> Self {
        let table = |name| sql.table(name);
        Words {
            tongue,
            dialect: sql.dialect,
            locks: table("session_locks"),
            tokens: table("session_tokens"),
            holders: table("session_holders"),
            breaks: table("session_breaks"),
        }
    }

    pub(super) fn is_postgres(&self) -> bool {
        self.tongue == Tongue::Postgres
    }

    /// What makes the tables.
    pub(super) fn tables(&self) -> Vec<String> {
        let Words { locks, tokens, holders, breaks, .. } = self;
        let (name, claim, text, time, end) = if self.is_postgres() {
            let plain = "text COLLATE \"C\" NOT NULL";
            (plain, plain, "text NOT NULL", "timestamptz", "")
        } else {
            (
                "VARBINARY(512) NOT NULL",
                "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL",
                "TEXT NOT NULL",
                "DATETIME(6)",
                ", label VARCHAR(512) GENERATED ALWAYS AS (CONVERT(name USING utf8mb4)) VIRTUAL",
            )
        };
        let kind =
            if self.is_postgres() { "" } else { " ENGINE = InnoDB DEFAULT CHARSET = utf8mb4" };
        let make = |table: &str, columns: String| {
            format!("CREATE TABLE IF NOT EXISTS {table} ({columns}){kind}")
        };
        vec![
            make(locks, format!("name {name} PRIMARY KEY, kind varchar(20) NOT NULL{end}")),
            make(
                tokens,
                format!(
                    "name {name} PRIMARY KEY, token bigint NOT NULL, closed_until {time}, \
                     used {time} NOT NULL{end}"
                ),
            ),
            make(
                holders,
                format!(
                    "name {name}, claim {claim}, mode varchar(20) NOT NULL, token bigint, \
                     who {text}, host {text}, pid bigint NOT NULL, note {text}, \
                     since {time} NOT NULL, lease_ms bigint NOT NULL, delay_ms bigint NOT NULL, \
                     session bigint NOT NULL, PRIMARY KEY (name, claim){end}"
                ),
            ),
            make(
                breaks,
                format!("claim {claim} PRIMARY KEY, reason {text}, since {time} NOT NULL"),
            ),
        ]
    }

    /// Fails unless every table is there, with our columns.
    pub(super) fn shape(&self) -> String {
        let Words { locks, tokens, holders, breaks, .. } = self;
        format!(
            "SELECT name, kind FROM {locks} WHERE 1 = 0; \
             SELECT name, token, closed_until, used FROM {tokens} WHERE 1 = 0; \
             SELECT name, claim, mode, token, who, host, pid, note, since, lease_ms, delay_ms, \
             session FROM {holders} WHERE 1 = 0; \
             SELECT claim, reason, since FROM {breaks} WHERE 1 = 0"
        )
    }

    /// Says who the session is, for the server and as it says itself.
    pub(super) fn who_am_i(&self) -> &'static str {
        if self.is_postgres() { "SELECT pg_backend_pid()" } else { "SELECT CONNECTION_ID()" }
    }

    /// What a session that will wait and hold needs beyond the usual.
    pub(super) fn prepare(&self) -> &'static str {
        if self.is_postgres() {
            // A waiter whose process is gone is noticed while it waits; and no
            // limit of the server's own ends a lock.
            "SET client_connection_check_interval = 500; SET idle_session_timeout = 0; \
             SELECT set_config('transaction_timeout', '0', false) \
             WHERE current_setting('transaction_timeout', true) IS NOT NULL"
        } else if self.tongue == Tongue::MariaDb {
            "SET SESSION max_statement_time = 0"
        } else {
            "SET SESSION max_execution_time = 0"
        }
    }

    /// Begins a transaction and asks for the row of a name: waiting for it up
    /// to `slice`, or not at all. The last four answers are the row, the row
    /// whether locked or not, how many holders are noted, and how long the name
    /// is closed: in this order, because whoever deletes the note of a dead one
    /// closes the name in the same transaction.
    pub(super) fn lock(&self, claim: &Claim, slice: Option<Duration>) -> String {
        let Words { locks, tokens, holders, .. } = self;
        let key = self.key(&claim.name);
        let mut out = String::new();
        let wait = slice.unwrap_or(Duration::from_secs(1));
        let idle = UNCONFIRMED.min(claim.lease);
        if self.is_postgres() {
            let _ = write!(
                out,
                "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0; \
                 SET LOCAL lock_timeout = {}; \
                 SET LOCAL idle_in_transaction_session_timeout = {}; ",
                wait.as_millis(),
                millis(idle),
            );
        } else {
            let _ = write!(
                out,
                "SET SESSION innodb_lock_wait_timeout = {}, {}; START TRANSACTION; ",
                wait.as_secs().max(1),
                self.idle(idle),
            );
        }
        let mode = match (claim.mode, self.tongue) {
            (Mode::Read, Tongue::MariaDb) => "LOCK IN SHARE MODE",
            (Mode::Read, _) => "FOR SHARE",
            _ => "FOR UPDATE",
        };
        let skip = if slice.is_some() { "" } else { " SKIP LOCKED" };
        let left = self.millis_left("closed_until");
        let _ = write!(
            out,
            "SELECT kind FROM {locks} WHERE name = {key} {mode}{skip}; \
             SELECT kind FROM {locks} WHERE name = {key}; \
             SELECT count(*) FROM {holders} WHERE name = {key}; \
             SELECT {left} FROM {tokens} WHERE name = {key} AND closed_until > {now}",
            now = self.now(),
        );
        out
    }

    /// Makes the row of a name, unless it is there.
    pub(super) fn make_lock(&self, name: &LockName, kind: Kind) -> String {
        let values = format!("({}, '{}')", self.key(name), kind_word(kind));
        self.dialect.insert_new(&self.locks, "name, kind", &values)
    }

    /// Raises the token and notes the holder. The last answer but one is the token.
    pub(super) fn register(&self, claim: &Claim, floor: Token, session: u64) -> String {
        let Words { tokens, holders, .. } = self;
        let (key, now) = (self.key(&claim.name), self.now());
        let least = i64::try_from(floor.get()).unwrap_or(i64::MAX).max(0);
        let About { who, host, pid, note } = &*claim.about;
        let note_down = |token: &str| {
            format!(
                "INSERT INTO {holders} (name, claim, mode, token, who, host, pid, note, since, \
                 lease_ms, delay_ms, session) VALUES ({key}, '{}', '{}', {token}, {}, {}, {pid}, \
                 {}, {now}, {}, {}, {session})",
                claim.id,
                mode_words(claim.mode).0,
                self.text(who),
                self.text(host),
                self.text(note),
                millis(claim.lease),
                millis(claim.lock_delay),
            )
        };
        let nobody = self.dialect.bytes("");
        let forgotten = if self.is_postgres() {
            format!("(SELECT f.token FROM {tokens} f WHERE f.name = {nobody})")
        } else {
            "@f".to_owned()
        };
        // A name that has no token yet, or was forgotten, starts above
        // whatever it had: no name is granted more often than once in a
        // microsecond, and those that were forgotten left their tokens under
        // the empty name.
        let clock = self.dialect.clock();
        let first = format!("greatest({least}, {clock}, coalesce({forgotten}, 0) + 1)");
        // Readers leave the token as it is; the row says that the name is used.
        let (first, next, token) = match (claim.mode.is_exclusive(), self.is_postgres()) {
            (true, true) => (
                first.clone(),
                format!("CASE t.token WHEN 0 THEN {first} ELSE greatest(t.token + 1, {least}) END"),
                format!("(SELECT token FROM {tokens} WHERE name = {key})"),
            ),
            (true, false) => (
                format!("LAST_INSERT_ID({first})"),
                format!("LAST_INSERT_ID(IF(token = 0, {first}, GREATEST(token + 1, {least})))"),
                "LAST_INSERT_ID()".to_owned(),
            ),
            (false, true) => ("0".to_owned(), "t.token".to_owned(), "NULL".to_owned()),
            (false, false) => ("0".to_owned(), "token".to_owned(), "NULL".to_owned()),
        };
        let note = note_down(&token);
        if self.is_postgres() {
            format!(
                "BEGIN; INSERT INTO {tokens} AS t (name, token, used) \
                 VALUES ({key}, {first}, {now}) \
                 ON CONFLICT (name) DO UPDATE SET token = {next}, used = {now}; \
                 {note}; SELECT {token}; COMMIT",
            )
        } else {
            format!(
                "BEGIN; SET @f = (SELECT token FROM {tokens} WHERE name = {nobody}); \
                 INSERT INTO {tokens} (name, token, used) VALUES ({key}, {first}, {now}) \
                 ON DUPLICATE KEY UPDATE token = {next}, used = {now}; \
                 {note}; SELECT {token}; COMMIT",
            )
        }
    }

    /// The first heartbeat: the session's time to live becomes the lease, and
    /// its row among the holders is locked, which shows that it lives. The
    /// last answer has a row, unless it was taken for dead.
    pub(super) fn confirm(&self, claim: &Claim) -> String {
        let (holders, key) = (&self.holders, self.key(&claim.name));
        let idle = if self.is_postgres() {
            // Probes of the server's own must not find a silent holder dead
            // before its lease is over. A commit of nothing but the release
            // need not be on the disk.
            format!(
                "SET LOCAL idle_in_transaction_session_timeout = {}; \
                 SET LOCAL tcp_keepalives_idle = {}; SET LOCAL synchronous_commit = off",
                millis(claim.lease),
                whole_seconds(claim.lease),
            )
        } else {
            format!("SET SESSION {}", self.idle(claim.lease))
        };
        format!(
            "{idle}; SELECT 1 FROM {holders} WHERE name = {key} AND claim = '{}' FOR UPDATE",
            claim.id
        )
    }

    /// A heartbeat. It answers with a row if the grant is broken.
    pub(super) fn beat(&self, claim: ClaimId) -> String {
        format!("SELECT reason FROM {} WHERE claim = '{claim}'", self.breaks)
    }

    /// Ends the row lock, and with it the holder's row.
    pub(super) fn release(&self, claim: &Claim) -> String {
        format!("{}; {}", self.forget(&claim.name, claim.id), self.end("COMMIT"))
    }

    /// Deletes what is noted about a grant.
    pub(super) fn forget(&self, name: &LockName, claim: ClaimId) -> String {
        let breaks = &self.breaks;
        let holder = self.forget_holder(name, claim);
        format!("DELETE FROM {breaks} WHERE claim = '{claim}'; {holder}")
    }

    /// The same, but for the reason why it was broken.
    pub(super) fn forget_holder(&self, name: &LockName, claim: ClaimId) -> String {
        let (holders, key) = (&self.holders, self.key(name));
        format!("DELETE FROM {holders} WHERE name = {key} AND claim = '{claim}'")
    }

    /// Closes a name for some time.
    pub(super) fn close(&self, name: &LockName, time: Duration) -> String {
        let (tokens, key, now) = (&self.tokens, self.key(name), self.now());
        if self.is_postgres() {
            let until = format!("clock_timestamp() + interval '{} milliseconds'", millis(time));
            format!(
                "INSERT INTO {tokens} AS t (name, token, closed_until, used) \
                 VALUES ({key}, 0, {until}, {now}) \
                 ON CONFLICT (name) DO UPDATE \
                 SET closed_until = greatest(t.closed_until, {until})"
            )
        } else {
            let until = format!("UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND", time.as_micros());
            format!(
                "INSERT INTO {tokens} (name, token, closed_until, used) \
                 VALUES ({key}, 0, {until}, {now}) \
                 ON DUPLICATE KEY UPDATE \
                 closed_until = GREATEST(COALESCE(closed_until, {until}), {until})"
            )
        }
    }

    /// Ends a session.
    pub(super) fn kill(&self, session: u64) -> String {
        if self.is_postgres() {
            // The number may be another process's by now; ours say who they are.
            format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = {session} \
                 AND COALESCE(application_name, 'lockkeeper') = 'lockkeeper'"
            )
        } else {
            format!("KILL {session}")
        }
    }

    /// Which of these sessions there are; nothing where the driver notices
    /// the end of a connection by itself.
    pub(super) fn alive(&self, sessions: &[u64]) -> Option<String> {
        if self.is_postgres() {
            return None;
        }
        let sessions: Vec<String> = sessions.iter().map(u64::to_string).collect();
        let sessions = sessions.join(", ");
        Some(format!("SELECT id FROM information_schema.processlist WHERE id IN ({sessions})"))
    }

    /// The limits on standing still inside a transaction. MySQL has but one,
    /// for connections, in whole seconds.
    fn idle(&self, time: Duration) -> String {
        let time = whole_seconds(time);
        match self.tongue {
            Tongue::MariaDb => format!(
                "idle_transaction_timeout = {time}, idle_readonly_transaction_timeout = {time}, \
                 idle_write_transaction_timeout = {time}"
            ),
            _ => format!("wait_timeout = {time}"),
        }
    }

    /// Ends a transaction, with `COMMIT` or `ROLLBACK`, and the limit on
    /// standing still with it.
    pub(super) fn end(&self, how: &str) -> String {
        match self.tongue {
            Tongue::MySql => format!("{how}; SET SESSION wait_timeout = 28800"),
            _ => how.to_owned(),
        }
    }

    pub(super) fn now(&self) -> &'static str {
        if self.is_postgres() { "clock_timestamp()" } else { "UTC_TIMESTAMP(6)" }
    }

    pub(super) fn span(&self, time: Duration) -> String {
        if self.is_postgres() {
            format!("interval '{} milliseconds'", millis(time))
        } else {
            format!("INTERVAL {} MICROSECOND", time.as_micros())
        }
    }

    pub(super) fn millis_since(&self, column: &str) -> String {
        if self.is_postgres() {
            format!("floor(extract(epoch FROM clock_timestamp() - {column}) * 1000)::bigint")
        } else {
            format!("TIMESTAMPDIFF(MICROSECOND, {column}, UTC_TIMESTAMP(6)) DIV 1000")
        }
    }

    pub(super) fn millis_left(&self, column: &str) -> String {
        if self.is_postgres() {
            format!("ceil(extract(epoch FROM {column} - clock_timestamp()) * 1000)::bigint")
        } else {
            format!("(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {column}) + 999) DIV 1000")
        }
    }

    /// Any text, as a literal.
    pub(super) fn text(&self, text: &str) -> String {
        self.dialect.text(text)
    }

    /// A name as it stands in the tables, as a literal.
    pub(super) fn key(&self, name: &LockName) -> String {
        self.dialect.bytes(name.as_str())
    }

    /// A text out of the tables.
    pub(super) fn read(&self, stored: &str) -> Result<String, Fault> {
        self.dialect.read(stored).ok_or_else(unclear)
    }
}

/// Half a millisecond more is harmless, one less is not.
fn millis(time: Duration) -> u128 {
    time.as_micros().div_ceil(1000)
}

fn whole_seconds(time: Duration) -> u128 {
    time.as_millis().div_ceil(1000).max(1)
}
