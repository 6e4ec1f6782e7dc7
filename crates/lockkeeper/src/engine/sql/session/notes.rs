//! The statements about what is noted for others to see: who holds, who is
//! dead, what is broken, which names are idle.

use std::time::Duration;

use super::words::{ARRIVING, Words};
use crate::engine::Mode;
use crate::name::LockName;
use crate::token::ClaimId;

impl Words {
    /// Locks the rows of dead holders of a name: none but the dead have rows
    /// that can be locked. Of those that `mine` excludes all are taken, of
    /// others the ones that are not just arriving.
    ///
    /// Whoever does this does it one after the other, by the row of the name's
    /// token, so that nobody takes what another is about to delete for the row
    /// of somebody alive. The answers are for how long the name is closed
    /// already, the rows, how many there should be of those that `mine`
    /// excludes, and for how long the server has been up.
    pub(super) fn find_dead(&self, name: &LockName, mine: Option<Mode>) -> String {
        let Words { tokens, holders, .. } = self;
        let key = self.key(name);
        let old = format!("since < {} - {}", self.now(), self.span(ARRIVING));
        let (certain, whom) = match mine {
            Some(mode) if mode.is_exclusive() => ("1 = 1", "1 = 1".to_owned()),
            Some(_) => ("mode <> 'read'", format!("({old} OR mode <> 'read')")),
            None => ("1 = 0", old),
        };
        let (age, left) = (self.millis_since("since"), self.millis_left("closed_until"));
        // What was committed while we waited must be seen.
        let level = if self.is_postgres() { " ISOLATION LEVEL READ COMMITTED" } else { "" };
        format!(
            "BEGIN{level}; SELECT {left} FROM {tokens} WHERE name = {key} FOR UPDATE; \
             SELECT claim, lease_ms, delay_ms, {age}, CASE WHEN {certain} THEN 1 ELSE 0 END \
             FROM {holders} WHERE name = {key} AND {whom} FOR UPDATE SKIP LOCKED; \
             SELECT count(*) FROM {holders} WHERE name = {key} AND {certain}; {}",
            self.uptime()
        )
    }

    /// How long the server has been up: a word, and milliseconds or seconds.
    fn uptime(&self) -> String {
        if self.is_postgres() {
            format!("SELECT 'uptime', {}", self.millis_since("pg_postmaster_start_time()"))
        } else {
            "SHOW GLOBAL STATUS LIKE 'Uptime'".to_owned()
        }
    }

    /// What the answer to that says at least.
    pub(super) fn uptime_of(&self, number: i64) -> Duration {
        let number = u64::try_from(number).unwrap_or(0);
        if self.is_postgres() {
            Duration::from_millis(number)
        } else {
            // Whole seconds at both ends: it may have been up for one less.
            Duration::from_secs(number.saturating_sub(1))
        }
    }

    /// All there is to know of some names: kinds, tokens and closed times,
    /// holders, and which of the holders are dead.
    pub(super) fn look(&self, keys: &[String]) -> String {
        let Words { locks, tokens, holders, breaks, .. } = self;
        let keys = keys.join(", ");
        let (age, left) = (self.millis_since("h.since"), self.millis_left("closed_until"));
        let old = format!("since < {} - {}", self.now(), self.span(ARRIVING));
        format!(
            "SELECT name FROM {holders} WHERE name IN ({keys}) AND {old} FOR UPDATE SKIP LOCKED; \
             SELECT name, kind FROM {locks} WHERE name IN ({keys}); \
             SELECT name, token, {left} FROM {tokens} WHERE name IN ({keys}); \
             SELECT h.name, h.claim, h.mode, h.token, h.who, h.host, h.pid, h.note, {age}, \
             h.lease_ms, b.claim FROM {holders} h LEFT JOIN {breaks} b ON b.claim = h.claim \
             WHERE h.name IN ({keys}) ORDER BY h.name, h.since, h.claim"
        )
    }

    /// The names in use after `from` that start with `prefix`.
    pub(super) fn list(&self, prefix: &str, from: Option<&str>, limit: usize) -> String {
        let Words { tokens, holders, .. } = self;
        let prefix = self.dialect.bytes(prefix);
        let starts = match self.is_postgres() {
            true => format!("starts_with(name, {prefix})"),
            false => format!("LEFT(name, LENGTH({prefix})) = {prefix}"),
        };
        let after =
            from.map_or(String::new(), |from| format!(" AND name > {}", self.dialect.bytes(from)));
        format!(
            "SELECT name FROM {holders} WHERE {starts}{after} UNION \
             SELECT name FROM {tokens} WHERE {starts}{after} AND closed_until > {} \
             ORDER BY name LIMIT {limit}",
            self.now(),
        )
    }

