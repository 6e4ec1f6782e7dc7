//! A record of the model as rows, and back.
//!
//! Numbers of 64 bits without a sign are stored bit by bit: PostgreSQL's have
//! one. Nothing here is compared by the database beyond equality, instants,
//! and the order of tickets, which stay small.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use super::config::Sql;
use super::fault::{Class, Fault};
use super::wire::{Row as Values, Table};
use crate::ErrorKind;
use crate::engine::words::{cause_from, kind_from, kind_word, mode_from, mode_words, reason_of};
use crate::engine::{About, CountId};
use crate::model::{Finished, Held, Latch, Record, Row, Ticket, Time, Watcher};
use crate::name::LockName;
use crate::token::{ClaimId, Token};

/// The columns of a name, in the order they are read.
pub(super) const NAMES: &str = "name, kind, capacity, counter, last_ticket, crowded, \
     closed_until_us, used_us, fence, latch_remaining, latch_set, latch_keep_us, latch_until_us";
/// The columns of a claim, in the order they are read and written.
pub(super) const CLAIMS: &str = "name, state, place, claim, mode, permits, capacity, token, \
     until_us, since_us, lock_delay_us, who, host, pid, note, cause, reason";

/// How long a queue may be to be read whole every time.
const CROWD: usize = 64;
/// How much of a longer one is read.
pub(super) const WINDOW: usize = 32;

/// A name as its rows say, perhaps with only a part of its queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Loaded {
    pub(super) record: Record,
    /// Whether the queue is read in parts.
    pub(super) crowded: bool,
    /// The last ticket of the part that was read, if there are more behind it.
    pub(super) cut: Option<u64>,
    /// How many tickets there are ahead of claims whose ticket is not in the part.
    pub(super) ahead: HashMap<ClaimId, u32>,
    /// Where the rows of claims are.
    places: HashMap<(ClaimId, Slot), (&'static str, i64)>,
    /// The latch as it was.
    latch: Option<Latch>,
}

/// A claim has one row as holder, waiter or memory, and perhaps one as watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Slot {
    Main,
    Watch,
}

const HELD: &str = "held";
const QUEUED: &str = "queued";
const WATCHING: &str = "watching";
const FINISHED: &str = "finished";

/// Reads the rows of names.
pub(super) fn names(sql: &Sql, table: &Table) -> Result<BTreeMap<LockName, Loaded>, Fault> {
    let read = |row: &Values| -> Result<(LockName, Loaded), Fault> {
        let latch = match row.maybe_number(9)? {
            None => None,
            Some(remaining) => Some(Latch {
                remaining: remaining as u32,
                counted: Vec::new(),
                set: CountId(text(sql, row, 10)?.into()),
                keep: span(row, 11)?,
                until: time(row, 12)?,
            }),
        };
        let record = Record {
            kind: row.maybe_text(1)?.and_then(kind_from),
            capacity: row.number(2)? as u32,
            counter: Token::new(row.number(3)? as u64),
            last_ticket: row.number(4)? as u64,
            closed_until: time(row, 6)?,
            used: time(row, 7)?,
            fence: row.maybe_number(8)?.map(|token| Token::new(token as u64)),
            latch: latch.clone(),
            ..Record::default()
        };
        let crowded = row.number(5)? != 0;
        let loaded = Loaded { record, crowded, latch, ..Loaded::default() };
        Ok((name(sql, row)?, loaded))
    };
    table.rows.iter().map(read).collect()
}

