//! A model record as rows, and back.
//!
//! Numbers of 64 bits without a sign are stored bit by bit: SQLite's integers
//! have one, and nothing here is compared by the database beyond equality and
//! the order of tickets, which stay small.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Result, Row as SqlRow, params};

use crate::engine::words::{cause_from, kind_from, kind_word, mode_from, mode_words, reason_of};
use crate::engine::{About, CountId, Mode};
use crate::model::{Finished, Held, Latch, Record, Row, Ticket, Time, Watcher};
use crate::name::LockName;
use crate::token::{ClaimId, KeeperId, Token};

/// How many tickets are read before looking whether more are needed.
pub(super) const WINDOW: usize = 32;

/// A record as the rows say, perhaps with only a part of its queue.
pub(super) struct Loaded {
    pub(super) record: Record,
    /// The last ticket of the window, if there are more behind it.
    pub(super) cut: Option<u64>,
}

/// How much of a queue to read.
#[derive(Clone, Copy)]
pub(super) enum Queue {
    /// All of it.
    Whole,
    /// Its head, and this claim's own ticket wherever it stands.
    Head(Option<ClaimId>),
}

/// Reads what is known of a name.
pub(super) fn load(db: &Connection, name: &LockName, queue: Queue) -> Result<Loaded> {
    let key = name.as_str();
    let mut record = load_name(db, key)?.unwrap_or_default();
    record.holders = load_holders(db, key)?;
    let cut = load_queue(db, key, queue, &mut record.queue)?;
    record.watchers = load_watchers(db, key)?;
    record.finished = load_finished(db, key)?;
    if let Some(latch) = &mut record.latch {
        latch.counted = load_counted(db, key)?;
    }
    Ok(Loaded { record, cut })
}

fn load_name(db: &Connection, name: &str) -> Result<Option<Record>> {
    let sql = "SELECT kind, capacity, counter, last_ticket, closed_until, used, fence, \
               latch_remaining, latch_set, latch_keep, latch_until FROM names WHERE name = ?1";
    db.prepare_cached(sql)?
        .query_row([name], |row| {
            let latch = match row.get::<_, Option<i64>>(7)? {
                None => None,
                Some(remaining) => Some(Latch {
                    remaining: remaining as u32,
                    counted: Vec::new(),
                    set: CountId(text(row, 8)?.into()),
                    keep: span(row, 9)?,
                    until: time(row, 10)?,
                }),
            };
            Ok(Record {
                kind: row.get_ref(0)?.as_str_or_null()?.and_then(kind_from),
                capacity: number(row, 1)? as u32,
                counter: Token::new(number(row, 2)?),
                last_ticket: number(row, 3)?,
                closed_until: time(row, 4)?,
                used: time(row, 5)?,
                fence: row.get::<_, Option<i64>>(6)?.map(|token| Token::new(token as u64)),
                latch,
                ..Record::default()
            })
        })
        .optional()
}

fn load_holders(db: &Connection, name: &str) -> Result<Vec<Held>> {
    let sql = "SELECT session, number, turn, mode, permits, capacity, until, since, lock_delay, \
               who, host, pid, note, token, revoked FROM holders WHERE name = ?1";
    let mut held: Vec<Held> = all(db.prepare_cached(sql)?, [name], |row| {
        Ok(Held {
            claim: claim(row)?,
            mode: mode(row)?,
            until: time(row, 6)?,
            since: time(row, 7)?,
            lock_delay: span(row, 8)?,
            about: about(row)?,
            token: row.get::<_, Option<i64>>(13)?.map(|token| Token::new(token as u64)),
            revoked: row.get_ref(14)?.as_str_or_null()?.map(Arc::from),
        })
    })?;
    // The order of the key is not that of claims: numbers may differ in sign.
    held.sort_unstable_by_key(|held| held.claim);
    Ok(held)
}

const TICKETS: &str = "SELECT session, number, turn, mode, permits, capacity, until, since, \
                       lock_delay, who, host, pid, note, ticket FROM tickets WHERE name = ?1";

