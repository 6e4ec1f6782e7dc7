//! Forgetting names that nobody has used for a long time.

use std::time::Duration;

use super::super::config::Sql;
use super::super::fault::{Fault, Stage};
use super::super::wire::Wire;
use super::control::unclear;
use super::open::{make_tables, tongue};
use super::words::Words;
use crate::error::Result;

/// How many names are looked at in one transaction.
const AT_ONCE: usize = 200;

/// Forgets the names that nobody has used for `idle`; returns how many.
pub(in super::super) async fn forget_idle(sql: &Sql, idle: Duration) -> Result<u64> {
    let at_open = |fault: Fault| fault.at(Stage::Open).during("gc");
    let wire = Wire::open(sql).await.map_err(at_open)?;
    let words = Words::new(sql, tongue(sql, &wire).await.map_err(at_open)?);
    make_tables(sql, &wire, &words).await?;
    let forgotten = forget(sql, &wire, &words, idle).await;
    forgotten.map_err(|fault| fault.at(Stage::Work).during("gc"))
}

async fn forget(sql: &Sql, wire: &Wire, words: &Words, idle: Duration) -> Result<u64, Fault> {
    let mut from: Option<String> = None;
    let mut forgotten = 0;
    loop {
        let found = words.find_idle(idle, from.as_deref(), AT_ONCE);
        let tables = wire.ask(found, sql.command).await?;
        let [.., locked, seen] = &tables[..] else { return Err(unclear()) };
        let read = |row: &super::super::wire::Row| words.read(row.text(0)?);
        let names: Vec<String> = locked.rows.iter().map(read).collect::<Result<_, Fault>>()?;
        from = seen.rows.last().map(read).transpose()?;
        if names.is_empty() {
            wire.ask("COMMIT", sql.command).await?;
        } else {
            let done = wire.ask(words.forget_idle(&names, idle), sql.command).await?;
            let left = done.iter().rev().find_map(|table| table.rows.first());
            let left = left.ok_or_else(unclear)?.number(0)?.unsigned_abs();
            forgotten += (names.len() as u64).saturating_sub(left);
        }
        if from.is_none() {
            return Ok(forgotten);
        }
    }
}
