//! Writing down what steps changed, in as few statements as possible.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::config::Sql;
use super::phrase::Phrase;
use super::rows::{Crowd, FINISHED, HELD, Loaded, QUEUED, Slot, Spot, Still, WATCHING};
use crate::engine::About;
use crate::engine::words::{kind_word, mode_words, reason_of};
use crate::model::{Held, Record, Row, Time};
use crate::name::LockName;
use crate::token::{ClaimId, Token};

/// The columns of a name that steps change: the oftener, the later, so that
/// what changes together stands at the end.
pub(super) const COLUMNS: [&str; 24] = [
    "kind",
    "capacity",
    "fence",
    "latch_remaining",
    "latch_set",
    "latch_keep_us",
    "latch_until_us",
    "closed_until_us",
    "last_ticket",
    "crowd",
    "mode",
    "lock_delay_us",
    "who",
    "host",
    "pid",
    "note",
    "cause",
    "reason",
    "counter",
    "claim",
    "token",
    "since_us",
    "until_us",
    "used_us",
];
/// The first column that changes with the queue, or with who holds.
pub(super) const HOLDER: usize = 7;
/// The first column that changes from grant to grant to the same process.
pub(super) const GRANT: usize = 18;
/// The first column that a renewal or a release changes.
pub(super) const BEAT: usize = 22;
/// When the name was last used: written along with the rest, but not worth a
/// statement of its own.
const USED: usize = 23;

/// The row of a name, as literals in the order of [`COLUMNS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameRow([String; 24]);

impl NameRow {
    /// Who was the `last` to hold it alone stays written down when nobody
    /// does, but without an end: what grants to one process have in common is
    /// not written twice, and the row stays in its place, having kept its size.
    pub(super) fn of(sql: &Sql, record: &Record, crowd: Crowd, last: Option<&Held>) -> Self {
        let latch = record.latch.as_ref();
        let alone = alone(record);
        let until = alone.map_or(Time(0), |held| held.until);
        let alone = alone.or(last);
        let about =
            |part: fn(&About) -> &str| maybe(alone.map(|held| sql.dialect.text(part(&held.about))));
        let revoked = alone.and_then(|held| held.revoked.as_deref());
        NameRow([
            maybe(record.kind.map(|kind| format!("'{}'", kind_word(kind)))),
            record.capacity.to_string(),
            maybe(record.fence.map(|token| token.get() as i64)),
            maybe(latch.map(|latch| latch.remaining)),
            maybe(latch.map(|latch| sql.dialect.bytes(&latch.set.0))),
            maybe(latch.map(|latch| micros(latch.keep))),
            maybe(latch.map(|latch| latch.until.0 as i64)),
            (record.closed_until.0 as i64).to_string(),
            (record.last_ticket as i64).to_string(),
            (crowd as u8).to_string(),
            maybe(alone.map(|held| format!("'{}'", mode_words(held.mode).0))),
            maybe(alone.map(|held| micros(held.lock_delay))),
            about(|about| &about.who),
            about(|about| &about.host),
            maybe(alone.map(|held| held.about.pid)),
            about(|about| &about.note),
            maybe(revoked.map(|_| "'broken'")),
            maybe(revoked.map(|reason| sql.dialect.text(reason))),
            (record.counter.get() as i64).to_string(),
            maybe(alone.map(|held| format!("'{}'", held.claim))),
            maybe(alone.and_then(|held| held.token).map(|token| token.get() as i64)),
            maybe(alone.map(|held| held.since.0 as i64)),
            (until.0 as i64).to_string(),
            (record.used.0 as i64).to_string(),
        ])
    }

    /// The columns in which it differs from another.
    fn changes(&self, other: &NameRow) -> Vec<usize> {
        (0..COLUMNS.len()).filter(|&column| self.0[column] != other.0[column]).collect()
    }
}

