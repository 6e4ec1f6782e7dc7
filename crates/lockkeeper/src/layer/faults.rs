//! An engine that fails on purpose, for testing what happens then.
//!
//! Wrap any engine and decide, call by call, what goes wrong: with it you can
//! test how *your* program takes a lost lock or a silent engine.
//!
//! # Examples
//! ```
//! use lockkeeper::layer::faults::{Fault, Faults, Method};
//! use lockkeeper::{ErrorKind, Keeper, Memory};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let faults = Faults::around(Memory::private());
//! let keeper = Keeper::new(faults.clone()).await?;
//! faults.plan(|call| (call.method == Method::Renew).then_some(Fault::Fail));
//! let guard = keeper.mutex("orders").lock().await?;
//! assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Unreachable);
//! # Ok::<(), lockkeeper::Error>(())
//! # }).unwrap();
//! ```

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::clock::Moment;
use crate::engine::{
    Cell, CellOp, Claim, Connect, Cursor, Engine, EngineInfo, Event, Events, Found, Holder, Intent,
    Keep, Page, Release, Revoke, Seat, Standing, Status,
};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::Token;

/// A method of the seam that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Method {
    Acquire,
    Renew,
    Release,
    Revoke,
    Inspect,
    List,
    Cell,
    Close,
}

impl Method {
    /// Every method.
    pub const ALL: [Method; 8] = [
        Method::Acquire,
        Method::Renew,
        Method::Release,
        Method::Revoke,
        Method::Inspect,
        Method::List,
        Method::Cell,
        Method::Close,
    ];
}

/// One call of the engine, as a plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which method is called.
    pub method: Method,
    /// How many calls there were before, of all methods.
    pub index: u64,
}

/// What goes wrong with a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing is sent: [`ErrorKind::Unreachable`].
    Fail,
    /// The call waits at the gate before it reaches the engine.
    StallBefore(Gate),
    /// The engine does it; the answer waits at the gate.
    StallAfter(Gate),
    /// The engine does it; the answer is lost: [`ErrorKind::Unknown`].
    LoseReply,
    /// The call never answers, and reaches the engine only when the gate
    /// opens, even if its caller has given up by then. For acquires; other
    /// calls stall.
    Late(Gate),
    /// The engine gets it twice; the second answer counts.
    Duplicate,
    /// The engine panics before doing anything.
    PanicBefore,
    /// The engine panics after doing it.
    PanicAfter,
}

/// Holds calls up until it is opened.
#[derive(Clone, Debug)]
pub struct Gate(Arc<watch::Sender<(bool, u64)>>);

impl Default for Gate {
    fn default() -> Self {
        Gate::closed()
    }
}

impl Gate {
    /// A gate that is shut.
    pub fn closed() -> Self {
        Gate(Arc::new(watch::channel((false, 0)).0))
    }

    /// Lets everything through from now on.
    pub fn open(&self) {
        self.0.send_modify(|(open, _)| *open = true);
    }

    /// Waits until somebody stands at the gate, or has passed it.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn reached(&self) {
        let mut state = self.0.subscribe();
        // Fails only if the sender is gone, and we hold it.
        let _ = state.wait_for(|(_, arrivals)| *arrivals > 0).await;
    }

    /// Whether it has been opened.
    pub fn is_open(&self) -> bool {
        self.0.borrow().0
    }

    /// Whether anybody has come to the gate yet.
    pub fn was_reached(&self) -> bool {
        self.0.borrow().1 > 0
    }

    async fn pass(&self) {
        self.0.send_modify(|(_, arrivals)| *arrivals += 1);
        let mut state = self.0.subscribe();
        let _ = state.wait_for(|(open, _)| *open).await;
    }
}

type Plan = dyn Fn(Call) -> Option<Fault> + Send + Sync;
type Hearing = dyn Fn(&Event) -> bool + Send + Sync;

/// Opens engines that fail as planned. Clones share plan and counts.
#[derive(Clone)]
pub struct Faults {
    inner: Arc<dyn Connect>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    plan: Mutex<Option<Arc<Plan>>>,
    hearing: Mutex<Option<Arc<Hearing>>>,
    calls: AtomicU64,
    /// Which calls have been answered, in order.
    answered: watch::Sender<Vec<Method>>,
    /// What the engine said to a late call.
    late: watch::Sender<Option<Standing>>,
}

impl Faults {
    /// Wraps an engine; nothing fails until there is a plan.
    pub fn around(inner: impl Connect) -> Self {
        Faults { inner: Arc::new(inner), state: Arc::default() }
    }

    /// Decides from now on what goes wrong with which call.
    pub fn plan(&self, plan: impl Fn(Call) -> Option<Fault> + Send + Sync + 'static) {
        *self.state.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(plan));
    }

    /// Lets everything succeed again.
    pub fn heal(&self) {
        *self.state.plan.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.state.hearing.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Decides from now on which pushes get through.
    pub fn hear(&self, hearing: impl Fn(&Event) -> bool + Send + Sync + 'static) {
        *self.state.hearing.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Arc::new(hearing));
    }

    /// How many calls there were, of all methods.
    pub fn calls(&self) -> u64 {
        self.state.calls.load(Ordering::Relaxed)
    }

    /// Waits until a call of `method` has been answered.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn answered(&self, method: Method) {
        let mut answered = self.state.answered.subscribe();
        let _ = answered.wait_for(|methods| methods.contains(&method)).await;
    }

    /// Waits for what the engine says to a [late](Fault::Late) acquire.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn late_answer(&self) -> Option<Standing> {
        let mut late = self.state.late.subscribe();
        late.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone())
    }
}

