//! A record of the model as its rows say.
//!
//! Whoever holds a name alone stands in the row of the name: to lock and to
//! release what nobody else wants is to change that one row. Everybody else
//! (readers, holders of permits, waiters, claims that are over) has a row of
//! its own, and the row of the name says whether there are any to be read.
//!
//! Numbers of 64 bits without a sign are stored bit by bit: PostgreSQL's have
//! one. Nothing here is compared by the database beyond equality, instants,
//! and the order of tickets, which stay small.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::config::Sql;
use super::fault::{Class, Fault};
use super::store::NameRow;
use super::wire::{Row as Values, Table};
use crate::ErrorKind;
use crate::engine::words::{cause_from, kind_from, mode_from};
use crate::engine::{About, CountId};
use crate::model::{Finished, Held, Latch, Record, Ticket, Time, Watcher};
use crate::name::LockName;
use crate::token::{ClaimId, Token};

/// The columns of a name, in the order they are read. From the 15th on they
/// tell of who holds it alone, or was the last who did.
pub(super) const NAMES: &str = "name, kind, capacity, counter, floor, last_ticket, crowd, \
     closed_until_us, used_us, fence, latch_remaining, latch_set, latch_keep_us, latch_until_us, \
     claim, mode, token, until_us, since_us, lock_delay_us, who, host, pid, note, cause, reason";
/// How many they are: what is read beside them comes after.
pub(super) const NAMES_COUNT: usize = 26;
/// The first that tells of who holds a name alone.
const ALONE: usize = 14;
/// The columns of a claim, in the order they are read and written.
pub(super) const CLAIMS: &str = "name, state, place, permits, capacity, claim, mode, token, \
     until_us, since_us, lock_delay_us, who, host, pid, note, cause, reason";
/// The first that a claim has in common with who holds a name alone.
const BESIDE: usize = 5;

/// How long a queue may be to be read whole every time.
const CROWD: usize = 64;
/// How much of a longer one is read.
pub(super) const WINDOW: usize = 32;

/// A name as its rows say, perhaps with only a part of its queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Loaded {
    pub(super) record: Record,
    /// No token up to this is granted any more.
    pub(super) floor: Token,
    /// How many rows of claims there are.
    pub(super) crowd: Crowd,
    /// The last ticket of the part that was read, if there are more behind it.
    pub(super) cut: Option<u64>,
    /// How many tickets there are ahead of claims whose ticket is not in the part.
    pub(super) ahead: HashMap<ClaimId, u32>,
    /// Where claims are written down.
    pub(super) places: HashMap<(ClaimId, Slot), Spot>,
    /// Of whom the row of the name tells: who holds it alone, or did last.
    pub(super) last: Option<Held>,
    /// The row of the name as it is stored.
    pub(super) row: NameRow,
    /// The latch as it was.
    pub(super) latch: Option<Latch>,
}

/// How many rows of claims a name has, beside who holds it alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Crowd {
    /// None.
    #[default]
    Nobody,
    /// Few enough to be read whole every time.
    Some,
    /// So many that the queue is read in parts.
    Many,
}

/// A claim is written down once as holder, waiter or memory, and perhaps once
/// as watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Slot {
    Main,
    Watch,
}

/// Where a claim is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// In the row of the name: it holds it alone.
    Name,
    /// In a row of its own.
    Row { state: &'static str, place: i64, still: Still },
}

/// What stays the same in a row whose claim is only kept alive.
pub(super) type Still = (Option<Token>, Time, Option<Arc<str>>);

pub(super) const HELD: &str = "held";
pub(super) const QUEUED: &str = "queued";
pub(super) const WATCHING: &str = "watching";
pub(super) const FINISHED: &str = "finished";

/// Reads the rows of names.
pub(super) fn names(sql: &Sql, table: &Table) -> Result<BTreeMap<LockName, Loaded>, Fault> {
    let read = |row: &Values| -> Result<(LockName, Loaded), Fault> {
        let latch = match row.maybe_number(10)? {
            None => None,
            Some(remaining) => Some(Latch {
                remaining: remaining as u32,
                counted: Vec::new(),
                set: CountId(text(sql, row, 11)?.into()),
                keep: span(row, 12)?,
                until: time(row, 13)?,
            }),
        };
        let mut places = HashMap::new();
        let mut holders = Vec::new();
        let mut last = None;
        if row.maybe_text(ALONE)?.is_some() {
            let held = held(sql, row, ALONE, (0, 0))?;
            if held.until > Time(0) {
                places.insert((held.claim, Slot::Main), Spot::Name);
                holders.push(held.clone());
            }
            last = Some(held);
        }
        let record = Record {
            kind: row.maybe_text(1)?.and_then(kind_from),
            capacity: row.number(2)? as u32,
            counter: Token::new(row.number(3)? as u64),
            last_ticket: row.number(5)? as u64,
            holders,
            closed_until: time(row, 7)?,
            used: time(row, 8)?,
            fence: row.maybe_number(9)?.map(|token| Token::new(token as u64)),
            latch: latch.clone(),
            ..Record::default()
        };
        let crowd = match row.number(6)? {
            0 => Crowd::Nobody,
            1 => Crowd::Some,
            _ => Crowd::Many,
        };
        let floor = Token::new(row.number(4)? as u64);
        let stored = NameRow::of(sql, &record, crowd, last.as_ref());
        let loaded =
            Loaded { record, floor, crowd, places, last, row: stored, latch, ..Loaded::default() };
        Ok((name(sql, row)?, loaded))
    };
    table.rows.iter().map(read).collect()
}

