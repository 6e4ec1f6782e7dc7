//! Engine calls under way.
//!
//! Each call has a limit and a net for panics, and is polled once on the spot:
//! an engine that answers without waiting costs no trip through the scheduler.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Sleep;

use super::link::Call;
use super::{ANSWER_LIMIT, Driver};
use crate::engine::{Belief, Claim, Found, Intent, Keep, Release, Standing, Status};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::{ClaimId, Token};

pub(super) type Flight = Pin<Box<dyn Future<Output = Done> + Send>>;

/// An answer from the engine, or the lack of one.
pub(super) enum Done {
    Asked { claim: ClaimId, result: Result<Standing> },
    Renewed { shard: u32, claims: Vec<(ClaimId, Belief)>, results: Result<Vec<Result<Standing>>> },
    Released { number: u64, result: Result<Found> },
    Inspected { number: u64, result: Result<Status> },
    Called,
}

impl Driver {
    pub(super) fn start_acquire(&mut self, claim: Arc<Claim>, intent: Intent) {
        self.tally.acquires += 1;
        let engine = self.engine.clone();
        self.start(Box::pin(async move {
            let asked = engine.acquire(&claim, intent, Token::ZERO);
            let result = limited(ANSWER_LIMIT, asked).await;
            Done::Asked { claim: claim.id, result }
        }));
    }

    pub(super) fn start_renew(&mut self, shard: u32, batch: Vec<Keep>, limit: Duration) {
        let beats = batch.iter().filter(|keep| matches!(keep.belief, Belief::Queued { .. }));
        let beats = beats.count() as u64;
        self.tally.beats += beats;
        self.tally.renewals += batch.len() as u64 - beats;
        let engine = self.engine.clone();
        self.start(Box::pin(async move {
            let results = limited(limit, async { Ok(engine.renew(&batch).await) }).await;
            let claims = batch.iter().map(|keep| (keep.claim.id, keep.belief)).collect();
            Done::Renewed { shard, claims, results }
        }));
    }

    pub(super) fn start_release(&mut self, number: u64, claim: Arc<Claim>, how: Release) {
        self.tally.releases += 1;
        let engine = self.engine.clone();
        self.start(Box::pin(async move {
            let result = limited(ANSWER_LIMIT, engine.release(&claim, how)).await;
            Done::Released { number, result }
        }));
    }

    pub(super) fn start_inspect(&mut self, number: u64, name: LockName) {
        let engine = self.engine.clone();
        self.start(Box::pin(async move {
            let result = limited(ANSWER_LIMIT, engine.inspect(&name)).await;
            Done::Inspected { number, result }
        }));
    }

    pub(super) fn start_call(&mut self, call: Call) {
        let engine = self.engine.clone();
        self.start(Box::pin(async move {
            if let Err(error) = caught(call(engine)).await {
                tracing::error!(%error, "an engine call broke off");
            }
            Done::Called
        }));
    }

    fn start(&mut self, mut flight: Flight) {
        match flight.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => self.done.push_back(done),
            // Whoever joins the set is polled again, with a waker that works.
            Poll::Pending => {
                self.flights.push(flight);
                self.pace.keep();
            }
        }
    }
}

/// A timer that is due before any call's limit, while there are calls.
///
/// The runtime pays a system call, and is woken once in vain, for every new
/// timer that is due before all others: that is every call's limit, if calls
/// come one after the other. With this one ahead of them they are free.
#[derive(Default)]
pub(super) struct Pace(Option<Pin<Box<Sleep>>>);

/// Shorter than the limit of any call.
const PACE: Duration = Duration::from_millis(200);

impl Pace {
    fn keep(&mut self) {
        if self.0.is_none() {
            let mut sleep = Box::pin(tokio::time::sleep(PACE));
            // A timer counts from its first poll on.
            let _ = sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            self.0 = Some(sleep);
        }
    }

    /// Lets it run out; the next call sets it anew.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) {
        if let Some(sleep) = &mut self.0
            && sleep.as_mut().poll(context).is_ready()
        {
            self.0 = None;
        }
    }
}

/// The error of a call that got no answer: it may have taken effect.
pub(crate) fn unanswered(limit: Duration) -> Error {
    Error::new(ErrorKind::Unknown, format!("no answer within {limit:?}"))
}

/// Runs an engine call with a limit and a net for panics.
pub(crate) async fn limited<T>(
    limit: Duration,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    match tokio::time::timeout(limit, caught(call)).await {
        Ok(answer) => answer?,
        Err(_) => Err(unanswered(limit)),
    }
}

/// Turns a panic of the engine into an error of this one call.
pub(super) async fn caught<T>(call: impl Future<Output = T>) -> Result<T> {
    AssertUnwindSafe(call).catch_unwind().await.map_err(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        // What it did before is anybody's guess, so the claim is unsure.
        Error::new(ErrorKind::Unexpected, format!("the engine panicked: {text}"))
    })
}