impl Loaded {
    /// Takes in the row of a claim. Rows may come twice, and in any order:
    /// [`sort`](Self::sort) follows.
    fn add(&mut self, sql: &Sql, row: &Values) -> Result<(), Fault> {
        let claim: ClaimId = row.text(3)?.parse().map_err(|_| damaged("claim"))?;
        let place = row.number(2)?;
        let state = match row.text(1)? {
            HELD => HELD,
            QUEUED => QUEUED,
            WATCHING => WATCHING,
            FINISHED => FINISHED,
            _ => return Err(damaged("state")),
        };
        let slot = if state == WATCHING { Slot::Watch } else { Slot::Main };
        if self.places.insert((claim, slot), (state, place)).is_some() {
            return Ok(());
        }
        let until = time(row, 8)?;
        match state {
            HELD => self.record.holders.push(Held {
                claim,
                mode: mode(row)?,
                token: row.maybe_number(7)?.map(|token| Token::new(token as u64)),
                until,
                since: time(row, 9)?,
                lock_delay: span(row, 10)?,
                revoked: match row.maybe_text(15)? {
                    Some(_) => Some(text(sql, row, 16)?.into()),
                    None => None,
                },
                about: about(sql, row)?,
            }),
            QUEUED => self.record.queue.push_back(Ticket {
                number: place as u64,
                claim,
                mode: mode(row)?,
                until,
                since: time(row, 9)?,
                lock_delay: span(row, 10)?,
                about: about(sql, row)?,
            }),
            WATCHING => self.record.watchers.push_back(Watcher { claim, until }),
            _ => self.record.finished.push(Finished {
                claim,
                until,
                cause: cause_from(row.text(15)?, &text(sql, row, 16)?),
            }),
        }
        Ok(())
    }

    fn sort(&mut self) {
        let Record { holders, queue, watchers, .. } = &mut self.record;
        holders.sort_unstable_by_key(|held| held.claim);
        queue.make_contiguous().sort_unstable_by_key(|ticket| ticket.number);
        let place = |watcher: &Watcher| self.places.get(&(watcher.claim, Slot::Watch));
        watchers.make_contiguous().sort_by_key(place);
    }

    /// Takes in rows of claims of this name.
    pub(super) fn add_all(&mut self, sql: &Sql, table: &Table) -> Result<(), Fault> {
        for row in &table.rows {
            self.add(sql, row)?;
        }
        self.sort();
        Ok(())
    }

    /// Notes which of the count-downs asked for have been counted.
    pub(super) fn counted(&mut self, counted: Vec<CountId>) {
        if let Some(latch) = &mut self.record.latch {
            latch.counted = counted;
            self.latch = self.record.latch.clone();
        }
    }

    /// Whether a step went through all that was read of the queue.
    pub(super) fn is_used_up(&self) -> bool {
        let front = self.record.queue.front();
        self.cut.is_some_and(|cut| front.is_none_or(|front| front.number > cut))
    }

    /// Whether the queue should be read in parts from now on.
    fn is_crowd(&self) -> bool {
        match self.cut {
            Some(_) => true,
            None if self.crowded => self.record.queue.len() > CROWD / 2,
            None => self.record.queue.len() > CROWD,
        }
    }
}

/// Takes in the rows of claims.
pub(super) fn claims(
    sql: &Sql,
    table: &Table,
    names: &mut BTreeMap<LockName, Loaded>,
) -> Result<(), Fault> {
    for row in &table.rows {
        if let Some(loaded) = names.get_mut(&name(sql, row)?) {
            loaded.add(sql, row)?;
        }
    }
    names.values_mut().for_each(Loaded::sort);
    Ok(())
}

/// The statements that write down what steps changed.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    sql: &'a Sql,
    statements: String,
    /// The new rows of claims, written together.
    inserts: String,
}

impl<'a> Writer<'a> {
    pub(super) fn new(sql: &'a Sql) -> Self {
        Writer { sql, statements: String::new(), inserts: String::new() }
    }

    /// Adds a statement.
    pub(super) fn push(&mut self, statement: &str) {
        self.statements.push_str(statement);
        self.statements.push_str("; ");
    }

    /// The statements; empty if nothing changes.
    pub(super) fn finish(mut self) -> String {
        if !self.inserts.is_empty() {
            let insert = format!(
                "INSERT INTO {} ({CLAIMS}) VALUES {}",
                self.sql.table("claims"),
                self.inserts
            );
            self.push(&insert);
        }
        self.statements
    }

