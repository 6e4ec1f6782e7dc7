//! The control session: what is noted for others, and ending sessions.

use std::time::Duration;

use tokio::sync::Mutex;

use super::super::config::Sql;
use super::super::fault::{Class, Fault, Stage};
use super::super::wire::{Table, Wire};
use super::words::Words;
use crate::engine::{Claim, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::{ClaimId, Token};

/// One connection beside those that hold; made anew when it breaks.
#[derive(Debug)]
pub(super) struct Control {
    sql: Sql,
    pub(super) words: Words,
    slot: Mutex<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    wire: Option<Wire>,
    /// Whether somebody went away in the middle of a transaction.
    dirty: bool,
}

/// How soon to look again for a holder who is certainly dead.
const SOON: Duration = Duration::from_millis(40);

/// What was found of a name's dead holders.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dead {
    /// How many there were.
    pub(super) count: usize,
    /// For how long the name is closed, because of them or of others.
    pub(super) closed: Duration,
}

impl Control {
    pub(super) fn new(sql: Sql, words: Words, wire: Wire) -> Self {
        Control { sql, words, slot: Mutex::new(Slot { wire: Some(wire), dirty: false }) }
    }

    /// Asks something that is one transaction, or none.
    pub(super) async fn ask(&self, statements: &str) -> Result<Vec<Table>, Fault> {
        let mut slot = self.slot.lock().await;
        let answer = self.ask_in(&mut slot, statements).await;
        if let Err(fault) = &answer
            && fault.leaves_connection()
        {
            self.roll_back(&mut slot).await;
        }
        answer
    }

    /// Asks something that changes nothing: once more if the connection was stale.
    pub(super) async fn look(&self, statements: &str) -> Result<Vec<Table>, Fault> {
        match self.ask(statements).await {
            Err(fault) if fault.class == Class::Lost => self.ask(statements).await,
            answer => answer,
        }
    }

    async fn ask_in(&self, slot: &mut Slot, statements: &str) -> Result<Vec<Table>, Fault> {
        if std::mem::take(&mut slot.dirty) {
            slot.wire = None;
        }
        if slot.wire.as_ref().is_some_and(Wire::is_over) {
            slot.wire = None;
        }
        let wire = match slot.wire.take() {
            Some(wire) => wire,
            None => Wire::open(&self.sql).await?,
        };
        let wire = slot.wire.insert(wire);
        let answer = wire.ask(statements, self.sql.command).await;
        if answer.as_ref().is_err_and(|fault| !fault.leaves_connection()) {
            slot.wire = None;
        }
        answer
    }

    async fn roll_back(&self, slot: &mut Slot) {
        if self.ask_in(slot, "ROLLBACK").await.is_err() {
            slot.wire = None;
        }
    }

    /// Raises the token of a name whose row is locked by `session`, and notes
    /// the holder for others to see.
    pub(super) async fn register(
        &self,
        claim: &Claim,
        floor: Token,
        session: u64,
    ) -> Result<Option<Token>> {
        let statements = self.words.register(claim, floor, session);
        let tables = self.ask(&statements).await.map_err(|fault| fault.at(Stage::Commit))?;
        let row = tables.iter().rev().find_map(|table| table.rows.first());
        let token = match row {
            Some(row) => row.maybe_number(0).map_err(|fault| fault.at(Stage::Commit))?,
            None => return Err(strange()),
        };
        if token.is_some() != claim.mode.is_exclusive() {
            return Err(strange());
        }
        Ok(token.map(|token| Token::new(token.unsigned_abs())))
    }