impl State {
    fn fault(&self, method: Method) -> Option<Fault> {
        let index = self.calls.fetch_add(1, Ordering::Relaxed);
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone();
        plan.and_then(|plan| plan(Call { method, index }))
    }

    fn hears(&self, event: &Event) -> bool {
        let hearing = self.hearing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hearing.is_none_or(|hearing| hearing(event))
    }

    /// Sends a call through whatever is planned for it.
    async fn call<T, F: Future<Output = Result<T>>>(
        &self,
        method: Method,
        call: impl Fn() -> F,
    ) -> Result<T> {
        let answer = self.suffer(self.fault(method), call).await;
        self.answered.send_modify(|methods| methods.push(method));
        answer
    }

    async fn suffer<T, F: Future<Output = Result<T>>>(
        &self,
        fault: Option<Fault>,
        call: impl Fn() -> F,
    ) -> Result<T> {
        let planned = |kind, text| Err(Error::new(kind, text));
        match fault {
            None => call().await,
            Some(Fault::Fail) => planned(ErrorKind::Unreachable, "a planned failure"),
            Some(Fault::StallBefore(gate) | Fault::Late(gate)) => {
                gate.pass().await;
                call().await
            }
            Some(Fault::StallAfter(gate)) => {
                let answer = call().await;
                gate.pass().await;
                answer
            }
            Some(Fault::LoseReply) => {
                let _ = call().await;
                planned(ErrorKind::Unknown, "a planned loss of the reply")
            }
            Some(Fault::Duplicate) => {
                let _ = call().await;
                call().await
            }
            Some(Fault::PanicBefore) => panic!("a planned panic"),
            Some(Fault::PanicAfter) => {
                let _ = call().await;
                panic!("a planned panic")
            }
        }
    }
}

#[async_trait]
impl Connect for Faults {
    fn label(&self) -> Arc<str> {
        self.inner.label()
    }

    async fn open(&self, seat: Seat) -> Result<Arc<dyn Engine>> {
        let (events, mut heard) = Events::channel();
        let (outer, state) = (seat.events.clone(), self.state.clone());
        let inner = self.inner.open(Seat { events, ..seat }).await?;
        // Pushes pass by here, so that they can be lost too.
        tokio::spawn(async move {
            while let Some(event) = heard.recv().await {
                if state.hears(&event) && !outer.push(event) {
                    return;
                }
            }
        });
        Ok(Arc::new(FaultyEngine { inner, state: self.state.clone() }))
    }
}

struct FaultyEngine {
    inner: Arc<dyn Engine>,
    state: Arc<State>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for FaultyEngine {
    fn info(&self) -> EngineInfo {
        self.inner.info()
    }

    async fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing> {
        let fault = self.state.fault(Method::Acquire);
        if let Some(Fault::Late(gate)) = fault {
            let (inner, state, claim) = (self.inner.clone(), self.state.clone(), claim.clone());
            tokio::spawn(async move {
                gate.pass().await;
                if let Ok(standing) = inner.acquire(&claim, intent, floor).await {
                    state.late.send_replace(Some(standing));
                }
            });
            return std::future::pending().await;
        }
        let answer = self.state.suffer(fault, || self.inner.acquire(claim, intent, floor)).await;
        self.state.answered.send_modify(|methods| methods.push(Method::Acquire));
        answer
    }

    async fn renew(&self, batch: &[Keep]) -> Vec<Result<Standing>> {
        let call = || async { Ok(self.inner.renew(batch).await) };
        match self.state.call(Method::Renew, call).await {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); batch.len()],
        }
    }

    async fn release(&self, claim: &Claim, how: Release) -> Result<Found> {
        self.state.call(Method::Release, || self.inner.release(claim, how)).await
    }

    async fn revoke(
        &self,
        name: &LockName,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Result<Found> {
        let call = || self.inner.revoke(name, victim, how, reason);
        self.state.call(Method::Revoke, call).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status> {
        self.state.call(Method::Inspect, || self.inner.inspect(name)).await
    }

    async fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page> {
        self.state.call(Method::List, || self.inner.list(prefix, from.clone(), limit)).await
    }

    async fn cell(&self, name: &LockName, op: CellOp) -> Result<Cell> {
        self.state.call(Method::Cell, || self.inner.cell(name, op.clone())).await
    }

    async fn close(&self, by: Moment) -> Result<()> {
        self.state.call(Method::Close, || self.inner.close(by)).await
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faults around {:?}", self.inner)
    }
}

impl fmt::Debug for FaultyEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faults around {:?}", self.inner)
    }
}
