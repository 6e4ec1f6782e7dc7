//! One transaction: steps of the model on the rows of names.
//!
//! Two round trips. The first begins, locks the rows of the names, reads the
//! clock *after* that, and reads the claims, if there seem to be any. The
//! second writes what the steps changed and commits. Rows of claims are only
//! touched by whoever has the row of their name locked, so what was read stays
//! true until the commit.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio::sync::oneshot;

use super::config::Sql;
use super::fault::{Class, Fault, Stage};
use super::phrase::Phrase;
use super::rows::{self, CLAIMS, Crowd, Loaded, NAMES, NAMES_COUNT, WINDOW};
use super::store::Writer;
use super::wire::{Connection, Table, ask};
use crate::ErrorKind;
use crate::engine::{Cell, CountId, Event, Found, lines};
use crate::error::{Error, Result};
use crate::model::{Answer, Effects, Record, Refusal, Time};
use crate::name::LockName;
use crate::token::{ClaimId, KeeperId};
use crate::url::parts::encode;

/// What a step came to.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Answer(Answer),
    Found(Found),
    Cell(Cell),
    Refused(Refusal),
}

/// What a step came to, and when by the database's clock.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) outcome: Outcome,
    pub(super) now: Time,
}

type Work = Box<dyn FnMut(&mut Record, Time, &mut Effects) -> Outcome + Send + Sync>;

/// Something to do on a name. It may be done again, if others were in the way.
pub(super) struct Step {
    pub(super) name: LockName,
    /// Whose ticket is needed, wherever it stands.
    claim: Option<ClaimId>,
    /// How many may wait before this one is refused a place.
    max_waiters: u32,
    /// Which count-down must be known.
    counts: Option<CountId>,
    /// Whether our keeper wants to hear of the next change of the number.
    listens: bool,
    /// Whether it needs the whole queue, and a transaction of its own.
    pub(super) alone: bool,
    work: Work,
    outcome: Option<Outcome>,
    reply: oneshot::Sender<Result<Done>>,
}

impl Step {
    pub(super) fn new(
        name: &LockName,
        claim: Option<ClaimId>,
        work: impl FnMut(&mut Record, Time, &mut Effects) -> Outcome + Send + Sync + 'static,
    ) -> (Step, oneshot::Receiver<Result<Done>>) {
        let (reply, answer) = oneshot::channel();
        let step = Step {
            name: name.clone(),
            claim,
            max_waiters: u32::MAX,
            counts: None,
            listens: false,
            alone: false,
            work: Box::new(work),
            outcome: None,
            reply,
        };
        (step, answer)
    }

    /// A step that may take a place in a queue.
    pub(super) fn queueing(mut self, max_waiters: u32) -> Step {
        self.max_waiters = max_waiters;
        self
    }

    /// A step on a number.
    pub(super) fn on_cell(mut self, counts: Option<CountId>, listens: bool) -> Step {
        (self.counts, self.listens, self.alone) = (counts, listens, true);
        self
    }

    /// Whether anybody still waits for its answer.
    pub(super) fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    /// Answers whoever waits.
    pub(super) fn answer(self, now: Result<Time>) {
        let broken = || Error::new(ErrorKind::Unexpected, "a step was never done");
        let done = now.and_then(|now| {
            let outcome = self.outcome.ok_or_else(broken)?;
            Ok(Done { outcome, now })
        });
        // Nobody left to tell.
        let _ = self.reply.send(done);
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("name", &self.name).field("claim", &self.claim).finish()
    }
}

/// What to do about a name that another session has locked, or that is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Wait for its row, or make it. For one name.
    Wait,
    /// Leave it out.
    Skip,
}

/// What a transaction came to.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) now: Time,
    /// What to tell our own keeper.
    pub(super) events: Vec<Event>,
    /// The names that were left out.
    pub(super) skipped: Vec<LockName>,
    /// The names that were not, and whether they have rows of claims.
    pub(super) seen: Vec<(LockName, bool)>,
    /// Whether nothing was changed, and the transaction is still to be undone.
    pub(super) open: bool,
}

/// Where transactions are made.
pub(super) struct Desk<'a> {
    pub(super) sql: &'a Sql,
    pub(super) keeper: KeeperId,
    pub(super) connection: &'a mut dyn Connection,
    /// Whether the names are likely to have rows of claims. If so they are
    /// read at once; else only when the row of a name says that there are
    /// some, in a round trip of their own.
    pub(super) company: bool,
}

