//! One claim and its session: the task that waits, holds and lets go.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::super::fault::{Class, Fault, Stage};
use super::super::wire::{Table, Wire};
use super::Shared;
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::words::kind_from;
use crate::engine::{Claim, Event, Found, Grant, Intent, Standing, TICKET};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::token::Token;

/// How long one wait inside the server takes at most.
const SLICE: Duration = Duration::from_secs(5);
/// How long a new holder waits when the last one's session died: its process
/// may live, and is to be told first.
const GRACE: Duration = Duration::from_millis(300);

/// What the task of a claim has come to.
#[derive(Clone, Debug)]
pub(super) enum Stand {
    /// Asking for the first time.
    Asking,
    /// Waiting in the server.
    Waiting,
    /// Holding, as of the last heartbeat.
    Held(Grant),
    /// Over.
    Over(Over),
}

/// How a task ended.
#[derive(Clone, Debug)]
pub(super) enum Over {
    /// Others hold the name.
    Busy,
    /// It could not be done.
    Failed(Error),
    /// Its grant or its wait is gone.
    Gone(Cause),
    /// It was given back.
    Released,
}

/// What a task is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Renew, and say what the claim is.
    Beat(oneshot::Sender<Result<Standing>>),
    /// Find out whether the session lives.
    Check,
    /// The grant was broken.
    Broken(Arc<str>),
    /// Give back what there is; the name stays closed for a while.
    End(Duration, oneshot::Sender<Result<Found>>),
}

/// The task of one claim.
pub(super) struct Task {
    pub(super) shared: Arc<Shared>,
    pub(super) claim: Arc<Claim>,
    pub(super) intent: Intent,
    pub(super) floor: Token,
    pub(super) shard: u32,
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
    pub(super) stand: watch::Sender<Stand>,
    /// The number of the session, once there is one.
    pub(super) session: watch::Sender<u64>,
    /// Whether the session was used before, and may have ended since.
    pub(super) stale: bool,
    /// Whether something is noted of the claim for others to see.
    pub(super) noted: bool,
}

/// Why a task stops before it holds.
enum Stop {
    Busy,
    Failed(Error),
    /// Told to end; who wants to know.
    Ended(Option<oneshot::Sender<Result<Found>>>),
    /// Nobody has asked for it for too long.
    Forgotten,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

impl Task {
    pub(super) async fn run(mut self) {
        let mut wire = None;
        let over = match self.obtain(&mut wire).await {
            Ok(token) => match wire.take() {
                Some(wire) => self.hold(wire, token).await,
                None => Over::Released,
            },
            Err(stop) => self.stop(stop, wire).await,
        };
        self.shared.finish(&self.claim, self.shard, &over);
        self.stand.send_replace(Stand::Over(over));
    }

    /// Gets the name's row locked and the grant registered and confirmed.
    async fn obtain(&mut self, wire: &mut Option<Wire>) -> Result<Option<Token>, Stop> {
        let claim = self.claim.clone();
        self.connect(wire).await?;
        let mut open = false;
        let mut slice = None;
        loop {
            let found = match self.try_row(wire, &mut open, slice).await? {
                Row::Locked(found) => found,
                Row::Missing => continue,
                Row::Busy if self.intent != Intent::Queue => {
                    self.roll_back(wire, open).await;
                    return Err(Stop::Busy);
                }
                Row::Busy => {
                    self.wait();
                    slice = Some(SLICE);
                    continue;
                }
            };
            let mut closed = found.closed;
            if found.noted > 0 {
                let dead = self.shared.control.bury(&claim.name, Some(claim.mode)).await;
                let dead = dead.map_err(|fault| fault.at(Stage::Work))?;
                closed = closed.max(dead.closed);
                if dead.count > 0 && closed.is_zero() {
                    self.unless_ended(tokio::time::sleep(GRACE)).await?;
                }
            }
            if !closed.is_zero() {
                self.roll_back(wire, open).await;
                open = false;
                if self.intent != Intent::Queue {
                    return Err(Stop::Busy);
                }
                self.wait();
                self.unless_ended(tokio::time::sleep(closed.min(TICKET))).await?;
                continue;
            }
            let Some(line) = wire.as_ref() else { return Err(Stop::Forgotten) };
            self.noted = true;
            let token = self.shared.control.register(&claim, self.floor, line.session()).await?;
            let sent = self.shared.seat.clock.now();
            let confirmed = line.ask(self.shared.control.words.confirm(&claim), self.limit()).await;
            let confirmed = confirmed.map_err(|fault| fault.at(Stage::Commit))?;
            if confirmed.last().is_none_or(|table| table.rows.is_empty()) {
                // Somebody took the session for dead.
                let text = "the session was cleared away by somebody else";
                return Err(Stop::Failed(Error::new(ErrorKind::Unknown, text)));
            }
            self.held(token, sent);
            return Ok(token);
        }
    }

