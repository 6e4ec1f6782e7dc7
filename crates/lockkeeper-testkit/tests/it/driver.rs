//! The driver's rules, each in the situation that taught it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::engine::{Connect, Engine, Event, Events, Seat};
use lockkeeper::layer::faults::{Fault, Faults, Gate, Method};
use lockkeeper::{
    Cause, Clock, ErrorKind, Guard, Keeper, LockOptions, Memory, Result, State, Token,
};
use lockkeeper_testkit::eventually;

/// Lets a test push events of its own, or hold back the engine's.
#[derive(Clone, Debug)]
struct Tap {
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

    fn push(&self, event: Event) {
        self.seat.lock().unwrap().as_ref().unwrap().push(event);
    }

    /// Keeps the engine's pushes from now on.
    fn hold_back(&self) {
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
struct Pair {
    holder: Keeper,
    waiter: Keeper,
    tap: Tap,
    faults: Faults,
}

impl Pair {
    /// On a paused clock.
    async fn simulated() -> Self {
        let memory = Memory::private();
        let clock = Clock::tokio();
        let (tap, faults) = Tap::on(&memory);
        let holder = Keeper::on_this_runtime(memory, clock.clone()).await.unwrap();
        let waiter = Keeper::on_this_runtime(tap.clone(), clock).await.unwrap();
        Pair { holder, waiter, tap, faults }
    }

    async fn hold(&self) -> Guard {
        self.holder.mutex("n").lock().await.unwrap()
    }

    fn wait(&self) -> tokio::task::JoinHandle<Result<Guard>> {
        let mutex = self.waiter.mutex("n");
        tokio::spawn(async move { mutex.lock().await })
    }

    async fn queued(&self) {
        let queued =
            async || self.holder.status("n").await.is_ok_and(|status| status.waiters.len() == 1);
        assert!(eventually(Duration::from_secs(5), queued).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_beat_under_way_does_not_hold_up_a_hand_over() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let waiting = pair.wait();
    pair.queued().await;
    // The next beat is answered "queued", but the answer dawdles.
    let gate = Gate::closed();
    let stall = gate.clone();
    pair.faults
        .plan(move |call| (call.method == Method::Renew).then(|| Fault::StallAfter(stall.clone())));
    gate.reached().await;
    drop(guard);
    let guard = tokio::time::timeout(Duration::from_millis(100), waiting).await;
    let guard = guard.expect("the push is enough").unwrap().unwrap();
    pair.faults.heal();
    gate.open();
    // The old answer says "queued"; the guard knows better.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(guard.state(), State::Held);
    guard.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_overtakes_the_answer_counts() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let gate = Gate::closed();
    let stall = gate.clone();
    pair.faults.plan(move |call| match call.method {
        Method::Acquire => Some(Fault::StallAfter(stall.clone())),
        Method::Renew => Some(Fault::Fail),
        _ => None,
    });
    let waiting = pair.wait();
    gate.reached().await;
    drop(guard);
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.open();
    let guard = tokio::time::timeout(Duration::from_millis(100), waiting).await;
    assert!(guard.expect("the early push counts").unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_for_another_ticket_is_ignored() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let waiting = pair.wait();
    pair.queued().await;
    let claim = pair.holder.status("n").await.unwrap().waiters[0].claim;
    let token = Some(Token::new(99));
    for ticket in [0, 2, 77] {
        pair.tap.push(Event::HandedOver { claim, ticket, token });
    }
    let mut stranger = claim;
    stranger.turn += 1;
    pair.tap.push(Event::HandedOver { claim: stranger, ticket: 1, token });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!waiting.is_finished(), "a forged hand-over was believed");
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_is_valid_from_the_last_answer_and_not_from_its_arrival() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let waiting = pair.wait();
    pair.queued().await;
    // No beat gets through from here on, so the ticket lives two seconds.
    pair.tap.hold_back();
    pair.faults.plan(|call| (call.method == Method::Renew).then_some(Fault::Fail));
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(guard);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let [push] = &pair.tap.kept()[..] else { panic!("{:?}", pair.tap.kept()) };
    assert!(matches!(push, Event::HandedOver { .. }), "{push:?}");
    // Somebody else has it by now.
    let other = pair.holder.mutex("n").try_lock().await.unwrap();
    let other = other.expect("the unconfirmed hand-over has passed on");
    pair.tap.push(push.clone());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished(), "two hold it");
    other.verify().await.unwrap();
    pair.faults.heal();
    drop(other);
    let guard = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    assert!(guard.expect("its turn comes").unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_the_end_revives_nothing() {
    let pair = Pair::simulated().await;
    let lease = Duration::from_secs(3);
    let mutex = pair.waiter.mutex("n").with_options(LockOptions::default().with_lease(lease));
    let guard = mutex.lock().await.unwrap();
    // The engine renews; the answer comes when the guard is over.
    let gate = Gate::closed();
    let stall = gate.clone();
    pair.faults
        .plan(move |call| (call.method == Method::Renew).then(|| Fault::StallAfter(stall.clone())));
    gate.reached().await;
    assert_eq!(guard.lost().await, Cause::Expired);
    gate.open();
    pair.faults.heal();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(guard.state(), State::Lost(Cause::Expired));
    drop(guard);
    let free = async || pair.holder.mutex("n").try_lock().await.unwrap().is_some();
    assert!(eventually(Duration::from_secs(5), free).await);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_took_longer_than_its_lease_is_never_handed_out() {
    let pair = Pair::simulated().await;
    let gate = Gate::closed();
    let stall = gate.clone();
    let first = Mutex::new(true);
    pair.faults.plan(move |call| {
        let first = std::mem::take(&mut *first.lock().unwrap());
        (first && call.method == Method::Acquire).then(|| Fault::StallAfter(stall.clone()))
    });
    let options = LockOptions::default().with_lease(Duration::from_secs(1));
    let mutex = pair.waiter.mutex("n").with_options(options);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    gate.reached().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let other = pair.hold().await;
    gate.open();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished(), "an expired grant was handed out");
    drop(other);
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_cut_connection_is_a_risk_at_once_and_over_with_the_next_answer() {
    let pair = Pair::simulated().await;
    let guard = pair.waiter.mutex("n").lock().await.unwrap();
    pair.tap.push(Event::Link { shard: 0, up: false });
    assert_eq!(guard.at_risk().await, State::AtRisk);
    assert!(guard.is_held());
    let calls = pair.faults.calls();
    pair.tap.push(Event::Link { shard: 0, up: true });
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(pair.faults.calls(), calls + 1, "renewed as soon as the connection is back");
    assert_eq!(guard.state(), State::Held);
}

#[tokio::test(start_paused = true)]
async fn one_renewal_is_under_way_per_shard() {
    let pair = Pair::simulated().await;
    let guard = pair.waiter.mutex("n").lock().await.unwrap();
    let gate = Gate::closed();
    let stall = gate.clone();
    pair.faults
        .plan(move |call| (call.method == Method::Renew).then(|| Fault::StallAfter(stall.clone())));
    let calls = pair.faults.calls();
    tokio::time::sleep(Duration::from_secs(12)).await;
    for _ in 0..5 {
        pair.tap.push(Event::Link { shard: 0, up: true });
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(pair.faults.calls(), calls + 1);
    gate.open();
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_driver_that_dies_leaves_no_guard_in_doubt() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let opened = Keeper::on_this_runtime(Memory::private(), Clock::system());
    let keeper = runtime.spawn(opened).await.unwrap().unwrap();
    let guard = keeper.mutex("n").lock().await.unwrap();
    assert!(guard.is_held());
    // The runtime under the driver is torn down while a guard is out.
    tokio::task::spawn_blocking(move || drop(runtime)).await.unwrap();
    assert_eq!(guard.lost().await, Cause::EngineGone);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(keeper.mutex("n").lock().await.is_err());
}
