//! The lease strategy: the model on rows, one short transaction per operation.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::config::Sql;
use super::desk::Workers;
use super::fault::Stage;
use super::hear::{Ears, is_polled};
use super::look::{At, Look};
use super::step::{Done, Outcome, Step};
use super::{schema, wire};
use crate::clock::Moment;
use crate::engine::{
    Cell, CellOp, Claim, Connect, Cursor, Engine, EngineInfo, Found, Holder, Intent, Keep, Kind,
    Page, Release, Revoke, Seat, Standing, Status, TokenStrength,
};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::token::Token;

const CAVEAT: &str = "a failover to a replica that had not received them may forget the latest \
                      grants and tokens, and a step of the database's clock ends leases early or \
                      late";

/// How much later than the first an answer may be to one of several renewals.
const LATE: Duration = Duration::from_millis(400);

/// How soon a claim asks again that began to wait before we listened.
const CATCH_UP: Duration = Duration::from_millis(100);

/// An engine on lease rows.
#[derive(Debug)]
pub(super) struct LeaseEngine {
    info: EngineInfo,
    seat: Seat,
    workers: Workers,
    ears: Ears,
}

impl LeaseEngine {
    pub(super) async fn open(sql: Sql, seat: Seat) -> Result<LeaseEngine> {
        let mut connection =
            wire::connect(&sql, None).await.map_err(|fault| fault.at(Stage::Open))?;
        schema::ensure(&sql, &mut *connection).await?;
        let prepared = wire::prepare(&sql, &mut *connection).await;
        prepared.map_err(|fault| fault.at(Stage::Open))?;
        let info = EngineInfo {
            engine: sql.dialect.scheme().into(),
            label: sql.label(),
            ordered: true,
            polled: is_polled(&sql),
            tokens: TokenStrength::Durable,
            caveat: CAVEAT.into(),
            kinds: vec![Kind::Mutex, Kind::ReadWrite, Kind::Semaphore, Kind::Latch, Kind::Fence],
            min_lease: LockOptions::MIN_LEASE,
            lingers: true,
        };
        let ears = Ears::new(sql.clone(), seat.clone());
        let workers = Workers::new(sql, seat.clone(), connection);
        Ok(LeaseEngine { info, seat, workers, ears })
    }

    async fn ask_for(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing> {
        let sent = self.sent();
        let wanted = claim.clone();
        let (step, done) = Step::new(&claim.name, Some(claim.id), move |record, now, effects| {
            match record.acquire(&wanted, intent, floor, now, effects) {
                Ok(answer) => Outcome::Answer(answer),
                Err(refusal) => Outcome::Refused(refusal),
            }
        });
        let done = self.ask((step.queueing(claim.max_waiters), done)).await?;
        self.standing(claim, sent, done)
    }

    async fn ask(&self, (step, done): (Step, Pending)) -> Result<Done> {
        self.workers.ask(step);
        ended(done).await
    }

    /// Now, and whether what is told from now on will be heard.
    fn sent(&self) -> (Moment, bool) {
        (self.seat.clock.now(), self.ears.is_ready())
    }

    /// What an answer on the database's clock means on the keeper's.
    fn standing(
        &self,
        claim: &Claim,
        (sent, hears): (Moment, bool),
        done: Done,
    ) -> Result<Standing> {
        let answer = match done.outcome {
            Outcome::Answer(answer) => answer,
            Outcome::Refused(refusal) => return Err(refusal.into()),
            other => return Err(unexpected(&other)),
        };
        let mut standing = answer.standing(claim, sent, done.now, 0);
        match &mut standing {
            Standing::Queued(place) => {
                self.ears.wait(claim.id);
                if !hears {
                    // What is told before we listen is found by asking again.
                    place.renew_at = place.renew_at.min(sent + CATCH_UP);
                }
            }
            Standing::Held(_) => self.ears.hold(claim.id, claim.lease),
            _ => self.ears.done(claim.id),
        }
        Ok(standing)
    }

    async fn look(&self, at: At) -> Result<Page> {
        let (reply, answer) = oneshot::channel();
        self.workers.look(Look { at, reply });
        answer.await.unwrap_or_else(|_| Err(broken_off()))
    }
}

type Pending = oneshot::Receiver<Result<Done>>;

#[async_trait]
impl Engine for LeaseEngine {
    fn info(&self) -> EngineInfo {
        self.info.clone()
    }

    async fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing> {
        if intent != Intent::Try && !self.ears.is_ready() {
            // Nothing is left behind before what is told of it can be heard,
            // and nobody listens for what is free.
            let standing = self.ask_for(claim, Intent::Try, floor).await?;
            if standing != Standing::Busy {
                return Ok(standing);
            }
            self.ears.watch();
            self.ears.ready().await;
        } else if intent == Intent::Watch {
            self.ears.watch();
        }
        self.ask_for(claim, intent, floor).await
    }