    /// Takes a session that is to spare, or makes one.
    async fn connect(&mut self, wire: &mut Option<Wire>) -> Result<(), Stop> {
        *wire = self.shared.spare();
        self.stale = wire.is_some();
        if wire.is_none() {
            let shared = self.shared.clone();
            let opened = self.unless_ended(async move { shared.open_session().await }).await?;
            *wire = Some(opened.map_err(|fault| fault.at(Stage::Open))?);
        }
        if let Some(wire) = wire {
            self.session.send_replace(wire.session());
        }
        Ok(())
    }

    /// Asks for the row: at once, or waiting for a slice of time.
    async fn try_row(
        &mut self,
        wire: &mut Option<Wire>,
        open: &mut bool,
        slice: Option<Duration>,
    ) -> Result<Row, Stop> {
        let claim = self.claim.clone();
        let words = &self.shared.control.words;
        let mut statements = words.lock(&claim, slice);
        if std::mem::replace(open, true) {
            statements = format!("ROLLBACK; {statements}");
        }
        let limit = self.shared.sql.command + slice.unwrap_or_default();
        let Some(line) = wire.as_ref() else { return Err(Stop::Forgotten) };
        let asked = line.ask(statements, limit);
        let answer = match slice {
            None => asked.await,
            Some(_) => tokio::select! {
                answer = asked => answer,
                stop = stopped(&mut self.orders, &self.shared, &claim) => return Err(stop),
            },
        };
        let tables = match answer {
            Ok(tables) => tables,
            Err(fault) => match fault.class {
                Class::Locked | Class::Conflict => return Ok(Row::Busy),
                // A session to spare may have ended while nobody looked.
                Class::Lost if self.stale => {
                    *open = false;
                    *wire = None;
                    self.connect(wire).await?;
                    return Ok(Row::Missing);
                }
                _ => return Err(Stop::Failed(fault.at(Stage::Work))),
            },
        };
        self.stale = false;
        match read_row(&tables, &claim).map_err(|fault| fault.at(Stage::Work))? {
            Asked::Kind(word) => {
                let kind = kind_from(&word).map_or(word, |kind| kind.to_string());
                Err(Stop::Failed(invalid(format!("it is a {kind}, not a {}", claim.mode.kind()))))
            }
            Asked::Missing => {
                *open = false;
                let make = words.make_lock(&claim.name, claim.mode.kind());
                let made = line.ask(format!("ROLLBACK; {make}"), self.shared.sql.command).await;
                match made {
                    // Somebody made it and has locked it already.
                    Err(fault) if fault.class != Class::Locked => {
                        Err(Stop::Failed(fault.at(Stage::Work)))
                    }
                    _ => Ok(Row::Missing),
                }
            }
            Asked::Busy => Ok(Row::Busy),
            Asked::Row(row) => Ok(Row::Locked(row)),
        }
    }

    /// Says that the claim waits, the first time.
    fn wait(&self) {
        self.stand.send_if_modified(|stand| {
            let asking = matches!(stand, Stand::Asking);
            if asking {
                *stand = Stand::Waiting;
            }
            asking
        });
    }

    fn held(&self, token: Option<Token>, sent: Moment) {
        let grant = Grant::leased(&self.claim, sent, token, self.shard);
        let waited = matches!(*self.stand.borrow(), Stand::Waiting);
        self.stand.send_replace(Stand::Held(grant));
        if waited {
            self.shared.seat.events.push(Event::Is(self.claim.id, Standing::Held(grant)));
        }
    }

    /// How long an answer of the session can be of use.
    fn limit(&self) -> Duration {
        self.claim.lease.max(self.shared.sql.command)
    }

    async fn roll_back(&mut self, wire: &mut Option<Wire>, open: bool) {
        let Some(line) = wire.take() else { return };
        if !open {
            *wire = Some(line);
            return;
        }
        if line.ask("ROLLBACK", self.shared.sql.command).await.is_ok() {
            *wire = Some(line);
        }
    }