impl Loaded {
    /// Takes in the row of a claim. Rows may come twice, and in any order:
    /// [`sort`](Self::sort) follows.
    fn add(&mut self, sql: &Sql, row: &Values) -> Result<(), Fault> {
        let claim = claim(row, BESIDE)?;
        let place = row.number(2)?;
        let state = match row.text(1)? {
            HELD => HELD,
            QUEUED => QUEUED,
            WATCHING => WATCHING,
            FINISHED => FINISHED,
            _ => return Err(damaged("state")),
        };
        let slot = if state == WATCHING { Slot::Watch } else { Slot::Main };
        if self.places.contains_key(&(claim, slot)) {
            return Ok(());
        }
        let permits = (row.number(3)? as u32, row.number(4)? as u32);
        let until = time(row, BESIDE + 3)?;
        let mut still = (None, Time(0), None);
        match state {
            HELD => {
                let held = held(sql, row, BESIDE, permits)?;
                still = (held.token, held.since, held.revoked.clone());
                self.record.holders.push(held);
            }
            QUEUED => {
                let Held { mode, since, lock_delay, about, .. } = held(sql, row, BESIDE, permits)?;
                still.1 = since;
                let number = place as u64;
                let ticket = Ticket { number, claim, mode, until, since, lock_delay, about };
                self.record.queue.push_back(ticket);
            }
            WATCHING => self.record.watchers.push_back(Watcher { claim, until }),
            _ => {
                let cause = cause_from(row.text(BESIDE + 10)?, &text(sql, row, BESIDE + 11)?);
                self.record.finished.push(Finished { claim, until, cause });
            }
        }
        self.places.insert((claim, slot), Spot::Row { state, place, still });
        Ok(())
    }

    fn sort(&mut self) {
        let Record { holders, queue, watchers, .. } = &mut self.record;
        holders.sort_unstable_by_key(|held| held.claim);
        queue.make_contiguous().sort_unstable_by_key(|ticket| ticket.number);
        let place = |watcher: &Watcher| match self.places.get(&(watcher.claim, Slot::Watch)) {
            Some(Spot::Row { place, .. }) => *place,
            _ => 0,
        };
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

    /// How many rows of claims there are now.
    pub(super) fn crowd_now(&self) -> Crowd {
        let limit = if self.crowd == Crowd::Many { CROWD / 2 } else { CROWD };
        if self.cut.is_some() || self.record.queue.len() > limit {
            return Crowd::Many;
        }
        match self.places.values().any(|spot| *spot != Spot::Name) {
            true => Crowd::Some,
            false => Crowd::Nobody,
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

fn claim(row: &Values, column: usize) -> Result<ClaimId, Fault> {
    row.text(column)?.parse().map_err(|_| damaged("claim"))
}

/// Who holds, as the columns from `at` on say.
fn held(sql: &Sql, row: &Values, at: usize, (count, of): (u32, u32)) -> Result<Held, Fault> {
    let revoked = match row.maybe_text(at + 10)? {
        Some(_) => Some(text(sql, row, at + 11)?.into()),
        None => None,
    };
    let about = About {
        who: text(sql, row, at + 6)?,
        host: text(sql, row, at + 7)?,
        pid: row.number(at + 8)? as u32,
        note: text(sql, row, at + 9)?,
    };
    Ok(Held {
        claim: claim(row, at)?,
        mode: mode_from(row.text(at + 1)?, count, of).ok_or_else(|| damaged("mode"))?,
        token: row.maybe_number(at + 2)?.map(|token| Token::new(token as u64)),
        until: time(row, at + 3)?,
        since: time(row, at + 4)?,
        lock_delay: span(row, at + 5)?,
        revoked,
        about: Arc::new(about),
    })
}

fn damaged(what: &str) -> Fault {
    let text = format!("a row has a {what} this program does not know");
    Fault::new(Class::Refused(ErrorKind::Unexpected), text)
}
