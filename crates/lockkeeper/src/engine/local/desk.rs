//! One transaction: steps of the model on rows, and whom they concern.

use std::collections::HashMap;
use std::path::Path;

use rusqlite::{Connection, params};

use super::failure::Fail;
use super::live::{self, Life};
use super::rows::{self, Loaded, Queue, WINDOW};
use super::schema;
use super::wake::{self, Wake};
use crate::engine::{Cursor, Page, Release, Status};
use crate::model::{Answer, Effects, Record, Row, Time};
use crate::name::LockName;
use crate::token::{ClaimId, KeeperId, Token};

/// How many keepers ahead of a waiting claim are watched.
const AHEAD: usize = 8;
/// How many names are forgotten at a time.
const FORGET: i64 = 1000;

/// What a claim is now, and whose death would change it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) answer: Answer,
    pub(super) now: Time,
    pub(super) ahead: Vec<KeeperId>,
}

/// The inside of a transaction.
pub(super) struct Desk<'a> {
    db: &'a Connection,
    dir: &'a Path,
    keeper: KeeperId,
    now: Time,
    /// Tokens are above this.
    floor: Token,
    /// Tokens are not above this, or the power cut wins.
    ceiling: Token,
    lives: HashMap<KeeperId, Life>,
    effects: Effects,
    outbox: Vec<(KeeperId, Wake)>,
}