fn load_queue(
    db: &Connection,
    name: &str,
    queue: Queue,
    into: &mut VecDeque<Ticket>,
) -> Result<Option<u64>> {
    // A limit that is bound would make SQLite plan the query anew every time.
    let limit = match queue {
        Queue::Whole => String::new(),
        Queue::Head(_) => format!("LIMIT {}", WINDOW + 1),
    };
    let sql = format!("{TICKETS} ORDER BY ticket {limit}");
    *into = all(db.prepare_cached(&sql)?, [name], ticket)?.into();
    let Queue::Head(own) = queue else { return Ok(None) };
    if into.len() <= WINDOW {
        return Ok(None);
    }
    into.truncate(WINDOW);
    let cut = into.back().map(|ticket| ticket.number);
    if let Some(own) = own
        && !into.iter().any(|ticket| ticket.claim == own)
    {
        let sql = format!("{TICKETS} AND session = ?2 AND number = ?3 AND turn = ?4");
        let key = params![name, own.keeper.to_string(), own.number as i64, own.turn];
        into.extend(db.prepare_cached(&sql)?.query_row(key, ticket).optional()?);
    }
    Ok(cut)
}

fn ticket(row: &SqlRow<'_>) -> Result<Ticket> {
    Ok(Ticket {
        claim: claim(row)?,
        mode: mode(row)?,
        until: time(row, 6)?,
        since: time(row, 7)?,
        lock_delay: span(row, 8)?,
        about: about(row)?,
        number: number(row, 13)?,
    })
}

fn load_watchers(db: &Connection, name: &str) -> Result<VecDeque<Watcher>> {
    let sql = "SELECT session, number, turn, until FROM watchers WHERE name = ?1 ORDER BY place";
    let watcher = |row: &SqlRow<'_>| Ok(Watcher { claim: claim(row)?, until: time(row, 3)? });
    Ok(all(db.prepare_cached(sql)?, [name], watcher)?.into())
}

fn load_finished(db: &Connection, name: &str) -> Result<Vec<Finished>> {
    let sql = "SELECT session, number, turn, until, cause, reason FROM finished WHERE name = ?1";
    all(db.prepare_cached(sql)?, [name], |row| {
        let cause = cause_from(row.get_ref(4)?.as_str()?, row.get_ref(5)?.as_str()?);
        Ok(Finished { claim: claim(row)?, until: time(row, 3)?, cause })
    })
}

fn load_counted(db: &Connection, name: &str) -> Result<Vec<CountId>> {
    let sql = "SELECT id FROM counted WHERE name = ?1 ORDER BY place";
    all(db.prepare_cached(sql)?, [name], |row| Ok(CountId(text(row, 0)?.into())))
}

/// How many tickets stand before this one.
pub(super) fn count_ahead(db: &Connection, name: &LockName, ticket: u64) -> Result<u32> {
    let sql = "SELECT count(*) FROM tickets WHERE name = ?1 AND ticket < ?2";
    let mut statement = db.prepare_cached(sql)?;
    statement.query_row(params![name.as_str(), ticket as i64], |row| row.get(0))
}

/// How many tickets a name has.
pub(super) fn count_queue(db: &Connection, name: &LockName) -> Result<u32> {
    count_ahead(db, name, i64::MAX as u64)
}

/// The keepers whose tickets stand right before this one, nearest first.
pub(super) fn nearest_ahead(
    db: &Connection,
    name: &LockName,
    ticket: u64,
    limit: usize,
) -> Result<Vec<KeeperId>> {
    let sql = format!(
        "SELECT session FROM tickets WHERE name = ?1 AND ticket < ?2 \
         ORDER BY ticket DESC LIMIT {limit}"
    );
    let key = params![name.as_str(), ticket as i64];
    all(db.prepare_cached(&sql)?, key, |row| keeper(row, 0))
}

/// Writes the rows a step touched as they are now in the record.
pub(super) fn store(
    db: &Connection,
    name: &LockName,
    before: Option<(CountId, usize)>,
    record: &Record,
    rows: &[Row],
) -> Result<()> {
    for (index, row) in rows.iter().enumerate() {
        // Writing a row twice is harmless; looking for it in a long list is not.
        if index < WINDOW && rows[..index].contains(row) {
            continue;
        }
        match *row {
            Row::Name => store_name(db, name, before.as_ref(), record)?,
            Row::Holder(id) => {
                let held = record.holders.binary_search_by(|held| held.claim.cmp(&id));
                store_holder(db, name, id, held.ok().map(|index| &record.holders[index]))?;
            }
            Row::Ticket(id) => {
                let ticket = record.queue.iter().find(|ticket| ticket.claim == id);
                store_ticket(db, name, id, ticket)?;
            }
            Row::Watcher(id) => {
                let watcher = record.watchers.iter().find(|watcher| watcher.claim == id);
                store_watcher(db, name, id, watcher)?;
            }
            Row::Finished(id) => {
                let finished = record.finished.iter().find(|finished| finished.claim == id);
                store_finished(db, name, id, finished)?;
            }
        }
    }
    Ok(())
}