/// A fault, and how far the transaction had come.
pub(super) type Stopped = (Fault, Stage);

impl Desk<'_> {
    /// Does steps, ordered by name, in one transaction. After an error the
    /// transaction may be open, unless the connection is gone.
    pub(super) async fn run(
        &mut self,
        steps: &mut [Step],
        patience: Patience,
    ) -> Result<Ran, Stopped> {
        let (mut names, now) = self.load(steps, patience).await.map_err(at_work)?;
        let sql = self.sql;
        let (events, skipped, seen) = (Vec::new(), Vec::new(), Vec::new());
        let mut ran = Ran { now, events, skipped, seen, open: false };
        let mut writer = Writer::new(sql, self.connection.prepares());
        for steps in steps.chunk_by_mut(|one, other| one.name == other.name) {
            let name = steps[0].name.clone();
            let Some(loaded) = names.get_mut(&name) else {
                ran.skipped.push(name);
                continue;
            };
            let effects = self.step(&name, loaded, steps, now).await.map_err(at_work)?;
            writer.store(&name, loaded, &effects.rows, now);
            ran.seen.push((name.clone(), loaded.crowd != Crowd::Nobody));
            for event in &effects.pushes {
                match lines::write(event) {
                    Some((keeper, _)) if keeper == self.keeper => ran.events.push(event.clone()),
                    Some((keeper, line)) => {
                        writer.push(&sql.dialect.post(sql, keeper, &line, now));
                    }
                    None => {}
                }
            }
            // Whoever listens hears of what its own look changed, too.
            if steps.iter().any(|step| step.listens) {
                let values = format!("({}, '{}')", sql.dialect.bytes(name.as_str()), self.keeper);
                let table = sql.table("listeners");
                writer.push(&sql.dialect.insert_new(&table, "name, keeper", &values));
            }
            if effects.cell_changed {
                let line = format!("c {}", encode(name.as_str()));
                writer.push(&sql.dialect.post_listeners(sql, &name, &line, now));
            }
        }
        let mut statements = writer.finish();
        if statements.is_empty() {
            ran.open = true;
            return Ok(ran);
        }
        statements.push_str(self.connection.commit());
        match self.ask(&statements).await {
            Ok(_) => Ok(ran),
            Err(fault) => Err((fault, Stage::Commit)),
        }
    }

    /// Undoes an open transaction.
    pub(super) async fn undo(&mut self) -> Result<(), Fault> {
        let rollback = self.connection.rollback();
        self.ask(rollback).await.map(drop)
    }

    async fn ask(&mut self, statements: &str) -> Result<Vec<Table>, Fault> {
        ask(self.connection, statements, self.sql.command).await
    }

    /// Begins, locks, and reads.
    async fn load(
        &mut self,
        steps: &[Step],
        patience: Patience,
    ) -> Result<(BTreeMap<LockName, Loaded>, Time), Fault> {
        let sql = self.sql;
        let list: Vec<String> = steps
            .chunk_by(|one, other| one.name == other.name)
            .map(|steps| sql.dialect.bytes(steps[0].name.as_str()))
            .collect();
        let counts = steps.iter().any(|step| step.counts.is_some());
        let mut make = false;
        loop {
            let statements = self.load_statements(steps, &list, patience, make);
            let tables = self.ask(&statements).await?;
            // Counted from the end: what it takes to begin differs.
            let asked = [self.connection.clock_apart(), self.company, counts];
            let asked = 1 + asked.into_iter().filter(|asked| *asked).count();
            let from = tables.len().checked_sub(asked).ok_or_else(short)?;
            let mut tables = tables.into_iter().skip(from);
            let locked = tables.next().ok_or_else(short)?;
            let mut names = rows::names(sql, &locked)?;
            if patience == Patience::Wait && names.is_empty() && !make {
                // Never used, or forgotten.
                self.undo().await?;
                make = true;
                continue;
            }
            let now = match self.connection.clock_apart() {
                true => clock(&tables.next().ok_or_else(short)?, 0)?,
                false => clock(&locked, NAMES_COUNT)?,
            };
            if self.company {
                rows::claims(sql, &tables.next().ok_or_else(short)?, &mut names)?;
            } else if names.values().any(|loaded| loaded.crowd == Crowd::Some) {
                let tables = self.ask(&self.claims_statement(&list, patience)).await?;
                rows::claims(sql, tables.last().ok_or_else(short)?, &mut names)?;
            }
            if let (Some(counted), Some(loaded)) = (tables.next(), names.values_mut().next()) {
                let id = |row| rows::text(sql, row, 0).map(|id| CountId(id.into()));
                loaded.counted(counted.rows.iter().map(id).collect::<Result<_, _>>()?);
            }
            return Ok((names, now));
        }
    }

    fn load_statements(
        &self,
        steps: &[Step],
        list: &[String],
        patience: Patience,
        make: bool,
    ) -> String {
        let (sql, names) = (self.sql, self.sql.table("names"));
        let mut parts = vec![self.connection.begin().to_owned()];
        if make {
            parts.extend(make_statements(sql, list));
        }
        parts.push(match patience {
            Patience::Wait => Phrase::Lock.with(sql, self.connection.prepares(), list),
            Patience::Skip => {
                let list = list.join(", ");
                let rest = "ORDER BY name FOR UPDATE SKIP LOCKED";
                sql.dialect.locking(NAMES, &format!("{names} WHERE name IN ({list}) {rest}"))
            }
        });
        if self.connection.clock_apart() {
            parts.push(format!("SELECT {}", sql.dialect.clock()));
        }
        if self.company {
            parts.push(self.claims_statement(list, patience));
        }
        let counts: Vec<String> = steps
            .iter()
            .filter_map(|step| step.counts.as_ref())
            .map(|id| sql.dialect.bytes(&id.0))
            .collect();
        if !counts.is_empty() {
            let (table, names, ids) = (sql.table("counted"), list.join(", "), counts.join(", "));
            parts.push(format!("SELECT id FROM {table} WHERE name IN ({names}) AND id IN ({ids})"));
        }
        parts.join("; ")
    }

    /// Reads the claims of names, but of those that have too many.
    fn claims_statement(&self, list: &[String], patience: Patience) -> String {
        let sql = self.sql;
        if patience == Patience::Wait {
            return Phrase::Claims.with(sql, self.connection.prepares(), list);
        }
        let (names, claims) = (sql.table("names"), sql.table("claims"));
        let (list, columns) = (list.join(", "), CLAIMS.replace(", ", ", c."));
        format!(
            "SELECT c.{columns} FROM {names} AS n JOIN {claims} AS c ON c.name = n.name \
             WHERE n.name IN ({list}) AND n.crowd = 1"
        )
    }

    /// Does the steps of one name.
    async fn step(
        &mut self,
        name: &LockName,
        loaded: &mut Loaded,
        steps: &mut [Step],
        now: Time,
    ) -> Result<Effects, Fault> {
        let crowded = loaded.crowd == Crowd::Many;
        let fresh = crowded.then(|| loaded.clone());
        let mut tickets = 0;
        if crowded {
            tickets = self.load_part(name, loaded, steps).await?;
        }
        loop {
            // A name that was forgotten goes on above its tokens, but has
            // none to show before that.
            let counter = loaded.record.counter;
            let raised = counter.max(loaded.floor);
            loaded.record.counter = raised;
            let mut effects = Effects::default();
            for step in &mut *steps {
                let mut outcome = (step.work)(&mut loaded.record, now, &mut effects);
                if let (Outcome::Answer(Answer::Queued { ticket, ahead, .. }), Some(cut)) =
                    (&mut outcome, loaded.cut)
                    && *ticket > cut
                {
                    let known = step.claim.and_then(|claim| loaded.ahead.get(&claim));
                    *ahead = known.copied().unwrap_or(tickets);
                }
                step.outcome = Some(outcome);
            }
            if loaded.record.counter == raised {
                loaded.record.counter = counter;
            }
            match &fresh {
                // The steps went through all we had read of the queue: they
                // must see the rest before anybody is overtaken.
                Some(fresh) if loaded.is_used_up() => {
                    *loaded = fresh.clone();
                    self.load_whole(name, loaded).await?;
                }
                _ => return Ok(effects),
            }
        }
    }

    /// Reads the first tickets of a long queue, and those of the steps'
    /// claims; returns how many there are.
    async fn load_part(
        &mut self,
        name: &LockName,
        loaded: &mut Loaded,
        steps: &[Step],
    ) -> Result<u32, Fault> {
        let (sql, table) = (self.sql, self.sql.table("claims"));
        let of = format!("FROM {table} AS c WHERE c.name = {}", sql.dialect.bytes(name.as_str()));
        let own: Vec<String> =
            steps.iter().filter_map(|step| step.claim).map(|claim| format!("'{claim}'")).collect();
        let own = if own.is_empty() { "''".to_owned() } else { own.join(", ") };
        let columns = CLAIMS.replace(", ", ", c.");
        let ahead = format!(
            "SELECT count(*) FROM {table} AS q WHERE q.name = c.name AND q.state = 'queued' \
             AND q.place < c.place"
        );
        let statements = format!(
            "SELECT c.{columns} {of} AND c.state IN ('finished', 'held', 'watching'); \
             SELECT c.{columns} {of} AND c.state = 'queued' ORDER BY c.place LIMIT {limit}; \
             SELECT c.{columns} {of} AND c.state = 'queued' AND c.claim IN ({own}); \
             SELECT c.claim, ({ahead}) {of} AND c.state = 'queued' AND c.claim IN ({own}); \
             SELECT count(*) {of} AND c.state = 'queued'",
            limit = WINDOW + 1
        );
        let tables = self.ask(&statements).await?;
        let [others, head, tickets, places, count] = tables.last_chunk().ok_or_else(short)?;
        let count = count.rows.first().ok_or_else(short)?.number(0)? as u32;
        if steps.iter().any(|step| step.alone || count >= step.max_waiters) {
            self.load_whole(name, loaded).await?;
            return Ok(count);
        }
        let mut head = head.clone();
        if head.rows.len() > WINDOW {
            head.rows.truncate(WINDOW);
            let last = head.rows.last().ok_or_else(short)?.number(2)?;
            loaded.cut = Some(last as u64);
        }
        for row in &places.rows {
            let claim = row.text(0)?.parse().map_err(|_| short())?;
            loaded.ahead.insert(claim, row.number(1)? as u32);
        }
        for table in [others, &head, tickets] {
            loaded.add_all(sql, table)?;
        }
        Ok(count)
    }

    async fn load_whole(&mut self, name: &LockName, loaded: &mut Loaded) -> Result<(), Fault> {
        let (sql, table) = (self.sql, self.sql.table("claims"));
        let name = sql.dialect.bytes(name.as_str());
        let tables = self.ask(&format!("SELECT {CLAIMS} FROM {table} WHERE name = {name}")).await?;
        loaded.add_all(sql, tables.last().ok_or_else(short)?)
    }
}

