//! The driver's rules, each in the situation that taught it.

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

    pub(crate) async fn queued(&self) {
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

/// Lets each renewal take this long to be answered.
fn slow_renewals(faults: &Faults, span: Duration) {
    faults.plan(move |call| {
        (call.method == Method::Renew).then(|| {
            let gate = Gate::closed();
            let open = gate.clone();
            tokio::spawn(async move {
                tokio::time::sleep(span).await;
                open.open();
            });
            Fault::StallAfter(gate)
        })
    });
}

/// Waits until the driver has nothing in hand, and names what it still has.
pub(crate) async fn idle(keeper: &Keeper) {
    let idle = async || keeper.footprint().await.unwrap().is_empty();
    if !eventually(Duration::from_secs(5), idle).await {
        panic!("left in the driver: {:?}", keeper.footprint().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_acquisition_leaves_nothing_in_the_driver() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let error = pair.waiter.rwlock("n").read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    idle(&pair.waiter).await;
    drop(guard);
    idle(&pair.holder).await;
    // A panic is no refusal: the engine may have granted before it.
    pair.faults.plan(|call| (call.method == Method::Acquire).then_some(Fault::PanicAfter));
    let error = pair.waiter.mutex("p").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    pair.faults.heal();
    idle(&pair.waiter).await;
    let free = pair.holder.mutex("p").try_lock().await.unwrap();
    assert!(free.is_some(), "left to its lease");
    let start = tokio::time::Instant::now();
    pair.waiter.close().await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(100), "closing took {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn verify_ends_even_if_the_guard_is_the_first_to_see_its_end() {
    let pair = Pair::simulated().await;
    let lease = Duration::from_secs(3);
    let mutex = pair.waiter.mutex("n").with_options(LockOptions::default().with_lease(lease));
    let guard = Arc::new(mutex.lock().await.unwrap());
    let gate = Gate::closed();
    let stall = gate.clone();
    pair.faults
        .plan(move |call| (call.method == Method::Renew).then(|| Fault::StallAfter(stall.clone())));
    gate.reached().await;
    // Behind a renewal that hangs, so it is not sent yet.
    let asked = guard.clone();
    let verify = tokio::spawn(async move { asked.verify().await });
    tokio::time::sleep(Duration::from_millis(10)).await;
    // The machine sleeps, and the guard's user is the first to look.
    tokio::time::advance(lease).await;
    assert!(!guard.is_held());
    let verified = tokio::time::timeout(Duration::from_secs(20), verify).await;
    let error = verified.expect("verify hangs").unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_nudge_that_overtakes_the_answer_counts() {
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let gate = Gate::closed();
    let stall = gate.clone();
    pair.faults.plan(move |call| {
        (call.method == Method::Acquire).then(|| Fault::StallAfter(stall.clone()))
    });
    let _waiting = pair.wait();
    gate.reached().await;
    let claim = pair.holder.status("n").await.unwrap().waiters[0].claim;
    pair.tap.push(Event::Nudge(claim));
    tokio::time::sleep(Duration::from_millis(10)).await;
    let calls = pair.faults.calls();
    gate.open();
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(pair.faults.calls(), calls + 1, "the nudge was forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_nudge_during_a_beat_is_followed_by_another_beat() {
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let _waiting = pair.wait();
    pair.queued().await;
    let gate = Gate::closed();
    let stall = gate.clone();
    pair.faults
        .plan(move |call| (call.method == Method::Renew).then(|| Fault::StallAfter(stall.clone())));
    gate.reached().await;
    // The engine had answered before; what it nudges for is news.
    let claim = pair.holder.status("n").await.unwrap().waiters[0].claim;
    pair.tap.push(Event::Nudge(claim));
    tokio::time::sleep(Duration::from_millis(10)).await;
    let calls = pair.faults.calls();
    gate.open();
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(pair.faults.calls(), calls + 1, "the nudge was forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_nudge_brings_the_next_beat_forward() {
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let _waiting = pair.wait();
    pair.queued().await;
    let claim = pair.holder.status("n").await.unwrap().waiters[0].claim;
    let calls = pair.faults.calls();
    pair.tap.push(Event::Nudge(claim));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(pair.faults.calls(), calls + 1);
}

#[tokio::test(start_paused = true)]
async fn a_break_that_overtakes_the_grant_is_heard() {
    let pair = Pair::simulated().await;
    let gate = Gate::closed();
    let stall = gate.clone();
    pair.faults.plan(move |call| {
        (call.method == Method::Acquire).then(|| Fault::StallAfter(stall.clone()))
    });
    let waiting = pair.wait();
    gate.reached().await;
    let victim = pair.holder.status("n").await.unwrap().holders.remove(0);
    pair.holder.revoke("n", &victim, Revoke::Now, "too early").await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    gate.open();
    let guard = waiting.await.unwrap().unwrap();
    let cause = tokio::time::timeout(Duration::from_millis(100), guard.lost()).await;
    let cause = cause.expect("learned only with a later renewal");
    assert!(matches!(cause, Cause::Broken { .. }), "{cause:?}");
}

#[tokio::test(start_paused = true)]
async fn a_try_ends_although_its_first_grant_came_too_late() {
    let pair = Pair::simulated().await;
    let gate = Gate::closed();
    let (stall, first) = (gate.clone(), Mutex::new(true));
    pair.faults.plan(move |_| {
        let first = std::mem::take(&mut *first.lock().unwrap());
        Some(if first { Fault::StallAfter(stall.clone()) } else { Fault::Fail })
    });
    let options = LockOptions::default().with_lease(Duration::from_secs(1));
    let mutex = pair.waiter.mutex("n").with_options(options);
    let tried = tokio::spawn(async move { mutex.try_lock().await });
    gate.reached().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    gate.open();
    // From here on the engine is silent.
    let tried = tokio::time::timeout(Duration::from_secs(30), tried).await;
    let error = tried.expect("tries for ever").unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_engine_is_slow_and_not_silent() {
    let pair = Pair::simulated().await;
    let other = pair.hold().await;
    let guard = pair.waiter.mutex("mine").lock().await.unwrap();
    let waiting = pair.wait();
    pair.queued().await;
    // Longer than a beat may take at first, and far shorter than a lease.
    slow_renewals(&pair.faults, Duration::from_millis(1200));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(guard.is_held(), "the beats of a waiter cost the guard: {:?}", guard.state());
    drop(other);
    let guard = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    assert!(guard.expect("its turn comes").unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_latch_is_waited_for_no_longer_than_asked() {
    let pair = Pair::simulated().await;
    let gate = Gate::closed();
    pair.faults.plan(move |_| Some(Fault::StallBefore(gate.clone())));
    let start = tokio::time::Instant::now();
    let options = LockOptions::default().with_wait(Duration::from_millis(300));
    let error = pair.waiter.latch("l").with_options(options).wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
    // Without a limit of its own it ends like every other first question.
    let start = tokio::time::Instant::now();
    let error = pair.waiter.latch("l").wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_never_sent_is_unreachable_and_not_unknown() {
    let pair = Pair::simulated().await;
    pair.faults.plan(|_| Some(Fault::Fail));
    let start = tokio::time::Instant::now();
    let error = pair.waiter.status("n").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(start.elapsed() <= Duration::from_secs(5), "{:?}", start.elapsed());
    // One that may have been done stays unknown, whatever came after.
    let first = Mutex::new(true);
    pair.faults.plan(move |_| {
        let first = std::mem::take(&mut *first.lock().unwrap());
        Some(if first { Fault::LoseReply } else { Fault::Fail })
    });
    let error = pair.waiter.latch("l").set(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
}

#[tokio::test(start_paused = true)]
async fn work_that_is_dropped_gives_its_lock_back_though_its_scope_lives_on() {
    let pair = Pair::simulated().await;
    let kept = Arc::new(Mutex::new(None));
    let keep = kept.clone();
    let mutex = pair.waiter.mutex("n");
    let work = tokio::spawn(async move {
        let work = mutex.run(|scope| async move {
            *keep.lock().unwrap() = Some(scope);
            std::future::pending::<Result<(), String>>().await
        });
        work.await
    });
    let at_work = async || kept.lock().unwrap().is_some();
    assert!(eventually(Duration::from_secs(5), at_work).await);
    work.abort();
    let free = async || pair.holder.mutex("n").try_lock().await.unwrap().is_some();
    assert!(eventually(Duration::from_secs(5), free).await, "held by a scope without work");
    assert!(!kept.lock().unwrap().as_ref().unwrap().is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_drop_waits_for_a_withdrawn_acquisition() {
    let memory = Memory::private();
    let faults = Faults::around(memory.clone());
    let keeper = Keeper::new(faults.clone()).await.unwrap();
    let bystander = Keeper::new(memory).await.unwrap();
    let gate = Gate::closed();
    let stall = gate.clone();
    faults.plan(move |call| {
        (call.method == Method::Acquire).then(|| Fault::StallAfter(stall.clone()))
    });
    let mutex = keeper.mutex("n");
    let lock = tokio::spawn(async move { mutex.lock().await.map(drop) });
    gate.reached().await;
    lock.abort();
    let _ = lock.await;
    // The answer comes while the program is about to end.
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        gate.open();
    });
    tokio::task::spawn_blocking(move || drop(keeper)).await.unwrap();
    assert!(bystander.status("n").await.unwrap().holders.is_empty(), "left to its lease");
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_learns_that_its_keeper_closed() {
    let pair = Pair::simulated().await;
    let latch = pair.waiter.latch("l");
    let waiting = tokio::spawn(async move { latch.wait().await });
    pair.faults.answered(Method::Cell).await;
    pair.waiter.close().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// How long something takes for many claims of one keeper on one name.
async fn crowd<F, T>(name: &str, count: usize, pair: &Pair, ask: impl Fn() -> F) -> Duration
where
    F: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let start = std::time::Instant::now();
    let tasks: Vec<_> = (0..count).map(|_| tokio::spawn(ask())).collect();
    tokio::task::yield_now().await;
    // A few beats of everyone who waits.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(tasks.iter().all(|task| !task.is_finished()), "{name}: did not wait");
    pair.tap.push(Event::Link { shard: 0, up: true });
    pair.holder.close().await.unwrap();
    for task in tasks {
        drop(task.await.unwrap().unwrap());
    }
    idle(&pair.waiter).await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_local_claims_take_no_seconds() {
    const MANY: usize = 10_000;
    let options = LockOptions::default().with_max_waiters(100_000);
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let mutex = pair.waiter.mutex("n").with_options(options.clone());
    let waiters = crowd("waiters", MANY, &pair, || {
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    let waiters = waiters.await;

    let pair = Pair::simulated().await;
    let _guard = pair.holder.rwlock("n").write().await.unwrap();
    let lock = pair.waiter.rwlock("n").with_options(options.clone());
    let readers = crowd("readers", MANY, &pair, || {
        let lock = lock.clone();
        async move { lock.read().await }
    });
    let readers = readers.await;

    let pair = Pair::simulated().await;
    let capacity = MANY as u32;
    let _all = pair.holder.semaphore("n", capacity).acquire_many(capacity).await.unwrap();
    let semaphore = pair.waiter.semaphore("n", capacity).with_options(options);
    let permits = crowd("permits", MANY, &pair, || {
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await }
    });
    let permits = permits.await;
    println!("{MANY} waiters {waiters:?}, readers {readers:?}, permits {permits:?}");
    for took in [waiters, readers, permits] {
        assert!(took < Duration::from_secs(4), "{waiters:?} {readers:?} {permits:?}");
    }
}
