//! Who holds what, and taking it from them.

use std::sync::Arc;
use std::time::Duration;

use super::super::fault::{Class, Fault, Stage};
use super::super::wire::{Row, Table};
use super::Shared;
use super::control::unclear;
use crate::engine::words::{kind_from, mode_from};
use crate::engine::{About, Cursor, Found, Holder, Page, Revoke, Status};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::Token;

impl Shared {
    pub(super) async fn inspect(&self, name: &LockName) -> Result<Status> {
        let seen = self.see(std::slice::from_ref(name)).await;
        let mut seen = seen.map_err(|fault| fault.at(Stage::Work))?;
        Ok(seen.pop().unwrap_or_else(|| Status::unused(name.clone())))
    }

    pub(super) async fn list(
        &self,
        prefix: &str,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page> {
        let words = &self.control.words;
        let from = from.as_ref().map(|cursor| &*cursor.0);
        let statement = words.list(prefix, from, limit + 1);
        let listed = async {
            let tables = self.control.look(&statement).await?;
            let rows = tables.last().map(|table| &table.rows[..]).unwrap_or_default();
            let names = rows.iter().map(|row| words.read(row.text(0)?));
            let mut names: Vec<String> = names.collect::<Result<_, Fault>>()?;
            let more = names.len() > limit;
            names.truncate(limit);
            let next = names.last().filter(|_| more).cloned();
            let names: Result<Vec<LockName>> = names.iter().map(LockName::new).collect();
            let mut entries = self.see(&names.map_err(|_| unclear())?).await?;
            entries.retain(Status::is_in_use);
            Ok::<Page, Fault>(Page { entries, next: next.map(Cursor) })
        };
        listed.await.map_err(|fault| fault.at(Stage::Work))
    }

    /// Looks at names; what dead holders left under them is cleared away.
    async fn see(&self, names: &[LockName]) -> Result<Vec<Status>, Fault> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<String> = names.iter().map(|name| self.control.words.key(name)).collect();
        let statements = self.control.words.look(&keys);
        let mut tables = self.control.look(&statements).await?;
        let dead = tables.first().map(|table| &table.rows[..]).unwrap_or_default();
        if !dead.is_empty() {
            for name in names {
                self.control.bury(name, None).await?;
            }
            tables = self.control.look(&statements).await?;
        }
        names.iter().map(|name| self.read(&tables, name)).collect()
    }

    pub(super) async fn revoke(
        &self,
        name: &LockName,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Result<Found> {
        let at = |fault: Fault| fault.at(Stage::Commit);
        let words = &self.control.words;
        let tables = self.control.look(&words.noted(name, victim.claim)).await.map_err(at)?;
        let [noted, dead] = &tables[..] else { return Err(unclear().at(Stage::Work)) };
        let Some(row) = noted.rows.first() else { return Ok(Found::Nothing) };
        let session = row.number(0).map_err(at)?.unsigned_abs();
        let token = row.maybe_number(1).map_err(at)?;
        if token.map(|token| Token::new(token.unsigned_abs())) != victim.token {
            return Ok(Found::Nothing);
        }
        if !dead.rows.is_empty() && !victim.age.is_zero() {
            self.control.bury(name, None).await.map_err(at)?;
            return Ok(Found::Nothing);
        }
        self.control.ask(&words.note_break(victim.claim, reason)).await.map_err(at)?;
        if how == Revoke::Orderly {
            return Ok(Found::Held);
        }
        // The reason stays a while, for the victim to read.
        match self.control.end_session(name, victim.claim, session).await {
            Ok(()) => Ok(Found::Held),
            Err(fault) if fault.class == Class::Locked => {
                let text = "the holder's session cannot be ended: this user may not end those of \
                            another (KILL, pg_terminate_backend)";
                Err(Error::new(ErrorKind::Invalid, text))
            }
            Err(fault) => Err(at(fault)),
        }
    }
}

impl Shared {
    /// Puts the status of a name together.
    fn read(&self, tables: &[Table], name: &LockName) -> Result<Status, Fault> {
        let [_, kinds, tokens, holders] = tables else { return Err(unclear()) };
        let words = &self.control.words;
        let of_it = |row: &&Row| {
            let stored = row.text(0).and_then(|stored| words.read(stored));
            stored.is_ok_and(|stored| stored == name.as_str())
        };
        let mut status = Status::unused(name.clone());
        if let Some(row) = kinds.rows.iter().find(of_it) {
            status.kind = kind_from(row.text(1)?);
        }
        if let Some(row) = tokens.rows.iter().find(of_it) {
            let token = row.number(1)?.unsigned_abs();
            status.token = (token > 0).then(|| Token::new(token));
            status.closed_for = millis(row.maybe_number(2)?.unwrap_or(0));
        }
        let holders = holders.rows.iter().filter(of_it).map(|row| self.holder(row));
        status.holders = holders.collect::<Result<_, Fault>>()?;
        Ok(status)
    }

    fn holder(&self, row: &Row) -> Result<Holder, Fault> {
        let text = |column| self.control.words.read(row.text(column)?);
        let token = row.maybe_number(3)?;
        Ok(Holder {
            claim: row.text(1)?.parse().map_err(|_| unclear())?,
            mode: mode_from(row.text(2)?, 0, 0).ok_or_else(unclear)?,
            token: token.map(|token| Token::new(token.unsigned_abs())),
            about: Arc::new(About {
                who: text(4)?,
                host: text(5)?,
                pid: u32::try_from(row.number(6)?).unwrap_or(0),
                note: text(7)?,
            }),
            age: millis(row.number(8)?),
            lease_left: millis(row.number(9)?),
            revoked: row.maybe_text(10)?.is_some(),
        })
    }
}

fn millis(number: i64) -> Duration {
    Duration::from_millis(u64::try_from(number).unwrap_or(0))
}