impl<'a> Desk<'a> {
    /// Starts inside a transaction that has begun.
    pub(super) fn new(db: &'a Connection, dir: &'a Path, keeper: KeeperId) -> Result<Self, Fail> {
        let mut meta = db.prepare_cached("SELECT floor, ceiling FROM meta")?;
        let token = |row: &rusqlite::Row<'_>, column| -> rusqlite::Result<Token> {
            Ok(Token::new(row.get::<_, i64>(column)? as u64))
        };
        let (floor, ceiling) = meta.query_row([], |row| Ok((token(row, 0)?, token(row, 1)?)))?;
        Ok(Desk {
            db,
            dir,
            keeper,
            now: schema::now(),
            floor,
            ceiling,
            lives: HashMap::new(),
            effects: Effects::default(),
            outbox: Vec::new(),
        })
    }

    /// Whom to tell what, once the transaction is committed.
    pub(super) fn outbox(self) -> Vec<(KeeperId, Wake)> {
        self.outbox
    }

    /// Runs a step that ends with what a claim is.
    pub(super) fn ask<E>(
        &mut self,
        name: &LockName,
        claim: ClaimId,
        max_waiters: u32,
        mut step: impl FnMut(&mut Record, Time, &mut Effects) -> Result<Answer, E>,
    ) -> Result<Result<Asked, E>, Fail> {
        let head = Queue::Head(Some(claim));
        let (answer, after) = self.step_within(name, head, max_waiters, &mut step)?;
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut keepers = Vec::new();
        if let Answer::Queued { ticket, ahead, .. } = &mut answer {
            if after.cut.is_some() {
                *ahead = rows::count_ahead(self.db, name, *ticket)?;
            }
            keepers = rows::nearest_ahead(self.db, name, *ticket, AHEAD)?;
            keepers.extend(after.record.holders.iter().map(|held| held.claim.keeper));
            keepers.retain(|&keeper| keeper != self.keeper);
            keepers.sort_unstable();
            keepers.dedup();
        }
        Ok(Ok(Asked { answer, now: self.now, ahead: keepers }))
    }

    /// Runs a step of the model on a name and writes down what it changed.
    pub(super) fn step<T>(
        &mut self,
        name: &LockName,
        queue: Queue,
        mut step: impl FnMut(&mut Record, Time, &mut Effects) -> T,
    ) -> Result<T, Fail> {
        self.step_within(name, queue, u32::MAX, &mut step).map(|(answer, _)| answer)
    }

    fn step_within<T>(
        &mut self,
        name: &LockName,
        queue: Queue,
        max_waiters: u32,
        step: &mut dyn FnMut(&mut Record, Time, &mut Effects) -> T,
    ) -> Result<(T, Loaded), Fail> {
        let mut loaded = rows::load(self.db, name, queue)?;
        if loaded.cut.is_some() && rows::count_queue(self.db, name)? >= max_waiters {
            loaded = rows::load(self.db, name, Queue::Whole)?;
        }
        loop {
            let record = &mut loaded.record;
            // A name that is new, or was forgotten, goes on above the floor,
            // but has no token to show before that.
            let counter = record.counter;
            let raised = counter.max(self.floor);
            record.counter = raised;
            self.end_the_dead(record);
            let before =
                record.latch.as_ref().map(|latch| (latch.set.clone(), latch.counted.len()));
            self.effects.clear();
            let answer = step(record, self.now, &mut self.effects);
            if record.counter == raised {
                record.counter = counter;
            }
            if let Some(cut) = loaded.cut
                && record.queue.front().is_none_or(|front| front.number > cut)
            {
                // The step went through all we had read of the queue: it must
                // see the rest before anybody is overtaken.
                loaded = rows::load(self.db, name, Queue::Whole)?;
                continue;
            }
            if record.counter > self.ceiling && self.effects.rows.contains(&Row::Name) {
                return Err(Fail::Ceiling(record.counter));
            }
            rows::store(self.db, name, before, record, &self.effects.rows)?;
            self.collect(name)?;
            return Ok((answer, loaded));
        }
    }

    /// Ends the leases of holders whose process is gone, and drops the places
    /// of those first in line that are.
    fn end_the_dead(&mut self, record: &mut Record) {
        let now = self.now;
        for held in &mut record.holders {
            if held.until > now && self.is_dead(held.claim.keeper) {
                held.until = now;
            }
        }
        let mut shared = 0;
        for ticket in record.queue.iter_mut().filter(|ticket| ticket.until > now) {
            if self.is_dead(ticket.claim.keeper) {
                ticket.until = now;
            } else if ticket.mode.is_exclusive() || shared == WINDOW {
                break;
            } else {
                shared += 1;
            }
        }
    }

    fn is_dead(&mut self, keeper: KeeperId) -> bool {
        if keeper == self.keeper {
            return false;
        }
        let dir = self.dir;
        let probe =
            || if wake::is_neighbour(keeper) { Life::Alive } else { live::probe(dir, keeper) };
        *self.lives.entry(keeper).or_insert_with(probe) == Life::Dead
    }

    /// Notes whom the last step concerns.
    fn collect(&mut self, name: &LockName) -> Result<(), Fail> {
        self.outbox.extend(self.effects.pushes.drain(..).filter_map(Wake::of));
        if !self.effects.cell_changed {
            return Ok(());
        }
        let sql = "DELETE FROM listeners WHERE name = ?1 RETURNING session";
        let mut listeners = self.db.prepare_cached(sql)?;
        let mut rows = listeners.query([name.as_str()])?;
        while let Some(row) = rows.next()? {
            if let Ok(keeper) = row.get_ref(0)?.as_str().unwrap_or_default().parse() {
                self.outbox.push((keeper, Wake::Cell { name: name.clone() }));
            }
        }
        Ok(())
    }

    /// Notes that our keeper wants to hear of the next change of a number.
    pub(super) fn listen(&mut self, name: &LockName) -> Result<(), Fail> {
        let sql = "INSERT OR IGNORE INTO listeners (name, session) VALUES (?1, ?2)";
        let key = params![name.as_str(), self.keeper.to_string()];
        self.db.prepare_cached(sql)?.execute(key)?;
        Ok(())
    }

    /// Tells who holds and who waits, changing nothing.
    pub(super) fn status(&mut self, name: &LockName) -> Result<Status, Fail> {
        let mut record = rows::load(self.db, name, Queue::Whole)?.record;
        let now = self.now;
        for ticket in &mut record.queue {
            if self.is_dead(ticket.claim.keeper) {
                ticket.until = now;
            }
        }
        self.end_the_dead(&mut record);
        Ok(record.status(name.clone(), now))
    }

    /// Lists names in use.
    pub(super) fn list(
        &mut self,
        prefix: &str,
        from: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, Fail> {
        // A first look in SQL spares us the idle names.
        let sql = "SELECT name FROM names AS n WHERE name >= ?1 AND (?2 OR name > ?1) \
                   AND (kind IN ('semaphore', 'latch', 'fence') OR closed_until > ?3 \
                   OR EXISTS (SELECT 1 FROM holders AS h WHERE h.name = n.name) \
                   OR EXISTS (SELECT 1 FROM tickets AS t WHERE t.name = n.name)) ORDER BY name";
        let (start, inclusive) = match from {
            Some(Cursor(last)) => (last.as_str(), false),
            None => (prefix, true),
        };
        let mut entries: Vec<Status> = Vec::new();
        let mut names = self.db.prepare_cached(sql)?;
        let mut rows = names.query(params![start, inclusive, self.now.0 as i64])?;
        while entries.len() <= limit
            && let Some(row) = rows.next()?
        {
            let Ok(name) = row.get_ref(0)?.as_str() else { continue };
            if !name.starts_with(prefix) {
                break;
            }
            let Ok(name) = LockName::new(name) else { continue };
            let status = self.status(&name)?;
            if status.is_in_use() {
                entries.push(status);
            }
        }
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|last| Cursor(last.name.clone().into()));
        Ok(Page { entries, next })
    }

    /// Ends what a dead keeper left behind.
    pub(super) fn end_session(&mut self, dead: KeeperId) -> Result<(), Fail> {
        let session = dead.to_string();
        let names = |table: &str| -> Result<Vec<(LockName, ClaimId)>, Fail> {
            let sql = format!("SELECT name, number, turn FROM {table} WHERE session = ?1");
            let mut statement = self.db.prepare(&sql)?;
            let rows = statement.query_map([&session], |row| {
                let (number, turn) = (row.get::<_, i64>(1)? as u64, row.get(2)?);
                Ok((row.get::<_, String>(0)?, ClaimId { keeper: dead, number, turn }))
            })?;
            let named = |(name, claim): (String, ClaimId)| Some((LockName::new(name).ok()?, claim));
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().filter_map(named).collect())
        };
        let (held, queued) = (names("holders")?, names("tickets")?);
        let how = Release { linger: std::time::Duration::ZERO, unsure: false };
        for (name, claim) in queued {
            self.step(&name, Queue::Head(Some(claim)), |record, now, effects| {
                record.release(claim, how, now, effects)
            })?;
        }
        for (name, _) in held {
            self.step(&name, Queue::Head(None), |record, now, effects| {
                record.settle(now, effects)
            })?;
        }
        for table in ["watchers", "listeners"] {
            self.db.execute(&format!("DELETE FROM {table} WHERE session = ?1"), [&session])?;
        }
        Ok(())
    }

    /// Whether a keeper has anything left here.
    pub(super) fn has_left(&self, keeper: KeeperId) -> Result<bool, Fail> {
        let sql = "SELECT EXISTS (SELECT 1 FROM holders WHERE session = ?1) \
                   OR EXISTS (SELECT 1 FROM tickets WHERE session = ?1)";
        Ok(self.db.query_row(sql, [keeper.to_string()], |row| row.get(0))?)
    }

    /// Forgets names that nobody has used for a long time.
    pub(super) fn forget_idle(&mut self) -> Result<(), Fail> {
        let retention = Record::RETENTION.as_micros() as u64;
        let Some(before) = self.now.0.checked_sub(retention) else { return Ok(()) };
        let sql = "SELECT name FROM names WHERE fence IS NULL AND used <= ?1 LIMIT ?2";
        let mut statement = self.db.prepare(sql)?;
        let rows = statement.query_map(params![before as i64, FORGET], |row| row.get(0))?;
        let names = rows.collect::<rusqlite::Result<Vec<String>>>()?;
        let mut floor = self.floor;
        for name in names.into_iter().filter_map(|name| LockName::new(name).ok()) {
            let record = rows::load(self.db, &name, Queue::Whole)?.record;
            if record.is_forgettable(self.now) {
                floor = floor.max(record.counter);
                for table in ["names", "holders", "tickets", "watchers", "finished", "counted"] {
                    let sql = format!("DELETE FROM {table} WHERE name = ?1");
                    self.db.prepare_cached(&sql)?.execute([name.as_str()])?;
                }
            }
        }
        if floor != self.floor {
            self.db.execute("UPDATE meta SET floor = ?1", [floor.get() as i64])?;
            self.floor = floor;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