/// Makes the rows of new names. The floor is read once the row is there:
/// whoever forgot the name has raised it by then.
fn make_statements(sql: &Sql, list: &[String]) -> [String; 2] {
    let (names, meta) = (sql.table("names"), sql.table("meta"));
    let blank = |name| format!("({name}, 0, 0, 0, 0, 0, 0, 0, 0)");
    let columns = "name, capacity, counter, floor, last_ticket, crowd, closed_until_us, until_us, \
                   used_us";
    let rows: Vec<String> = list.iter().map(blank).collect();
    [
        sql.dialect.insert_new(&names, columns, &rows.join(", ")),
        format!(
            "UPDATE {names} SET floor = (SELECT m.floor FROM {meta} AS m WHERE m.one = 1) \
             WHERE name IN ({})",
            list.join(", ")
        ),
    ]
}

/// The latest time in a column: after all rows were locked.
fn clock(table: &Table, column: usize) -> Result<Time, Fault> {
    let mut times = table.rows.iter().map(|row| row.number(column));
    times.try_fold(Time(0), |latest, time| Ok(latest.max(Time(time? as u64))))
}

fn at_work(fault: Fault) -> Stopped {
    (fault, Stage::Work)
}

fn short() -> Fault {
    Fault::new(Class::Refused(ErrorKind::Unexpected), "an answer lacks something")
}

/// How long others are let go first, after they were in the way.
pub(super) fn pause(attempt: u32) -> Duration {
    Duration::from_millis(1 << attempt.min(6)).mul_f64(0.5 + fastrand::f64())
}