/// The statements that write down what steps changed.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    sql: &'a Sql,
    /// What the connection knows under a name.
    prepared: &'static [Phrase],
    statements: String,
    /// Names whose holder is only kept alive, or gone, by the end of its lease
    /// and the time of use.
    names: BTreeMap<[String; 2], Vec<String>>,
    /// The keys of claims that are only kept alive, by their new end.
    claims: BTreeMap<String, Vec<[String; 4]>>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(sql: &'a Sql, prepared: &'static [Phrase]) -> Self {
        let (names, claims) = (BTreeMap::new(), BTreeMap::new());
        Writer { sql, prepared, statements: String::new(), names, claims }
    }

    /// Adds a statement.
    pub(super) fn push(&mut self, statement: &str) {
        self.statements.push_str(statement);
        self.statements.push_str("; ");
    }

    /// The statements; empty if nothing changes.
    pub(super) fn finish(mut self) -> String {
        let by_key = self.sql.dialect.by_key();
        for ([until, used], names) in std::mem::take(&mut self.names) {
            if let [name] = &names[..] {
                self.say(Phrase::KeepName, &[name.clone(), until, used]);
                continue;
            }
            let (table, names) = (self.sql.table("names"), names.join(", "));
            self.push(&format!(
                "UPDATE {table}{by_key} SET until_us = {until}, used_us = {used} \
                 WHERE name IN ({names})"
            ));
        }
        for (until, keys) in std::mem::take(&mut self.claims) {
            if let [key] = &keys[..] {
                let values: Vec<String> = key.iter().cloned().chain([until]).collect();
                self.say(Phrase::KeepClaim, &values);
                continue;
            }
            // Written out, because not every server finds rows by a list of keys.
            let one = |[name, state, place, claim]: &[String; 4]| {
                format!(
                    "(name = {name} AND state = {state} AND place = {place} AND claim = {claim})"
                )
            };
            let keys: Vec<String> = keys.iter().map(one).collect();
            let (table, keys) = (self.sql.table("claims"), keys.join(" OR "));
            self.push(&format!("UPDATE {table}{by_key} SET until_us = {until} WHERE {keys}"));
        }
        self.statements
    }

    fn say(&mut self, phrase: Phrase, values: &[String]) {
        self.push(&phrase.with(self.sql, self.prepared, values));
    }

    /// Writes the rows that steps touched as they are now in the record.
    pub(super) fn store(&mut self, name: &LockName, loaded: &mut Loaded, rows: &[Row], now: Time) {
        for (index, row) in rows.iter().enumerate() {
            let (claim, slot) = match *row {
                Row::Name => continue,
                Row::Holder(claim) | Row::Ticket(claim) | Row::Finished(claim) => {
                    (claim, Slot::Main)
                }
                Row::Watcher(claim) => (claim, Slot::Watch),
            };
            let same = |earlier: &Row| match *earlier {
                Row::Name => false,
                Row::Watcher(other) => slot == Slot::Watch && other == claim,
                Row::Holder(other) | Row::Ticket(other) | Row::Finished(other) => {
                    slot == Slot::Main && other == claim
                }
            };
            if !rows[..index].iter().any(same) {
                self.store_claim(name, loaded, claim, slot);
            }
        }
        let asked = rows.contains(&Row::Name);
        self.store_name(name, loaded, asked);
        if asked {
            self.store_counted(name, loaded, now);
        }
    }

    fn store_claim(&mut self, name: &LockName, loaded: &mut Loaded, claim: ClaimId, slot: Slot) {
        let sql = self.sql;
        let old = loaded.places.get(&(claim, slot)).cloned();
        let new = match slot {
            Slot::Main => main_row(&loaded.record, claim),
            Slot::Watch => watch_row(loaded, claim, old.as_ref()),
        };
        let spot = match &new {
            Found::Nothing => None,
            Found::Alone => Some(Spot::Name),
            Found::Row(row) => Some(row.spot()),
        };
        let key = |state: &str, place: i64| {
            let name = sql.dialect.bytes(name.as_str());
            [name, format!("'{state}'"), place.to_string(), format!("'{claim}'")]
        };
        match (&old, &new) {
            // Who holds alone is written down with the name.
            (None | Some(Spot::Name), Found::Nothing | Found::Alone) => {}
            (Some(Spot::Row { state, place, .. }), Found::Nothing | Found::Alone) => {
                self.say(Phrase::DropClaim, &key(state, *place));
            }
            (Some(Spot::Row { state, place, .. }), Found::Row(row))
                if old == spot && *state != FINISHED =>
            {
                let keys = self.claims.entry((row.until.0 as i64).to_string()).or_default();
                keys.push(key(state, *place));
            }
            (Some(Spot::Row { state, place, .. }), Found::Row(row))
                if *state != FINISHED || row.state == FINISHED =>
            {
                let values: Vec<String> =
                    key(state, *place).into_iter().chain(row.changes(sql)).collect();
                self.say(Phrase::SetClaim, &values);
            }
            (old, Found::Row(row)) => {
                if let Some(Spot::Row { state, place, .. }) = old {
                    // A memory says little of its claim: there is more to
                    // write than changes.
                    self.say(Phrase::DropClaim, &key(state, *place));
                }
                self.say(Phrase::AddClaim, &row.values(sql, name, claim));
            }
        }
        match spot {
            Some(spot) => loaded.places.insert((claim, slot), spot),
            None => loaded.places.remove(&(claim, slot)),
        };
    }

    fn store_name(&mut self, name: &LockName, loaded: &mut Loaded, asked: bool) {
        let sql = self.sql;
        loaded.crowd = loaded.crowd_now();
        let row = NameRow::of(sql, &loaded.record, loaded.crowd, loaded.last.as_ref());
        let changes = row.changes(&loaded.row);
        let first = match changes[..] {
            [] => return,
            [USED] if !asked => return,
            [first, ..] => first,
        };
        let name = sql.dialect.bytes(name.as_str());
        if first >= BEAT {
            let names = self.names.entry([row.0[BEAT].clone(), row.0[USED].clone()]).or_default();
            names.push(name);
        } else if self.prepared.contains(&Phrase::SetName) {
            let (phrase, from) = match first {
                GRANT.. => (Phrase::SetGrant, GRANT),
                HOLDER.. => (Phrase::SetHolder, HOLDER),
                _ => (Phrase::SetName, 0),
            };
            let values: Vec<String> =
                std::iter::once(name).chain(row.0[from..].iter().cloned()).collect();
            self.say(phrase, &values);
        } else {
            // Nothing is won by saying what stays.
            let change = |&column: &usize| format!("{} = {}", COLUMNS[column], row.0[column]);
            let changes: Vec<String> = changes.iter().map(change).collect();
            let (table, changes) = (sql.table("names"), changes.join(", "));
            self.push(&format!("UPDATE {table} SET {changes} WHERE name = {name}"));
        }
        loaded.row = row;
    }

    /// Adds the new count-downs of a latch, or forgets those of an earlier one.
    fn store_counted(&mut self, name: &LockName, loaded: &Loaded, now: Time) {
        let (sql, table) = (self.sql, self.sql.table("counted"));
        let name = sql.dialect.bytes(name.as_str());
        let latch = loaded.record.latch.as_ref();
        // The same setting, sent again after the latch was over, starts anew.
        let before = loaded.latch.as_ref();
        let same = latch
            .zip(before)
            .is_some_and(|(latch, before)| latch.set == before.set && before.until > now);
        if !same && before.is_some() {
            self.push(&format!("DELETE FROM {table} WHERE name = {name}"));
        }
        let known = before.filter(|_| same).map_or(&[][..], |before| &before.counted);
        for id in latch.map_or(&[][..], |latch| &latch.counted) {
            if !known.contains(id) {
                let id = sql.dialect.bytes(&id.0);
                self.push(&format!("INSERT INTO {table} (name, id) VALUES ({name}, {id})"));
            }
        }
    }
}

