//! Reads everything about a name.

use std::collections::HashMap;

use super::reply::{Reply, about, kind, strange, token};
use crate::engine::{Cell, CountId, Holder, Kind, Mode, Status, Waiter};
use crate::error::Result;
use crate::model::Time;
use crate::name::LockName;
use crate::token::Token;

/// The status of a name, from the answer of inspect.lua.
pub(super) fn status(name: &LockName, reply: &Reply) -> Result<Status> {
    let mut status = Status::unused(name.clone());
    if reply.len() == 0 {
        return Ok(status);
    }
    let now = Time(reply.number(0)?);
    let raw = reply.text(1)?;
    let record = Record::read(&raw).ok_or_else(|| strange(&redis::Value::Nil))?;
    status.kind = record.kind;
    status.token = (record.counter > Token::ZERO).then_some(record.counter);
    status.closed_for = record.closed.since(now);
    status.holders = holders(&record, now, reply)?;
    status.waiters = waiters(now, reply)?;
    status.cell = cell(&record, now, reply)?;
    // A latch that is over is none, and the name free for anything.
    if status.kind == Some(Kind::Latch) && status.cell.is_none() {
        status.kind = None;
    }
    Ok(status)
}

/// The columns of a record that people see.
struct Record<'a> {
    kind: Option<Kind>,
    counter: Token,
    capacity: u32,
    closed: Time,
    ends: Time,
    since: Time,
    token: Token,
    claim: &'a str,
    revoked: bool,
    about: &'a str,
}

impl<'a> Record<'a> {
    fn read(raw: &'a str) -> Option<Self> {
        let columns: Vec<&str> = raw.splitn(13, ' ').collect();
        let number = |index: usize| columns.get(index)?.parse::<u64>().ok();
        // The columns of the holder are missing if there is none.
        let held = |index: usize| number(index).unwrap_or_default();
        let word = |index: usize| columns.get(index).copied().unwrap_or("-");
        Some(Record {
            // Version, kind and flags are one column.
            kind: kind(columns.first()?.get(1..2)?),
            counter: Token::new(number(1)?),
            capacity: u32::try_from(number(3)?).ok()?,
            closed: Time(number(5)?),
            ends: Time(held(6)),
            claim: word(7),
            token: Token::new(held(8)),
            revoked: word(9) != "-",
            since: Time(held(10)),
            about: word(12),
        })
    }
}

fn holders(record: &Record<'_>, now: Time, reply: &Reply) -> Result<Vec<Holder>> {
    let mut holders = Vec::new();
    if record.ends > now {
        let mode = match record.kind {
            Some(Kind::ReadWrite) => Mode::Write,
            _ => Mode::Exclusive,
        };
        holders.push(Holder {
            claim: record.claim.parse()?,
            mode,
            token: Some(record.token),
            about: about(record.about),
            age: now.since(record.since),
            lease_left: record.ends.since(now),
            revoked: record.revoked,
        });
    }
    let ends = times(reply.list(3)?);
    for (claim, details) in pairs(reply.list(2)?) {
        let ends = ends.get(&claim).copied().unwrap_or_default();
        let words: Vec<&str> = details.splitn(8, ' ').collect();
        if ends > now
            && let [mode, count, of, held, since, _, revoked, who] = words[..]
        {
            holders.push(Holder {
                claim: claim.parse()?,
                mode: shared_mode(mode, count, of),
                token: token(held)?,
                about: about(who),
                age: now.since(Time(since.parse().unwrap_or_default())),
                lease_left: ends.since(now),
                revoked: revoked != "-",
            });
        }
    }
    holders.sort_by_key(|holder| holder.claim);
    Ok(holders)
}

fn waiters(now: Time, reply: &Reply) -> Result<Vec<Waiter>> {
    let ends = times(reply.list(5)?);
    let details: HashMap<String, String> = pairs(reply.list(6)?).collect();
    let mut waiters = Vec::new();
    for (claim, _) in pairs(reply.list(4)?) {
        let live = ends.get(&claim).is_some_and(|&ends| ends > now);
        let words: Vec<&str> =
            details.get(&claim).map(|text| text.splitn(6, ' ').collect()).unwrap_or_default();
        if live && let [mode, count, of, since, _, who] = words[..] {
            waiters.push(Waiter {
                claim: claim.parse()?,
                mode: shared_mode(mode, count, of),
                about: about(who),
                age: now.since(Time(since.parse().unwrap_or_default())),
            });
        }
    }
    Ok(waiters)
}

fn cell(record: &Record<'_>, now: Time, reply: &Reply) -> Result<Option<Cell>> {
    let cell = match (record.kind, &reply.list(7)?[..]) {
        (Some(Kind::Semaphore), _) => Some(Cell::Capacity(record.capacity)),
        (Some(Kind::Latch), [left, set, ends, _]) => {
            let ends = Time(ends.parse().unwrap_or_default());
            let set = CountId(set.as_str().into());
            let remaining = left.parse().unwrap_or_default();
            (ends > now).then_some(Cell::Latch { remaining, set })
        }
        (Some(Kind::Fence), [_, _, _, highest]) => {
            highest.parse().ok().map(|highest| Cell::Fence { highest })
        }
        _ => None,
    };
    Ok(cell)
}

fn shared_mode(mode: &str, count: &str, of: &str) -> Mode {
    let number = |text: &str| text.parse().unwrap_or_default();
    match mode {
        "x" => Mode::Exclusive,
        "w" => Mode::Write,
        "r" => Mode::Read,
        _ => Mode::Permits { count: number(count), of: number(of) },
    }
}

fn pairs(list: Vec<String>) -> impl Iterator<Item = (String, String)> {
    let mut list = list.into_iter();
    std::iter::from_fn(move || Some((list.next()?, list.next()?)))
}

fn times(list: Vec<String>) -> HashMap<String, Time> {
    pairs(list).map(|(claim, ends)| (claim, Time(ends.parse().unwrap_or_default()))).collect()
}