    /// Does something that can be broken off when the claim is given up.
    async fn unless_ended<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Stop> {
        tokio::select! {
            done = work => Ok(done),
            stop = stopped(&mut self.orders, &self.shared, &self.claim) => Err(stop),
        }
    }

    /// Winds up a claim that did not get to hold.
    async fn stop(&mut self, stop: Stop, wire: Option<Wire>) -> Over {
        let wound_up = match wire {
            Some(wire) if matches!(stop, Stop::Busy) => {
                self.shared.keep_spare(wire);
                Ok(())
            }
            // It may wait in the server, where a closed socket is not noticed.
            Some(wire) if !matches!(stop, Stop::Failed(_)) => self.kill(&wire).await,
            Some(wire) => match wire.ask("ROLLBACK", self.shared.sql.command).await {
                Ok(_) => {
                    self.shared.keep_spare(wire);
                    self.clear().await
                }
                Err(_) => self.kill(&wire).await,
            },
            None => Ok(()),
        };
        match stop {
            Stop::Busy => Over::Busy,
            Stop::Failed(error) => Over::Failed(error),
            Stop::Ended(reply) => {
                let found = wound_up.map(|()| Found::Queued);
                if let Some(reply) = reply {
                    let _ = reply.send(found.map_err(|fault| fault.at(Stage::Commit)));
                }
                Over::Released
            }
            Stop::Forgotten => Over::Gone(Cause::Expired),
        }
    }

    /// Ends the session by its number.
    async fn kill(&self, wire: &Wire) -> Result<(), Fault> {
        let claim = &self.claim;
        self.shared.control.end_session(&claim.name, claim.id, wire.session()).await
    }

    /// Deletes what is noted of a claim whose row lock has ended.
    async fn clear(&self) -> Result<(), Fault> {
        if !self.noted {
            return Ok(());
        }
        let control = &self.shared.control;
        control.ask(&control.words.forget(&self.claim.name, self.claim.id)).await.map(drop)
    }

    /// Holds until it is told to end, or the session is over.
    async fn hold(&mut self, wire: Wire, token: Option<Token>) -> Over {
        let mut broken: Option<Arc<str>> = None;
        loop {
            let order = tokio::select! {
                order = self.orders.recv() => order,
                () = wire.ended() => return Over::Gone(self.lose(broken).await),
            };
            match order {
                Some(Order::Beat(reply)) => match self.beat(&wire, token, &mut broken).await {
                    Ok(standing) => _ = reply.send(Ok(standing)),
                    Err(Beat::Failed(error)) => _ = reply.send(Err(error)),
                    Err(Beat::Over) => {
                        let cause = self.lose(broken).await;
                        let _ = reply.send(Ok(Standing::Gone(cause.clone())));
                        return Over::Gone(cause);
                    }
                },
                Some(Order::Check) => {
                    if let Err(Beat::Over) = self.beat(&wire, token, &mut broken).await {
                        return Over::Gone(self.lose(broken).await);
                    }
                }
                Some(Order::Broken(reason)) => {
                    if broken.is_none() {
                        let gone = Standing::Gone(Cause::Broken { reason: reason.clone() });
                        self.tell(gone);
                        broken = Some(reason);
                    }
                }
                Some(Order::End(linger, reply)) => match self.let_go(&wire, linger).await {
                    Ok(true) => {
                        self.shared.keep_spare(wire);
                        let _ = reply.send(Ok(Found::Held));
                        return Over::Released;
                    }
                    Ok(false) => {
                        let _ = reply.send(Ok(Found::Held));
                        return Over::Released;
                    }
                    Err(error) => {
                        let _ = reply.send(Err(error));
                        if wire.is_over() {
                            return Over::Gone(self.lose(broken).await);
                        }
                    }
                },
                None => return Over::Released,
            }
        }
    }

    async fn beat(
        &self,
        wire: &Wire,
        token: Option<Token>,
        broken: &mut Option<Arc<str>>,
    ) -> Result<Standing, Beat> {
        let sent = self.shared.seat.clock.now();
        let statements = self.shared.control.words.beat(self.claim.id);
        let answer = wire.ask(statements, self.limit()).await;
        match answer {
            Ok(tables) => {
                let reason = tables.first().and_then(|table| table.rows.first());
                if let Some(row) = reason {
                    let read = row.text(0).and_then(|text| self.shared.control.words.read(text));
                    broken.get_or_insert_with(|| read.unwrap_or_default().into());
                }
                if let Some(reason) = broken {
                    return Ok(Standing::Gone(Cause::Broken { reason: reason.clone() }));
                }
                let grant = Grant::leased(&self.claim, sent, token, self.shard);
                self.stand.send_replace(Stand::Held(grant));
                Ok(Standing::Held(grant))
            }
            Err(fault) if fault.class == Class::Lost => Err(Beat::Over),
            Err(fault) => Err(Beat::Failed(fault.at(Stage::Work))),
        }
    }