    /// Writes the rows that steps touched as they are now in the record.
    pub(super) fn store(&mut self, name: &LockName, loaded: &mut Loaded, rows: &[Row], now: Time) {
        let crowded = loaded.is_crowd();
        if rows.contains(&Row::Name) || crowded != loaded.crowded {
            loaded.crowded = crowded;
            self.store_name(name, loaded);
            self.store_counted(name, loaded, now);
        }
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
    }

    fn store_claim(&mut self, name: &LockName, loaded: &mut Loaded, claim: ClaimId, slot: Slot) {
        let sql = self.sql;
        let old = loaded.places.get(&(claim, slot)).copied();
        let new = match slot {
            Slot::Main => main_row(&loaded.record, claim),
            Slot::Watch => {
                let last = loaded.places.values().filter(|(state, _)| *state == WATCHING);
                let last = last.map(|(_, place)| *place).max().unwrap_or(0);
                watch_row(&loaded.record, claim, old.map_or(last + 1, |(_, place)| place))
            }
        };
        let table = sql.table("claims");
        let key = |(state, place): (&str, i64)| {
            let name = sql.dialect.bytes(name.as_str());
            format!("name = {name} AND state = '{state}' AND place = {place} AND claim = '{claim}'")
        };
        match (old, new) {
            (None, None) => {}
            (Some(old), None) => {
                loaded.places.remove(&(claim, slot));
                self.push(&format!("DELETE FROM {table} WHERE {}", key(old)));
            }
            (Some(old), Some(new)) if old.0 != FINISHED || new.state == FINISHED => {
                loaded.places.insert((claim, slot), (new.state, new.place));
                self.push(&format!("UPDATE {table} SET {} WHERE {}", new.changes(sql), key(old)));
            }
            (old, Some(new)) => {
                if let Some(old) = old {
                    // A memory says little of its claim: there is more to
                    // write than changes.
                    self.push(&format!("DELETE FROM {table} WHERE {}", key(old)));
                }
                loaded.places.insert((claim, slot), (new.state, new.place));
                let separator = if self.inserts.is_empty() { "" } else { ", " };
                // Writing to a string cannot fail.
                let _ = write!(self.inserts, "{separator}({})", new.values(sql, name, claim));
            }
        }
    }

    fn store_name(&mut self, name: &LockName, loaded: &Loaded) {
        let (sql, record) = (self.sql, &loaded.record);
        let latch = record.latch.as_ref();
        let statement = format!(
            "UPDATE {} SET kind = {}, capacity = {}, counter = {}, last_ticket = {}, \
             crowded = {}, closed_until_us = {}, used_us = {}, fence = {}, latch_remaining = {}, \
             latch_set = {}, latch_keep_us = {}, latch_until_us = {} WHERE name = {}",
            sql.table("names"),
            maybe(record.kind.map(|kind| format!("'{}'", kind_word(kind)))),
            record.capacity,
            record.counter.get() as i64,
            record.last_ticket as i64,
            i32::from(loaded.crowded),
            record.closed_until.0 as i64,
            record.used.0 as i64,
            maybe(record.fence.map(|token| token.get() as i64)),
            maybe(latch.map(|latch| latch.remaining)),
            maybe(latch.map(|latch| sql.dialect.bytes(&latch.set.0))),
            maybe(latch.map(|latch| micros(latch.keep))),
            maybe(latch.map(|latch| latch.until.0 as i64)),
            sql.dialect.bytes(name.as_str()),
        );
        self.push(&statement);
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
}

fn main_row(record: &Record, claim: ClaimId) -> Option<ClaimRow<'_>> {
    if let Ok(index) = record.holders.binary_search_by(|held| held.claim.cmp(&claim)) {
        let held = &record.holders[index];
        return Some(ClaimRow {
            state: HELD,
            place: 0,
            mode: Some(held.mode),
            token: held.token,
            until: held.until,
            since: held.since,
            lock_delay: held.lock_delay,
            about: Some(&held.about),
            cause: held.revoked.as_deref().map(|reason| ("broken", reason)),
        });
    }
    if let Some(ticket) = record.queue.iter().find(|ticket| ticket.claim == claim) {
        return Some(ClaimRow {
            state: QUEUED,
            place: ticket.number as i64,
            mode: Some(ticket.mode),
            token: None,
            until: ticket.until,
            since: ticket.since,
            lock_delay: ticket.lock_delay,
            about: Some(&ticket.about),
            cause: None,
        });
    }
    let finished = record.finished.iter().find(|finished| finished.claim == claim)?;
    let cause = (finished.cause.as_str(), reason_of(&finished.cause));
    Some(ClaimRow { state: FINISHED, cause: Some(cause), ..ClaimRow::bare(finished.until, 0) })
}

