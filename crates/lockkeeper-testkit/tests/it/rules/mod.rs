//! The finer rules: each was taken out of the code once, and nothing noticed.

mod faces;
mod holding;
mod waiting;

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::engine::{
    Cell, CellOp, Claim, Connect, Cursor, Engine, EngineInfo, Event, Events, Found, Holder, Intent,
    Keep, Kind, Page, Release, Revoke, Seat, Standing, Status,
};
use lockkeeper::layer::faults::{Fault, Gate, Method};
use lockkeeper::{
    Cause, Clock, ErrorKind, Keeper, LockName, LockOptions, Memory, Moment, Opened, Reentry,
    Released, Result, RunError, State, Token,
};
use lockkeeper_testkit::eventually;
use tokio::time::{Instant, advance, sleep, timeout};

use crate::driver::{Pair, idle};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn lease(millis: u64) -> LockOptions {
    LockOptions::default().with_lease(ms(millis))
}

/// Long enough for everything that happens at once, and for nothing else.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(ms(20), future).await.unwrap_or_else(|_| panic!("{what} did not come at once"))
}

/// Fails every call of a method.
fn fail(pair: &Pair, method: Method) {
    pair.faults.plan(move |call| (call.method == method).then_some(Fault::Fail));
}

/// Takes the name from the waiter's keeper, which does not hear of it.
async fn break_unheard(pair: &Pair, name: &str) {
    pair.faults.hear(|_| false);
    let victim = pair.holder.status(name).await.unwrap().holders.remove(0);
    pair.holder.revoke(name, &victim, Revoke::Now, "unheard").await.unwrap();
}

/// An engine that has no queue, or answers oddly, and writes down releases.
#[derive(Clone, Debug, Default)]
struct Odd(Arc<Ways>);

#[derive(Debug, Default)]
struct Ways {
    memory: Option<Memory>,
    /// Leaves watches instead of places.
    unordered: AtomicBool,
    /// Answers a renewal with one answer too few.
    short: AtomicBool,
    /// Claims that it can do mutexes only, for a lease of ten seconds at least.
    picky: bool,
    /// Never opens.
    shut: bool,
    asked: AtomicU32,
    events: Mutex<Option<Events>>,
    released: Mutex<Vec<Release>>,
}

#[derive(Debug)]
struct OddEngine(Arc<dyn Engine>, Arc<Ways>);

#[async_trait::async_trait]
impl Connect for Odd {
    fn label(&self) -> Arc<str> {
        "odd:".into()
    }

    async fn open(&self, seat: Seat) -> Result<Arc<dyn Engine>> {
        if self.0.shut {
            std::future::pending::<()>().await;
        }
        *self.0.events.lock().unwrap() = Some(seat.events.clone());
        let memory = self.0.memory.clone().unwrap_or_else(Memory::private);
        Ok(Arc::new(OddEngine(memory.open(seat).await?, self.0.clone())))
    }
}

#[async_trait::async_trait]
impl Engine for OddEngine {
    fn info(&self) -> EngineInfo {
        let mut info = self.0.info();
        if self.1.picky {
            (info.kinds, info.min_lease) = (vec![Kind::Mutex], Duration::from_secs(10));
        }
        info
    }

    async fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing> {
        self.1.asked.fetch_add(1, Ordering::SeqCst);
        let unordered = self.1.unordered.load(Ordering::SeqCst) && intent == Intent::Queue;
        let intent = if unordered { Intent::Watch } else { intent };
        self.0.acquire(claim, intent, floor).await
    }

    async fn renew(&self, batch: &[Keep]) -> Vec<Result<Standing>> {
        let mut answers = self.0.renew(batch).await;
        if self.1.short.load(Ordering::SeqCst) {
            answers.pop();
        }
        answers
    }

    async fn release(&self, claim: &Claim, how: Release) -> Result<Found> {
        self.1.released.lock().unwrap().push(how);
        self.0.release(claim, how).await
    }

    async fn revoke(
        &self,
        name: &LockName,
        whom: &Holder,
        how: Revoke,
        why: &str,
    ) -> Result<Found> {
        self.0.revoke(name, whom, how, why).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status> {
        self.0.inspect(name).await
    }

    async fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page> {
        self.0.list(prefix, from, limit).await
    }

    async fn cell(&self, name: &LockName, op: CellOp) -> Result<Cell> {
        self.0.cell(name, op).await
    }

    async fn close(&self, by: Moment) -> Result<()> {
        self.0.close(by).await
    }
}

async fn open(odd: &Odd) -> Keeper {
    Keeper::on_this_runtime(odd.clone(), Clock::tokio()).await.unwrap()
}
