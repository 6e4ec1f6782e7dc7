//! One claim and its session: the task that waits, holds and lets go.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::super::fault::{Class, Fault, Stage};
use super::super::wire::Wire;
use super::Shared;
use super::obtain::Stop;
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{Claim, Event, Found, Grant, Intent, Standing};
use crate::error::{Error, Result};
use crate::token::Token;

/// How long a new holder waits when the last one's session died: its process
/// may live, and is to be told first.
pub(super) const GRACE: Duration = Duration::from_millis(300);

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

    /// Winds up a claim that did not get to hold.
    async fn stop(&mut self, stop: Stop, wire: Option<Wire>) -> Over {
        let wound_up = match wire {
            Some(wire) if matches!(stop, Stop::Busy) => {
                self.shared.keep_spare(wire);
                Ok(())
            }
            // It may wait in the server, where a closed socket is not noticed.
            Some(wire) if !matches!(stop, Stop::Failed(_)) => self.kill(&wire).await,
            Some(wire) => {
                let undo = self.shared.control.words.end("ROLLBACK");
                match wire.ask(undo, self.shared.sql.command).await {
                    Ok(_) => {
                        self.shared.keep_spare(wire);
                        self.clear().await
                    }
                    Err(_) => self.kill(&wire).await,
                }
            }
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