/// Where a claim belongs, as the record is now.
enum Found<'a> {
    Nothing,
    /// It holds the name alone.
    Alone,
    Row(ClaimRow<'a>),
}

/// The row of a claim, ready to be written.
struct ClaimRow<'a> {
    state: &'static str,
    place: i64,
    mode: Option<crate::engine::Mode>,
    token: Option<Token>,
    until: Time,
    since: Time,
    lock_delay: Duration,
    about: Option<&'a About>,
    cause: Option<(&'a str, &'a str)>,
    revoked: Option<&'a Arc<str>>,
}

/// Who holds a name alone.
pub(super) fn alone(record: &Record) -> Option<&Held> {
    record.holders.iter().find(|held| held.mode.is_exclusive())
}

fn main_row(record: &Record, claim: ClaimId) -> Found<'_> {
    if let Ok(index) = record.holders.binary_search_by(|held| held.claim.cmp(&claim)) {
        let Held { mode, token, until, since, lock_delay, revoked, about, .. } =
            &record.holders[index];
        if mode.is_exclusive() {
            return Found::Alone;
        }
        return Found::Row(ClaimRow {
            state: HELD,
            place: 0,
            mode: Some(*mode),
            token: *token,
            until: *until,
            since: *since,
            lock_delay: *lock_delay,
            about: Some(about),
            cause: revoked.as_deref().map(|reason| ("broken", reason)),
            revoked: revoked.as_ref(),
        });
    }
    if let Some(ticket) = record.queue.iter().find(|ticket| ticket.claim == claim) {
        return Found::Row(ClaimRow {
            state: QUEUED,
            mode: Some(ticket.mode),
            since: ticket.since,
            lock_delay: ticket.lock_delay,
            about: Some(&ticket.about),
            ..ClaimRow::bare(ticket.until, ticket.number as i64)
        });
    }
    let Some(finished) = record.finished.iter().find(|finished| finished.claim == claim) else {
        return Found::Nothing;
    };
    let cause = Some((finished.cause.as_str(), reason_of(&finished.cause)));
    Found::Row(ClaimRow { state: FINISHED, cause, ..ClaimRow::bare(finished.until, 0) })
}

