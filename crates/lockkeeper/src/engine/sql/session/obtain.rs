//! How a claim comes to hold: asking for the row, waiting for it in the
//! server, raising the token, the first heartbeat.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::super::fault::{Class, Fault, Stage};
use super::super::wire::{Table, Wire};
use super::Shared;
use super::control::unclear;
use super::task::{GRACE, Order, Stand, Task};
use crate::clock::Moment;
use crate::engine::words::kind_from;
use crate::engine::{Claim, Event, Found, Grant, Intent, Standing, TICKET};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::token::Token;

/// How long one wait inside the server takes at most.
const SLICE: Duration = Duration::from_secs(5);
/// After how long without an answer a claim is said to wait.
const PROMPT: Duration = Duration::from_millis(40);

/// Why a task stops before it holds.
pub(super) enum Stop {
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
    /// Gets the name's row locked and the grant registered and confirmed.
    pub(super) async fn obtain(&mut self, wire: &mut Option<Wire>) -> Result<Option<Token>, Stop> {
        let claim = self.claim.clone();
        self.connect(wire).await?;
        let mut open = false;
        let patient = self.intent == Intent::Queue;
        let mut slice = (patient && self.shared.just_let_go(&claim.name)).then_some(SLICE);
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
            Some(_) => {
                let mut asked = std::pin::pin!(asked);
                match tokio::time::timeout(PROMPT, &mut asked).await {
                    Ok(answer) => answer,
                    Err(_) => {
                        self.wait();
                        tokio::select! {
                            answer = asked => answer,
                            stop = stopped(&mut self.orders, &self.shared, &claim) => {
                                return Err(stop);
                            }
                        }
                    }
                }
            }
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
    pub(super) fn limit(&self) -> Duration {
        self.claim.lease.max(self.shared.sql.command)
    }

    async fn roll_back(&mut self, wire: &mut Option<Wire>, open: bool) {
        let Some(line) = wire.take() else { return };
        if !open {
            *wire = Some(line);
            return;
        }
        let undo = self.shared.control.words.end("ROLLBACK");
        if line.ask(undo, self.shared.sql.command).await.is_ok() {
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
    let [.., locked, there, noted, closed] = tables else {
        return Err(unclear());
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