    async fn renew(&self, batch: &[Keep]) -> Vec<Result<Standing>> {
        let sent = self.sent();
        let (mut steps, mut answers) = (Vec::new(), Vec::new());
        for keep in batch {
            let keep = keep.clone();
            let (name, id) = (keep.claim.name.clone(), keep.claim.id);
            let (step, done) = Step::new(&name, Some(id), move |record, now, effects| {
                let Keep { claim, belief, floor } = &keep;
                Outcome::Answer(record.renew(claim, *belief, *floor, now, effects))
            });
            steps.push(step);
            answers.push(ended(done));
        }
        match steps.len() {
            1 => steps.into_iter().for_each(|step| self.workers.ask(step)),
            _ => self.workers.ask_together(steps),
        }
        let answers = all_but_late(answers).await;
        let standing =
            |(keep, done): (&Keep, Result<Done>)| self.standing(&keep.claim, sent, done?);
        batch.iter().zip(answers).map(standing).collect()
    }

    async fn release(&self, claim: &Claim, how: Release) -> Result<Found> {
        self.ears.done(claim.id);
        let id = claim.id;
        let step = Step::new(&claim.name, Some(id), move |record, now, effects| {
            Outcome::Found(record.release(id, how, now, effects))
        });
        found(self.ask(step).await?)
    }

    async fn revoke(
        &self,
        name: &LockName,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Result<Found> {
        let (claim, token, reason) = (victim.claim, victim.token, reason.to_owned());
        let step = Step::new(name, None, move |record, now, effects| {
            Outcome::Found(record.revoke(claim, token, how, &reason, now, effects))
        });
        found(self.ask(step).await?)
    }

    async fn inspect(&self, name: &LockName) -> Result<Status> {
        let page = self.look(At::Name(name.clone())).await?;
        Ok(page.entries.into_iter().next().unwrap_or_else(|| Status::unused(name.clone())))
    }

    async fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page> {
        self.look(At::List { prefix: prefix.to_owned(), from, limit }).await
    }

    async fn cell(&self, name: &LockName, op: CellOp) -> Result<Cell> {
        let listens = matches!(op, CellOp::Look { watch: true, .. });
        let counts = match &op {
            CellOp::CountDown { by } => Some(by.clone()),
            _ => None,
        };
        let (step, done) = Step::new(name, None, move |record, now, effects| {
            match record.cell(&op, now, effects) {
                Ok(cell) => Outcome::Cell(cell),
                Err(refusal) => Outcome::Refused(refusal),
            }
        });
        if listens {
            self.ears.watch();
            self.ears.ready().await;
        }
        match self.ask((step.on_cell(counts, listens), done)).await?.outcome {
            Outcome::Cell(cell) => Ok(cell),
            Outcome::Refused(refusal) => Err(refusal.into()),
            other => Err(unexpected(&other)),
        }
    }

    async fn close(&self, by: Moment) -> Result<()> {
        self.ears.close();
        self.workers.close(by).await;
        Ok(())
    }
}

/// The answers to what was asked together. A name that somebody else keeps
/// locked is waited for by itself; the others' answers do not wait for that.
async fn all_but_late(answers: Vec<impl Future<Output = Result<Done>>>) -> Vec<Result<Done>> {
    let late = || Error::new(ErrorKind::Unknown, "somebody else has the row of the name locked");
    let mut done: Vec<Result<Done>> = answers.iter().map(|_| Err(late())).collect();
    let numbered = answers.into_iter().enumerate();
    let mut waiting: FuturesUnordered<_> =
        numbered.map(|(number, answer)| async move { (number, answer.await) }).collect();
    let mut until = None;
    loop {
        let next = match until {
            None => waiting.next().await,
            Some(until) => tokio::time::timeout_at(until, waiting.next()).await.unwrap_or(None),
        };
        let Some((number, answer)) = next else { return done };
        done[number] = answer;
        until.get_or_insert_with(|| Instant::now() + LATE);
    }
}

async fn ended(done: Pending) -> Result<Done> {
    done.await.unwrap_or_else(|_| Err(broken_off()))
}

fn found(done: Done) -> Result<Found> {
    match done.outcome {
        Outcome::Found(found) => Ok(found),
        other => Err(unexpected(&other)),
    }
}

/// A worker panicked, or ended with the keeper: what it did is not known.
fn broken_off() -> Error {
    Error::new(ErrorKind::Unknown, "the request broke off")
}

fn unexpected(outcome: &Outcome) -> Error {
    Error::new(ErrorKind::Unexpected, format!("a step came to {outcome:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_late_keeps_no_other_back() {
        let done = || Ok(Done { outcome: Outcome::Found(Found::Held), now: crate::model::Time(1) });
        let after = |millis| async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            done()
        };
        let start = Instant::now();
        // A slow database is waited for; what comes long after its first answer is not.
        let answers = all_but_late(vec![after(5_000), after(900), after(1_000)]).await;
        assert_eq!(start.elapsed(), Duration::from_millis(1_300));
        assert!(answers[1].is_ok() && answers[2].is_ok());
        let late = answers[0].as_ref().expect_err("it was not waited for");
        assert_eq!(late.kind(), ErrorKind::Unknown, "it may have been done all the same");
        assert_eq!(all_but_late(vec![after(5_000)]).await.len(), 1);
    }
}