    /// What is noted about a grant: its session and token; then a row, if
    /// that session is dead.
    pub(super) fn noted(&self, name: &LockName, claim: ClaimId) -> String {
        let (holders, key) = (&self.holders, self.key(name));
        let row = format!("FROM {holders} WHERE name = {key} AND claim = '{claim}'");
        format!("SELECT session, token {row}; SELECT 1 {row} FOR UPDATE SKIP LOCKED")
    }

    /// Some names after `from` that nobody has used for `idle`, locked.
    pub(super) fn find_idle(&self, idle: Duration, from: Option<&str>, limit: usize) -> String {
        let Words { locks, tokens, .. } = self;
        let (now, idle, nobody) = (self.now(), self.span(idle), self.dialect.bytes(""));
        let from = from.map_or(nobody, |from| self.dialect.bytes(from));
        format!(
            "BEGIN; SELECT name FROM {locks} WHERE name IN (SELECT n.name FROM (SELECT name \
             FROM {tokens} WHERE used < {now} - {idle} AND name > {from} ORDER BY name \
             LIMIT {limit}) n) ORDER BY name FOR UPDATE SKIP LOCKED; \
             SELECT name FROM {tokens} WHERE used < {now} - {idle} AND name > {from} \
             ORDER BY name LIMIT {limit}"
        )
    }

    /// Forgets those of these names that are idle; their highest token is kept
    /// first.
    pub(super) fn forget_idle(&self, names: &[String], idle: Duration) -> String {
        let Words { locks, tokens, holders, .. } = self;
        let (now, idle, nobody) = (self.now(), self.span(idle), self.dialect.bytes(""));
        // Their rows are locked by this transaction: whoever is noted as a
        // holder is dead.
        let names: Vec<String> = names.iter().map(|name| self.dialect.bytes(name)).collect();
        let names = names.join(", ");
        let idle = format!(
            "name IN ({names}) AND used < {now} - {idle} \
             AND (closed_until IS NULL OR closed_until < {now})"
        );
        // Of all, also of those that turn out not to be idle: the clock goes on
        // between this and the deletion.
        let highest = format!("(SELECT max(token) FROM {tokens} WHERE name IN ({names}))");
        let keep = if self.is_postgres() {
            format!(
                "INSERT INTO {tokens} AS t (name, token, used) \
                 SELECT {nobody}, coalesce({highest}, 0), {now} ON CONFLICT (name) DO UPDATE \
                 SET token = greatest(t.token, excluded.token), used = {now}"
            )
        } else {
            format!(
                "SET @h = COALESCE({highest}, 0); INSERT INTO {tokens} (name, token, used) \
                 VALUES ({nobody}, @h, {now}) ON DUPLICATE KEY UPDATE \
                 token = GREATEST(token, @h), used = {now}"
            )
        };
        format!(
            "{keep}; DELETE FROM {holders} WHERE name IN ({names}); \
             DELETE FROM {tokens} WHERE {idle}; DELETE FROM {locks} WHERE name IN ({names}) \
             AND name NOT IN (SELECT name FROM {tokens}); \
             SELECT count(*) FROM {locks} WHERE name IN ({names}); COMMIT"
        )
    }

    /// Notes that a grant is broken; notes of grants long gone go.
    pub(super) fn note_break(&self, claim: ClaimId, reason: &str) -> String {
        let breaks = &self.breaks;
        let (now, reason) = (self.now(), self.text(reason));
        // Longer than any lease. No subquery here: it would wait for the rows
        // of those who hold.
        let long_ago = self.span(Duration::from_secs(7 * 24 * 3600));
        let stale = format!("DELETE FROM {breaks} WHERE since < {now} - {long_ago}");
        let values = format!("('{claim}', {reason}, {now})");
        let note = self.dialect.insert_new(breaks, "claim, reason, since", &values);
        format!("{stale}; {note}")
    }

    /// Which of these grants are broken, and why.
    pub(super) fn broken(&self, claims: &[ClaimId]) -> String {
        let claims: Vec<String> = claims.iter().map(|claim| format!("'{claim}'")).collect();
        let claims = claims.join(", ");
        format!("SELECT claim, reason FROM {} WHERE claim IN ({claims})", self.breaks)
    }
}