fn watch_row(record: &Record, claim: ClaimId, place: i64) -> Option<ClaimRow<'_>> {
    let watcher = record.watchers.iter().find(|watcher| watcher.claim == claim)?;
    Some(ClaimRow::bare(watcher.until, place))
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
        }
    }

    fn values(&self, sql: &Sql, name: &LockName, claim: ClaimId) -> String {
        let mode = self.mode.map(mode_words);
        let (_, permits, capacity) = mode.unwrap_or(("", 0, 0));
        let text = |text: &str| sql.dialect.text(text);
        let nobody = About::default();
        let about = self.about.unwrap_or(&nobody);
        format!(
            "{}, '{}', {}, '{claim}', {}, {permits}, {capacity}, {}, {}, {}, {}, {}, {}, {}, {}, \
             {}, {}",
            sql.dialect.bytes(name.as_str()),
            self.state,
            self.place,
            maybe(mode.map(|(mode, ..)| format!("'{mode}'"))),
            maybe(self.token.map(|token| token.get() as i64)),
            self.until.0 as i64,
            self.since.0 as i64,
            micros(self.lock_delay),
            text(&about.who),
            text(&about.host),
            about.pid,
            text(&about.note),
            maybe(self.cause.map(|(cause, _)| format!("'{cause}'"))),
            maybe(self.cause.map(|(_, reason)| text(reason))),
        )
    }

    /// What can change in a row that stays the same claim's.
    fn changes(&self, sql: &Sql) -> String {
        format!(
            "state = '{}', place = {}, token = {}, until_us = {}, since_us = {}, cause = {}, \
             reason = {}",
            self.state,
            self.place,
            maybe(self.token.map(|token| token.get() as i64)),
            self.until.0 as i64,
            self.since.0 as i64,
            maybe(self.cause.map(|(cause, _)| format!("'{cause}'"))),
            maybe(self.cause.map(|(_, reason)| sql.dialect.text(reason))),
        )
    }
}

fn maybe(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |value| value.to_string())
}

/// A name as it is stored in the first column.
pub(super) fn name(sql: &Sql, row: &Values) -> Result<LockName, Fault> {
    LockName::new(text(sql, row, 0)?).map_err(|_| damaged("name"))
}

/// A text as it was before it was stored.
pub(super) fn text(sql: &Sql, row: &Values, column: usize) -> Result<String, Fault> {
    sql.dialect.read(row.text(column)?).ok_or_else(|| damaged("text"))
}

fn time(row: &Values, column: usize) -> Result<Time, Fault> {
    row.number(column).map(|number| Time(number as u64))
}

fn span(row: &Values, column: usize) -> Result<Duration, Fault> {
    row.number(column).map(|number| Duration::from_micros(number as u64))
}

fn micros(span: Duration) -> i64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX) as i64
}

fn mode(row: &Values) -> Result<crate::engine::Mode, Fault> {
    let (count, of) = (row.number(5)? as u32, row.number(6)? as u32);
    mode_from(row.text(4)?, count, of).ok_or_else(|| damaged("mode"))
}

fn about(sql: &Sql, row: &Values) -> Result<Arc<About>, Fault> {
    Ok(Arc::new(About {
        who: text(sql, row, 11)?,
        host: text(sql, row, 12)?,
        pid: row.number(13)? as u32,
        note: text(sql, row, 14)?,
    }))
}

fn damaged(what: &str) -> Fault {
    let text = format!("a row has a {what} this program does not know");
    Fault::new(Class::Refused(ErrorKind::Unexpected), text)
}
