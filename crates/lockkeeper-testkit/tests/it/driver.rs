//! The driver's rules, each in the situation that taught it.

mod answers;
mod ends;
mod pushes;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::engine::{Connect, Engine, Event, Events, Revoke, Seat};
use lockkeeper::layer::faults::{Fault, Faults, Gate, Method};
use lockkeeper::{
    Cause, Clock, ErrorKind, Guard, Keeper, LockOptions, Memory, Result, State, Token,
};
use lockkeeper_testkit::eventually;

/// Lets a test push events of its own, or hold back the engine's.
#[derive(Clone, Debug)]
pub(crate) struct Tap {
    inner: Faults,
    seat: Arc<Mutex<Option<Events>>>,
    held_back: Arc<Mutex<Option<Vec<Event>>>>,
}

impl Tap {
    fn on(memory: &Memory) -> (Tap, Faults) {
        let inner = Faults::around(memory.clone());
        let tap = Tap { inner: inner.clone(), seat: Arc::default(), held_back: Arc::default() };
        (tap, inner)
    }

    pub(crate) fn push(&self, event: Event) {
        self.seat.lock().unwrap().as_ref().unwrap().push(event);
    }

    /// Keeps the engine's pushes from now on.
    pub(crate) fn hold_back(&self) {
        *self.held_back.lock().unwrap() = Some(Vec::new());
        let kept = self.held_back.clone();
        self.inner.hear(move |event| {
            if let Some(kept) = &mut *kept.lock().unwrap() {
                kept.push(event.clone());
            }
            false
        });
    }

    fn kept(&self) -> Vec<Event> {
        self.held_back.lock().unwrap().clone().unwrap_or_default()
    }
}

#[async_trait::async_trait]
impl Connect for Tap {
    fn label(&self) -> Arc<str> {
        self.inner.label()
    }

    async fn open(&self, seat: Seat) -> Result<Arc<dyn Engine>> {
        *self.seat.lock().unwrap() = Some(seat.events.clone());
        self.inner.open(seat).await
    }
}

/// A holder, a waiter with taps on its engine, and the name between them.
pub(crate) struct Pair {
    pub(crate) holder: Keeper,
    pub(crate) waiter: Keeper,
    pub(crate) tap: Tap,
    pub(crate) faults: Faults,
}

impl Pair {
    /// On a paused clock.
    pub(crate) async fn simulated() -> Self {
        let memory = Memory::private();
        let clock = Clock::tokio();
        let (tap, faults) = Tap::on(&memory);
        let holder = Keeper::on_this_runtime(memory, clock.clone()).await.unwrap();
        let waiter = Keeper::on_this_runtime(tap.clone(), clock).await.unwrap();
        Pair { holder, waiter, tap, faults }
    }

    pub(crate) async fn hold(&self) -> Guard {
        self.holder.mutex("n").lock().await.unwrap()
    }

    pub(crate) fn wait(&self) -> tokio::task::JoinHandle<Result<Guard>> {
        let mutex = self.waiter.mutex("n");
        tokio::spawn(async move { mutex.lock().await })
    }

    /// Stalls the waiter's answers to a method.
    pub(crate) fn stall(&self, method: Method) -> Gate {
        stall(&self.faults, method)
    }

    /// Pushes the waiter a nudge at a time when an answer waits at the gate,
    /// and checks that it asks again as soon as that answer is there.
    async fn is_nudged_past(&self, gate: &Gate) {
        gate.reached().await;
        let claim = self.holder.status("n").await.unwrap().waiters[0].claim;
        self.tap.push(Event::Nudge(claim));
        tokio::time::sleep(Duration::from_millis(10)).await;
        let calls = self.faults.calls();
        gate.open();
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(self.faults.calls(), calls + 1, "the nudge was forgotten");
    }

    pub(crate) async fn queued(&self) {
        let queued =
            async || self.holder.status("n").await.is_ok_and(|status| status.waiters.len() == 1);
        assert!(eventually(Duration::from_secs(5), queued).await);
    }
}

/// Stalls the answers to a method.
pub(crate) fn stall(faults: &Faults, method: Method) -> Gate {
    let gate = Gate::closed();
    let stalled = gate.clone();
    faults.plan(move |call| (call.method == method).then(|| Fault::StallAfter(stalled.clone())));
    gate
}

/// Waits until the driver has nothing in hand, and names what it still has.
pub(crate) async fn idle(keeper: &Keeper) {
    let idle = async || keeper.footprint().await.unwrap().is_empty();
    if !eventually(Duration::from_secs(5), idle).await {
        panic!("left in the driver: {:?}", keeper.footprint().await);
    }
}