fn store_name(
    db: &Connection,
    name: &LockName,
    before: Option<&(CountId, usize)>,
    record: &Record,
) -> Result<()> {
    let sql = "INSERT INTO names (name, kind, capacity, counter, last_ticket, closed_until, used, \
               fence, latch_remaining, latch_set, latch_keep, latch_until) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) \
               ON CONFLICT (name) DO UPDATE SET kind = ?2, capacity = ?3, counter = ?4, \
               last_ticket = ?5, closed_until = ?6, used = ?7, fence = ?8, latch_remaining = ?9, \
               latch_set = ?10, latch_keep = ?11, latch_until = ?12";
    let latch = record.latch.as_ref();
    db.prepare_cached(sql)?.execute(params![
        name.as_str(),
        record.kind.map(kind_word),
        record.capacity,
        record.counter.get() as i64,
        record.last_ticket as i64,
        record.closed_until.0 as i64,
        record.used.0 as i64,
        record.fence.map(|token| token.get() as i64),
        latch.map(|latch| latch.remaining),
        latch.map(|latch| &*latch.set.0),
        latch.map(|latch| micros(latch.keep)),
        latch.map(|latch| latch.until.0 as i64),
    ])?;
    store_counted(db, name, before, latch)
}

/// Adds the new count-downs of a latch, or forgets those of an earlier one.
fn store_counted(
    db: &Connection,
    name: &LockName,
    before: Option<&(CountId, usize)>,
    latch: Option<&Latch>,
) -> Result<()> {
    // The same setting, sent again after the latch was forgotten, starts anew.
    let same = latch
        .zip(before)
        .filter(|(latch, before)| latch.set == before.0 && latch.counted.len() >= before.1);
    if same.is_none() && before.is_some() {
        db.prepare_cached("DELETE FROM counted WHERE name = ?1")?.execute([name.as_str()])?;
    }
    let known = same.map_or(0, |(_, before)| before.1);
    let counted = latch.map_or(&[][..], |latch| &latch.counted);
    for (place, id) in counted.iter().enumerate().skip(known) {
        let sql = "INSERT INTO counted (name, place, id) VALUES (?1, ?2, ?3)";
        db.prepare_cached(sql)?.execute(params![name.as_str(), place as i64, &*id.0])?;
    }
    Ok(())
}

fn store_holder(db: &Connection, name: &LockName, id: ClaimId, held: Option<&Held>) -> Result<()> {
    let Some(held) = held else { return delete(db, "holders", name, id) };
    let sql = "INSERT OR REPLACE INTO holders (name, session, number, turn, mode, permits, \
               capacity, token, until, since, lock_delay, who, host, pid, note, revoked) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)";
    let (mode, permits, capacity) = mode_words(held.mode);
    db.prepare_cached(sql)?.execute(params![
        name.as_str(),
        id.keeper.to_string(),
        id.number as i64,
        id.turn,
        mode,
        permits,
        capacity,
        held.token.map(|token| token.get() as i64),
        held.until.0 as i64,
        held.since.0 as i64,
        micros(held.lock_delay),
        held.about.who,
        held.about.host,
        held.about.pid,
        held.about.note,
        held.revoked.as_deref(),
    ])?;
    Ok(())
}

fn store_ticket(
    db: &Connection,
    name: &LockName,
    id: ClaimId,
    ticket: Option<&Ticket>,
) -> Result<()> {
    let Some(ticket) = ticket else { return delete(db, "tickets", name, id) };
    // A claim whose ticket died may have got a new one in the same step.
    let sql = "INSERT OR REPLACE INTO tickets (name, session, number, turn, mode, permits, capacity, ticket, \
               until, since, lock_delay, who, host, pid, note) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) \
               ON CONFLICT (name, ticket) DO UPDATE SET until = ?9";
    let (mode, permits, capacity) = mode_words(ticket.mode);
    db.prepare_cached(sql)?.execute(params![
        name.as_str(),
        id.keeper.to_string(),
        id.number as i64,
        id.turn,
        mode,
        permits,
        capacity,
        ticket.number as i64,
        ticket.until.0 as i64,
        ticket.since.0 as i64,
        micros(ticket.lock_delay),
        ticket.about.who,
        ticket.about.host,
        ticket.about.pid,
        ticket.about.note,
    ])?;
    Ok(())
}