    /// Clears away what dead holders of a name left, and closes the name for
    /// as long as they ask for, or might not know yet that they are dead.
    ///
    /// A session ends before its lease when its process or connection does,
    /// and both are known on the other side at once. When the *server* went
    /// down, its clients may not know: whoever finds a dead holder from before
    /// the server was up waits until it has been up for that holder's lease.
    pub(super) async fn bury(&self, name: &LockName, mine: Option<Mode>) -> Result<Dead, Fault> {
        let mut slot = self.slot.lock().await;
        let found = self.ask_in(&mut slot, &self.words.find_dead(name, mine)).await;
        // From here on, whoever goes away leaves a transaction open.
        slot.dirty = true;
        let dead = self.bury_found(&mut slot, name, found).await;
        match &dead {
            Ok(_) => slot.dirty = false,
            Err(_) => slot.wire = None,
        }
        dead
    }

    async fn bury_found(
        &self,
        slot: &mut Slot,
        name: &LockName,
        found: Result<Vec<Table>, Fault>,
    ) -> Result<Dead, Fault> {
        let found = found?;
        let [_, left, rows, certain, uptime] = &found[..] else { return Err(unclear()) };
        let uptime = uptime.rows.first().ok_or_else(unclear)?.number(1)?;
        let uptime = self.words.uptime_of(uptime);
        let mut dead = Dead::default();
        let mut statements = Vec::new();
        let mut certain = certain.rows.first().map_or(Ok(0), |row| row.number(0))?;
        for row in &rows.rows {
            certain -= row.number(4)?;
            let time = |column| Ok(Duration::from_millis(row.number(column)?.unsigned_abs()));
            let (lease, delay, age): (Duration, Duration, Duration) =
                (time(1)?, time(2)?, time(3)?);
            dead.count += 1;
            dead.closed = dead.closed.max(delay);
            if age >= uptime {
                dead.closed = dead.closed.max(lease.saturating_sub(uptime));
            }
            let claim: ClaimId = row.text(0)?.parse().map_err(|_| unclear())?;
            statements.push(self.words.forget(name, claim));
        }
        if !dead.closed.is_zero() {
            statements.push(self.words.close(name, dead.closed));
        }
        statements.push("COMMIT".to_owned());
        // The flag is for those who go away, not for this very question.
        slot.dirty = false;
        self.ask_in(slot, &statements.join("; ")).await?;
        // Somebody else may have buried them, and closed it.
        let left = left.rows.first().map_or(Ok(None), |row| row.maybe_number(0))?;
        let left = u64::try_from(left.unwrap_or(0)).unwrap_or(0);
        dead.closed = dead.closed.max(Duration::from_millis(left));
        if certain > 0 {
            // The server is still at ending the session of one of them.
            dead.closed = dead.closed.max(SOON);
        }
        Ok(dead)
    }

    /// Ends a session, waits until what it held is free, and deletes its note.
    pub(super) async fn end_session(
        &self,
        name: &LockName,
        claim: ClaimId,
        session: u64,
    ) -> Result<(), Fault> {
        // It may be gone already, and says so with an error.
        let killed = self.ask(&self.words.kill(session)).await;
        if let Err(fault) = killed
            && fault.class == Class::Lost
        {
            return Err(fault);
        }
        let limit = self.sql.command;
        let start = tokio::time::Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let tables = self.look(&self.words.noted(name, claim)).await?;
            let [row, dead] = &tables[..] else { return Err(unclear()) };
            if row.rows.is_empty() || !dead.rows.is_empty() {
                return self.ask(&self.words.forget_holder(name, claim)).await.map(drop);
            }
            if start.elapsed() > limit {
                let text = format!("the session did not end within {limit:?}");
                return Err(Fault::new(Class::Locked, text));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Whether a grant was broken, and why.
    pub(super) async fn reason(&self, claim: ClaimId) -> Result<Option<String>, Fault> {
        let tables = self.look(&self.words.beat(claim)).await?;
        let row = tables.first().and_then(|table| table.rows.first());
        row.map(|row| self.words.read(row.text(0)?)).transpose()
    }
}

fn strange() -> Error {
    Error::new(ErrorKind::Unexpected, "the server raised no token")
}

pub(super) fn unclear() -> Fault {
    Fault::new(Class::Refused(ErrorKind::Unexpected), "the server's answer has another shape")
}