    /// Ends the row lock. Says whether the session can be used again.
    async fn let_go(&self, wire: &Wire, linger: Duration) -> Result<bool> {
        let (control, claim) = (&self.shared.control, &self.claim);
        if !linger.is_zero() {
            // Before the row is free, or others could slip in.
            let closed = control.ask(&control.words.close(&claim.name, linger)).await;
            closed.map_err(|fault| fault.at(Stage::Commit))?;
        }
        match wire.ask(control.words.release(claim), self.shared.sql.command).await {
            Ok(_) => Ok(true),
            Err(_) => {
                // Whether it was done or not, the session is ended by its number.
                self.kill(wire).await.map(|()| false).map_err(|fault| fault.at(Stage::Commit))
            }
        }
    }

    /// The session is over: says so at once, with the cause if there is one
    /// to be found quickly.
    async fn lose(&self, broken: Option<Arc<str>>) -> Cause {
        let events = &self.shared.seat.events;
        events.push(Event::Link { shard: self.shard, up: false });
        let reason = match broken {
            Some(reason) => Some(reason),
            None => {
                let asked = self.shared.control.reason(self.claim.id);
                match tokio::time::timeout(GRACE / 6, asked).await {
                    Ok(Ok(reason)) => reason.map(Into::into),
                    _ => None,
                }
            }
        };
        let valid_until = match &*self.stand.borrow() {
            Stand::Held(grant) => grant.valid_until,
            _ => Moment::default(),
        };
        let cause = match reason {
            Some(reason) => Cause::Broken { reason },
            None if self.shared.seat.clock.now() >= valid_until => Cause::Expired,
            None => Cause::TakenOver,
        };
        self.tell(Standing::Gone(cause.clone()));
        cause
    }

    /// Tells whoever holds by this session.
    fn tell(&self, standing: Standing) {
        for claim in self.shared.owners(self.claim.id) {
            self.shared.seat.events.push(Event::Is(claim, standing.clone()));
        }
    }
}

/// Why a heartbeat was not answered.
enum Beat {
    /// The session is over.
    Over,
    /// The server would not.
    Failed(Error),
}

/// What came of asking for a row.
enum Row {
    Locked(LockedRow),
    Busy,
    /// It has been made; ask again.
    Missing,
}

/// A row that this session has locked.
struct LockedRow {
    /// For how long the name is closed all the same.
    closed: Duration,
    /// How many holders are noted for it.
    noted: i64,
}

/// What the database says of a row.
enum Asked {
    Row(LockedRow),
    Busy,
    Missing,
    /// It is of another kind.
    Kind(String),
}

fn read_row(tables: &[Table], claim: &Claim) -> Result<Asked, Fault> {
    let [.., locked, there, closed, noted] = tables else {
        return Err(super::control::unclear());
    };
    // A row that was made after this question, or waited for, is locked, but
    // perhaps not yet there for the second.
    let Some(row) = locked.rows.first().or(there.rows.first()) else {
        return Ok(Asked::Missing);
    };
    let word = row.text(0)?;
    if kind_from(word) != Some(claim.mode.kind()) {
        return Ok(Asked::Kind(word.to_owned()));
    }
    if locked.rows.is_empty() {
        return Ok(Asked::Busy);
    }
    let millis = closed.rows.first().map_or(Ok(0), |row| row.number(0))?;
    let noted = noted.rows.first().map_or(Ok(0), |row| row.number(0))?;
    let closed = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
    Ok(Asked::Row(LockedRow { closed, noted }))
}

/// Waits until a claim that does not hold yet is given up, or forgotten by a
/// keeper that says nothing of it any more.
async fn stopped(
    orders: &mut mpsc::UnboundedReceiver<Order>,
    shared: &Shared,
    claim: &Claim,
) -> Stop {
    loop {
        match tokio::time::timeout(TICKET, orders.recv()).await {
            Ok(Some(Order::End(_, reply))) => return Stop::Ended(Some(reply)),
            Ok(Some(_)) => {}
            Ok(None) => return Stop::Ended(None),
            Err(_) if shared.is_forgotten(claim.id) => return Stop::Forgotten,
            Err(_) => {}
        }
    }
}