fn store_watcher(
    db: &Connection,
    name: &LockName,
    id: ClaimId,
    watcher: Option<&Watcher>,
) -> Result<()> {
    let Some(watcher) = watcher else { return delete(db, "watchers", name, id) };
    let sql = "INSERT INTO watchers (name, session, number, turn, place, until) \
               VALUES (?1, ?2, ?3, ?4, \
               (SELECT coalesce(max(place), 0) + 1 FROM watchers WHERE name = ?1), ?5) \
               ON CONFLICT (name, session, number, turn) DO UPDATE SET until = ?5";
    let until = watcher.until.0 as i64;
    let key = params![name.as_str(), id.keeper.to_string(), id.number as i64, id.turn, until];
    db.prepare_cached(sql)?.execute(key)?;
    Ok(())
}

fn store_finished(
    db: &Connection,
    name: &LockName,
    id: ClaimId,
    finished: Option<&Finished>,
) -> Result<()> {
    let Some(finished) = finished else { return delete(db, "finished", name, id) };
    let sql = "INSERT OR REPLACE INTO finished (name, session, number, turn, until, cause, reason) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    db.prepare_cached(sql)?.execute(params![
        name.as_str(),
        id.keeper.to_string(),
        id.number as i64,
        id.turn,
        finished.until.0 as i64,
        finished.cause.as_str(),
        reason_of(&finished.cause),
    ])?;
    Ok(())
}

fn delete(db: &Connection, table: &str, name: &LockName, id: ClaimId) -> Result<()> {
    let sql = format!(
        "DELETE FROM {table} WHERE name = ?1 AND session = ?2 AND number = ?3 AND turn = ?4"
    );
    let key = params![name.as_str(), id.keeper.to_string(), id.number as i64, id.turn];
    db.prepare_cached(&sql)?.execute(key)?;
    Ok(())
}

fn all<T>(
    mut statement: CachedStatement<'_>,
    key: impl rusqlite::Params,
    read: impl FnMut(&SqlRow<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    statement.query_map(key, read)?.collect()
}

fn number(row: &SqlRow<'_>, column: usize) -> Result<u64> {
    Ok(row.get::<_, i64>(column)? as u64)
}

fn time(row: &SqlRow<'_>, column: usize) -> Result<Time> {
    number(row, column).map(Time)
}

fn span(row: &SqlRow<'_>, column: usize) -> Result<Duration> {
    number(row, column).map(Duration::from_micros)
}

fn text<'a>(row: &'a SqlRow<'_>, column: usize) -> Result<&'a str> {
    Ok(row.get_ref(column)?.as_str()?)
}

fn micros(span: Duration) -> i64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX) as i64
}

fn keeper(row: &SqlRow<'_>, column: usize) -> Result<KeeperId> {
    text(row, column)?.parse().map_err(|_| damaged(column, "session"))
}

/// Columns 0 to 2 of every row of a claim.
fn claim(row: &SqlRow<'_>) -> Result<ClaimId> {
    Ok(ClaimId { keeper: keeper(row, 0)?, number: number(row, 1)?, turn: number(row, 2)? as u32 })
}

/// Columns 3 to 5 of holders and tickets.
fn mode(row: &SqlRow<'_>) -> Result<Mode> {
    let (count, of) = (number(row, 4)? as u32, number(row, 5)? as u32);
    mode_from(text(row, 3)?, count, of).ok_or_else(|| damaged(3, "mode"))
}

/// Columns 9 to 12 of holders and tickets.
fn about(row: &SqlRow<'_>) -> Result<Arc<About>> {
    Ok(Arc::new(About {
        who: row.get(9)?,
        host: row.get(10)?,
        pid: number(row, 11)? as u32,
        note: row.get(12)?,
    }))
}

fn damaged(column: usize, what: &str) -> rusqlite::Error {
    let text = format!("a row has a {what} this program does not know");
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, text.into())
}