fn watch_row<'a>(loaded: &'a Loaded, claim: ClaimId, old: Option<&Spot>) -> Found<'a> {
    let watchers = &loaded.record.watchers;
    let Some(watcher) = watchers.iter().find(|watcher| watcher.claim == claim) else {
        return Found::Nothing;
    };
    let place = |spot: &Spot| match *spot {
        Spot::Row { state: WATCHING, place, .. } => Some(place),
        _ => None,
    };
    let last = || loaded.places.values().filter_map(place).max().unwrap_or(0);
    let place = old.and_then(place).unwrap_or_else(|| last() + 1);
    Found::Row(ClaimRow::bare(watcher.until, place))
}

impl ClaimRow<'_> {
    /// A row of which little is to be said.
    fn bare(until: Time, place: i64) -> Self {
        ClaimRow {
            state: WATCHING,
            place,
            mode: None,
            token: None,
            until,
            since: Time(0),
            lock_delay: Duration::ZERO,
            about: None,
            cause: None,
            revoked: None,
        }
    }

    /// Where it is, and what of it stays while its claim is only kept alive.
    fn spot(&self) -> Spot {
        let still: Still = (self.token, self.since, self.revoked.cloned());
        Spot::Row { state: self.state, place: self.place, still }
    }

    /// All columns, as literals.
    fn values(&self, sql: &Sql, name: &LockName, claim: ClaimId) -> [String; 17] {
        let mode = self.mode.map(mode_words);
        let (_, permits, capacity) = mode.unwrap_or(("", 0, 0));
        let text = |text: &str| sql.dialect.text(text);
        let nobody = About::default();
        let about = self.about.unwrap_or(&nobody);
        let [state, place, token, until, since, cause, reason] = self.changes(sql);
        [
            sql.dialect.bytes(name.as_str()),
            state,
            place,
            permits.to_string(),
            capacity.to_string(),
            format!("'{claim}'"),
            maybe(mode.map(|(mode, ..)| format!("'{mode}'"))),
            token,
            until,
            since,
            micros(self.lock_delay).to_string(),
            text(&about.who),
            text(&about.host),
            about.pid.to_string(),
            text(&about.note),
            cause,
            reason,
        ]
    }

    /// What can change in a row that stays the same claim's.
    fn changes(&self, sql: &Sql) -> [String; 7] {
        [
            format!("'{}'", self.state),
            self.place.to_string(),
            maybe(self.token.map(|token| token.get() as i64)),
            (self.until.0 as i64).to_string(),
            (self.since.0 as i64).to_string(),
            maybe(self.cause.map(|(cause, _)| format!("'{cause}'"))),
            maybe(self.cause.map(|(_, reason)| sql.dialect.text(reason))),
        ]
    }
}

fn maybe(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |value| value.to_string())
}

fn micros(span: Duration) -> i64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX) as i64
}
