//! The finer rules: each was taken out of the code once, and nothing noticed.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::engine::{
    Cell, CellOp, Claim, Connect, Cursor, Engine, EngineInfo, Event, Found, Holder, Intent, Keep,
    Kind, Page, Release, Revoke, Seat, Standing, Status,
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

/// Stalls the answers of a method.
fn stall(pair: &Pair, method: Method) -> Gate {
    let gate = Gate::closed();
    let stall = gate.clone();
    pair.faults.plan(move |call| (call.method == method).then(|| Fault::StallAfter(stall.clone())));
    gate
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

// --- lost ---------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn validity_counts_from_before_the_question() {
    let pair = Pair::simulated().await;
    let span = Duration::from_secs(2);
    let gate = stall(&pair, Method::Acquire);
    let mutex = pair.waiter.mutex("n").with_options(lease(30_000));
    let lock = tokio::spawn(async move { mutex.lock().await });
    gate.reached().await;
    sleep(span).await;
    gate.open();
    let guard = lock.await.unwrap().unwrap();
    let most = ms(30_000) - LockOptions::default().effective_margin() - span;
    assert!(guard.valid_for() <= most, "{:?} after a slow grant", guard.valid_for());
    let gate = stall(&pair, Method::Renew);
    gate.reached().await;
    sleep(span).await;
    gate.open();
    sleep(ms(1)).await;
    assert!(guard.valid_for() <= most, "{:?} after a slow renewal", guard.valid_for());
    assert!(guard.valid_for() >= most - ms(50));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_read_after_the_end_revives_nothing() {
    let pair = Pair::simulated().await;
    let guard = pair.waiter.mutex("n").with_options(lease(3000)).lock().await.unwrap();
    let gate = stall(&pair, Method::Renew);
    gate.reached().await;
    // It arrives in time, but the machine sleeps before anybody reads it; the
    // lease it brings would last beyond that.
    gate.open();
    advance(ms(2200)).await;
    sleep(ms(1)).await;
    assert_eq!(guard.state(), State::Lost(Cause::Expired));
}

#[tokio::test(start_paused = true)]
async fn a_handed_over_guard_ends_before_its_ticket() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let waiting = pair.wait();
    pair.queued().await;
    fail(&pair, Method::Renew);
    sleep(ms(300)).await;
    drop(guard);
    let guard = soon("the push", waiting).await.unwrap().unwrap();
    let margin = LockOptions::default().effective_margin();
    let most = Duration::from_secs(2) - margin - ms(290);
    assert!(guard.valid_for() <= most, "{:?}", guard.valid_for());
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_with_little_left_is_confirmed_first() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let waiting = pair.wait();
    pair.queued().await;
    fail(&pair, Method::Renew);
    sleep(ms(1500)).await;
    drop(guard);
    sleep(ms(50)).await;
    assert!(!waiting.is_finished(), "a guard that is lost as soon as it is given");
    pair.faults.heal();
    let guard = timeout(ms(1500), waiting).await.expect("its turn").unwrap().unwrap();
    assert!(guard.valid_for() > ms(29_000));
}

#[tokio::test(start_paused = true)]
async fn every_risk_is_told() {
    let pair = Pair::simulated().await;
    let guard = pair.waiter.mutex("n").with_options(lease(10_000)).lock().await.unwrap();
    for _ in 0..3 {
        fail(&pair, Method::Renew);
        assert_eq!(timeout(ms(6000), guard.at_risk()).await.expect("told"), State::AtRisk);
        pair.faults.heal();
        let held = async || guard.state() == State::Held;
        assert!(eventually(Duration::from_secs(5), held).await);
    }
}

#[tokio::test(start_paused = true)]
async fn another_connection_is_no_risk() {
    let pair = Pair::simulated().await;
    let guard = pair.waiter.mutex("n").lock().await.unwrap();
    pair.tap.push(Event::Link { shard: 7, up: false });
    sleep(ms(10)).await;
    assert_eq!(guard.state(), State::Held);
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_renewed_no_more() {
    let pair = Pair::simulated().await;
    let guard = pair.waiter.mutex("n").with_options(lease(3000)).lock().await.unwrap();
    fail(&pair, Method::Renew);
    let _ = guard.lost().await;
    pair.faults.heal();
    let calls = pair.faults.calls();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(pair.faults.calls(), calls, "kept the name from others after the loss");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_is_repeated_while_there_is_time() {
    let pair = Pair::simulated().await;
    let guard = pair.waiter.mutex("n").with_options(lease(6000)).lock().await.unwrap();
    let (gate, first) = (Gate::closed(), AtomicBool::new(true));
    pair.faults.plan(move |call| {
        let hang = call.method == Method::Renew && first.swap(false, Ordering::SeqCst);
        hang.then(|| Fault::StallBefore(gate.clone()))
    });
    sleep(Duration::from_secs(20)).await;
    assert!(guard.is_held(), "{:?}", guard.state());
}

#[tokio::test(start_paused = true)]
async fn a_beat_that_hangs_is_repeated_while_the_place_lives() {
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let _waiting = pair.wait();
    pair.queued().await;
    let (gate, first) = (Gate::closed(), AtomicBool::new(true));
    pair.faults.plan(move |call| {
        let hang = call.method == Method::Renew && first.swap(false, Ordering::SeqCst);
        hang.then(|| Fault::StallBefore(gate.clone()))
    });
    sleep(Duration::from_secs(4)).await;
    let waiters = pair.holder.status("n").await.unwrap().waiters;
    assert_eq!(waiters[0].claim.turn, 0, "the place was lost");
}

#[tokio::test(start_paused = true)]
async fn one_renewal_is_under_way_whoever_is_due() {
    let pair = Pair::simulated().await;
    let _one = pair.waiter.mutex("one").lock().await.unwrap();
    sleep(Duration::from_secs(2)).await;
    let _two = pair.waiter.mutex("two").lock().await.unwrap();
    let gate = stall(&pair, Method::Renew);
    gate.reached().await;
    let calls = pair.faults.calls();
    sleep(ms(2500)).await;
    assert_eq!(pair.faults.calls(), calls, "a second renewal went out beside the first");
    gate.open();
}

#[tokio::test(start_paused = true)]
async fn verify_is_not_answered_by_a_renewal_that_had_left() {
    let pair = Pair::simulated().await;
    let guard = Arc::new(pair.waiter.mutex("n").lock().await.unwrap());
    let gate = stall(&pair, Method::Renew);
    gate.reached().await;
    break_unheard(&pair, "n").await;
    let asked = guard.clone();
    let verify = tokio::spawn(async move { asked.verify().await });
    sleep(ms(10)).await;
    gate.open();
    let error = soon("the answer", verify).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_nothing_says_so() {
    let pair = Pair::simulated().await;
    let guard = pair.waiter.mutex("n").lock().await.unwrap();
    break_unheard(&pair, "n").await;
    assert!(matches!(guard.release().await.unwrap(), Released::AlreadyLost(_)));
    // The same under a closure: work that overlapped must not pass for done.
    let mutex = pair.waiter.mutex("n");
    let work = mutex.run(|_| async {
        break_unheard(&pair, "n").await;
        Ok::<_, String>(7)
    });
    let error = work.await.unwrap_err();
    assert!(matches!(error, RunError::Lost { output: Some(Ok(7)), .. }), "{error:?}");
    // And stepping down from what was taken away.
    let write = pair.waiter.rwlock("rw").write().await.unwrap();
    let gate = stall(&pair, Method::Acquire);
    let down = tokio::spawn(write.downgrade());
    gate.reached().await;
    pair.faults.hear(|_| false);
    let holders = pair.holder.status("rw").await.unwrap().holders;
    let victim = holders.iter().find(|holder| holder.mode.is_exclusive()).unwrap();
    pair.holder.revoke("rw", victim, Revoke::Now, "unheard").await.unwrap();
    gate.open();
    assert_eq!(down.await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_failed_after_the_loss_is_a_loss() {
    let keeper = Keeper::new(Memory::private()).await.unwrap();
    let options = LockOptions::default().with_max_hold(ms(50));
    let mutex = keeper.mutex("n").with_options(options);
    let work = mutex.run(|scope| async move {
        while scope.is_held() {
            std::thread::sleep(ms(5));
        }
        Err::<(), _>("mine")
    });
    let error = work.await.unwrap_err();
    assert!(matches!(error, RunError::Lost { output: Some(Err("mine")), .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_answers_too_little_is_asked_again() {
    let odd = Odd::default();
    let keeper = open(&odd).await;
    let (one, two) = (keeper.mutex("1").lock().await.unwrap(), keeper.mutex("2").lock().await);
    odd.0.short.store(true, Ordering::SeqCst);
    sleep(Duration::from_secs(12)).await;
    odd.0.short.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(60)).await;
    assert!(one.is_held() && two.unwrap().is_held());
}

// --- order --------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_try_behind_a_local_waiter_is_refused_at_once() {
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let gate = stall(&pair, Method::Acquire);
    let _waiting = pair.wait();
    gate.reached().await;
    // It came while nobody knew yet whether there is anything to wait for.
    let mutex = pair.waiter.mutex("n");
    let early = tokio::spawn(async move { mutex.try_lock().await });
    sleep(ms(10)).await;
    gate.open();
    assert!(soon("the refusal", early).await.unwrap().unwrap().is_none());
    let calls = pair.faults.calls();
    let late = pair.waiter.mutex("n");
    assert!(soon("the refusal", late.try_lock()).await.unwrap().is_none());
    assert_eq!(pair.faults.calls(), calls, "asked the engine");
}

#[tokio::test(start_paused = true)]
async fn a_run_of_readers_contends_together_and_mutexes_one_by_one() {
    let pair = Pair::simulated().await;
    let _write = pair.holder.rwlock("rw").write().await.unwrap();
    let _guard = pair.hold().await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        let (lock, mutex) = (pair.waiter.rwlock("rw"), pair.waiter.mutex("n"));
        tasks.push(tokio::spawn(async move { lock.read().await.map(drop) }));
        tasks.push(tokio::spawn(async move { mutex.lock().await.map(drop) }));
    }
    sleep(ms(10)).await;
    assert_eq!(pair.holder.status("rw").await.unwrap().waiters.len(), 5);
    assert_eq!(pair.holder.status("n").await.unwrap().waiters.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_next_moves_up_when_the_head_of_a_local_queue_gives_up() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let impatient = LockOptions::default().with_wait(ms(200));
    let mutex = pair.waiter.mutex("n").with_options(impatient);
    let head = tokio::spawn(async move { mutex.lock().await });
    sleep(ms(10)).await;
    let next = pair.wait();
    assert_eq!(head.await.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    sleep(ms(10)).await;
    drop(guard);
    assert!(soon("its turn", next).await.unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_gone_is_queued_for_by_a_new_claim() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let waiting = pair.wait();
    pair.queued().await;
    fail(&pair, Method::Renew);
    sleep(Duration::from_secs(3)).await;
    pair.faults.heal();
    pair.queued().await;
    assert_eq!(pair.holder.status("n").await.unwrap().waiters[0].claim.turn, 1);
    drop(guard);
    assert!(soon("its turn", waiting).await.unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn an_old_beat_says_nothing_about_a_new_claim() {
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let _waiting = pair.wait();
    pair.queued().await;
    let gate = stall(&pair, Method::Renew);
    gate.reached().await;
    let claim = pair.holder.status("n").await.unwrap().waiters[0].claim;
    pair.tap.push(Event::Is(claim, Standing::Gone(Cause::Expired)));
    sleep(ms(10)).await;
    gate.open();
    pair.faults.heal();
    sleep(Duration::from_secs(5)).await;
    let waiters = pair.holder.status("n").await.unwrap().waiters;
    assert_eq!((waiters.len(), waiters[0].claim.turn), (1, 1), "{waiters:?}");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_can_never_be_served_is_told_at_once() {
    let pair = Pair::simulated().await;
    let mut semaphore = pair.holder.semaphore("s", 3);
    let _permit = semaphore.acquire().await.unwrap();
    let large = pair.waiter.semaphore("s", 3);
    let large = tokio::spawn(async move { large.acquire_many(3).await });
    sleep(ms(10)).await;
    semaphore.set_capacity(2).await.unwrap();
    let error = soon("the refusal", large).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_a_queue_is_asked_again_when_it_nudges() {
    let memory = Memory::private();
    let odd = Odd(Arc::new(Ways { memory: Some(memory.clone()), ..Ways::default() }));
    odd.0.unordered.store(true, Ordering::SeqCst);
    let clock = Clock::tokio();
    let holder = Keeper::on_this_runtime(memory, clock.clone()).await.unwrap();
    let faults = lockkeeper::layer::faults::Faults::around(odd.clone());
    let waiter = Keeper::on_this_runtime(faults.clone(), clock).await.unwrap();
    let wait = || {
        let mutex = waiter.mutex("n");
        tokio::spawn(async move { mutex.lock().await })
    };
    // Nudged while it waits.
    let guard = holder.mutex("n").lock().await.unwrap();
    let waiting = wait();
    sleep(ms(10)).await;
    drop(guard);
    drop(soon("the nudge", waiting).await.unwrap().unwrap());
    sleep(ms(10)).await;
    // Nudged before the answer "busy" is there.
    let guard = holder.mutex("n").lock().await.unwrap();
    let (gate, first) = (Gate::closed(), AtomicBool::new(true));
    let stall = gate.clone();
    faults.plan(move |call| {
        let first = call.method == Method::Acquire && first.swap(false, Ordering::SeqCst);
        first.then(|| Fault::StallAfter(stall.clone()))
    });
    let waiting = wait();
    gate.reached().await;
    drop(guard);
    sleep(ms(10)).await;
    gate.open();
    drop(soon("the early nudge", waiting).await.unwrap().unwrap());
    sleep(ms(10)).await;
    // Not nudged at all: asked again after a while.
    faults.hear(|_| false);
    let guard = holder.mutex("n").lock().await.unwrap();
    let waiting = wait();
    sleep(ms(10)).await;
    drop(guard);
    let guard = timeout(Duration::from_secs(2), waiting).await.expect("a re-poll");
    assert!(guard.unwrap().unwrap().is_held());
}

// --- deadline -----------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_local_waiter_knows_that_the_engine_answers_those_ahead() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let (head, next) = (pair.wait(), pair.wait());
    sleep(ms(14_900)).await;
    assert!(!head.is_finished() && !next.is_finished());
    drop(guard);
    // When its turn comes it has the whole limit for its first answer.
    let gate = stall(&pair, Method::Acquire);
    drop(soon("the head", head).await.unwrap().unwrap());
    gate.reached().await;
    sleep(ms(1000)).await;
    gate.open();
    assert!(soon("the next", next).await.unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn the_limits_of_local_waiters_do_not_add_up() {
    let pair = Pair::simulated().await;
    pair.faults.plan(|_| Some(Fault::Fail));
    let start = Instant::now();
    let impatient = LockOptions::default().with_wait(Duration::from_secs(3));
    let mutex = pair.waiter.mutex("n").with_options(impatient);
    let head = tokio::spawn(async move { mutex.lock().await });
    sleep(ms(10)).await;
    let next = pair.wait();
    for lock in [head, next] {
        assert_eq!(lock.await.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
    }
    assert!(start.elapsed() < ms(5100), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn no_patience_still_waits_for_the_one_answer() {
    let pair = Pair::simulated().await;
    let gate = stall(&pair, Method::Acquire);
    let mutex = pair.waiter.mutex("n").with_options(LockOptions::default().with_wait(ms(0)));
    let lock = tokio::spawn(async move { mutex.lock().await });
    gate.reached().await;
    sleep(ms(100)).await;
    gate.open();
    assert!(soon("the answer", lock).await.unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_never_opens_is_unreachable() {
    let odd = Odd(Arc::new(Ways { shut: true, ..Ways::default() }));
    let start = Instant::now();
    let error = Keeper::on_this_runtime(odd, Clock::tokio()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(start.elapsed() < ms(5100), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_shared_re_entry_waits_no_longer_than_asked() {
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let me = Reentry::new();
    let (mutex, first) = (pair.waiter.mutex("n"), me.clone());
    let _first = tokio::spawn(async move { mutex.lock_as(&first).await });
    sleep(ms(10)).await;
    let start = Instant::now();
    let options = LockOptions::default().with_wait(ms(200));
    let second = pair.waiter.mutex("n").with_options(options);
    let second = timeout(ms(300), second.lock_as(&me)).await.expect("in time");
    assert_eq!(second.unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(start.elapsed() >= ms(200));
}

// --- idempotent, refusal ------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_claim_with_an_unanswered_request_is_released_as_unsure() {
    let memory = Memory::private();
    let odd = Odd(Arc::new(Ways { memory: Some(memory.clone()), ..Ways::default() }));
    let clock = Clock::tokio();
    let holder = Keeper::on_this_runtime(memory, clock.clone()).await.unwrap();
    let faults = lockkeeper::layer::faults::Faults::around(odd.clone());
    let keeper = Keeper::on_this_runtime(faults.clone(), clock).await.unwrap();
    let lose_first = || {
        let first = AtomicBool::new(true);
        faults.plan(move |call| {
            let first = call.method == Method::Acquire && first.swap(false, Ordering::SeqCst);
            first.then_some(Fault::LoseReply)
        });
    };
    let unsure = async |what: &str| {
        idle(&keeper).await;
        let released = std::mem::take(&mut *odd.0.released.lock().unwrap());
        assert!(released.iter().any(|how| how.unsure), "{what}: {released:?}");
    };
    // A try whose first answer was lost, and whose second is "busy".
    let guard = holder.mutex("n").lock().await.unwrap();
    lose_first();
    assert!(keeper.mutex("n").try_lock().await.unwrap().is_none());
    unsure("a try").await;
    // A waiter whose first answer was lost, and whose place is then gone.
    lose_first();
    let mutex = keeper.mutex("n");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(ms(500)).await;
    faults.plan(|call| (call.method == Method::Renew).then_some(Fault::Fail));
    sleep(Duration::from_secs(3)).await;
    faults.heal();
    sleep(Duration::from_secs(2)).await;
    let released = odd.0.released.lock().unwrap().clone();
    assert!(released.iter().any(|how| how.unsure), "the old claim: {released:?}");
    drop(guard);
    drop(waiting.await.unwrap().unwrap());
    unsure("the end of it").await;
    // A grant that was lost and found again.
    lose_first();
    drop(keeper.mutex("n").lock().await.unwrap());
    unsure("a grant").await;
    // A grant that came too late.
    let (gate, first) = (Gate::closed(), AtomicBool::new(true));
    let stall = gate.clone();
    faults.plan(move |call| {
        let first = call.method == Method::Acquire && first.swap(false, Ordering::SeqCst);
        first.then(|| Fault::StallAfter(stall.clone()))
    });
    let mutex = keeper.mutex("n").with_options(lease(1000));
    let late = tokio::spawn(async move { mutex.lock().await });
    gate.reached().await;
    sleep(ms(1500)).await;
    gate.open();
    drop(late.await.unwrap().unwrap());
    unsure("a late grant").await;
    // What was answered at once is not remembered.
    drop(keeper.mutex("n").lock().await.unwrap());
    idle(&keeper).await;
    assert!(odd.0.released.lock().unwrap().iter().all(|how| !how.unsure));
}

#[tokio::test(start_paused = true)]
async fn what_an_engine_does_not_list_is_refused_unsent() {
    let odd = Odd(Arc::new(Ways { picky: true, ..Ways::default() }));
    let keeper = open(&odd).await;
    for error in [
        keeper.rwlock("n").read().await.map(drop).unwrap_err(),
        keeper.rwlock("n").try_write().await.map(drop).unwrap_err(),
        keeper.semaphore("n", 2).acquire().await.map(drop).unwrap_err(),
        keeper.latch("n").wait().await.map(drop).unwrap_err(),
        keeper.latch("n").set(1).await.map(drop).unwrap_err(),
        keeper.fence("n").check(Token::new(1)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    let error = keeper.mutex("n").with_options(lease(9000)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(odd.0.asked.load(Ordering::SeqCst), 0, "something was sent");
    assert!(keeper.mutex("n").lock().await.unwrap().is_held());
}

// --- closing ------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn closing_lasts_until_all_is_given_back_and_takes_nothing_more() {
    let pair = Pair::simulated().await;
    let guard = pair.waiter.mutex("n").lock().await.unwrap();
    let gate = Gate::closed();
    let before = gate.clone();
    pair.faults.plan(move |call| {
        (call.method == Method::Release).then(|| Fault::StallBefore(before.clone()))
    });
    let closing = pair.waiter.clone();
    let closing = tokio::spawn(async move { closing.close().await });
    gate.reached().await;
    assert!(!guard.is_held(), "a closed keeper's guard");
    let error = soon("the refusal", pair.waiter.mutex("m").lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    sleep(Duration::from_secs(1)).await;
    assert!(!closing.is_finished());
    gate.open();
    soon("the end", closing).await.unwrap().unwrap();
    assert!(pair.holder.mutex("n").try_lock().await.unwrap().is_some());
    assert!(matches!(guard.release().await.unwrap(), Released::AlreadyLost(Cause::EngineGone)));
}

#[tokio::test(start_paused = true)]
async fn closing_on_a_silent_engine_ends_and_admits_it() {
    let pair = Pair::simulated().await;
    let _guard = pair.waiter.mutex("n").lock().await.unwrap();
    let gate = Gate::closed();
    pair.faults.plan(move |_| Some(Fault::StallBefore(gate.clone())));
    let closed = timeout(Duration::from_secs(8), pair.waiter.close()).await;
    assert_eq!(closed.expect("bounded").unwrap_err().kind(), ErrorKind::Unknown);
}

// --- re-entry, multi, latch ---------------------------------------------

#[tokio::test(start_paused = true)]
async fn re_entry_remembers_what_is_held_and_forgets_the_rest() {
    let pair = Pair::simulated().await;
    let me = Reentry::new();
    let held = pair.waiter.mutex("held").lock_as(&me).await.unwrap();
    for number in 0..200 {
        let mutex = pair.waiter.mutex(format!("passing/{number}"));
        drop(mutex.lock_as(&me).await.unwrap());
    }
    let again = soon("re-entry", pair.waiter.mutex("held").lock_as(&me)).await.unwrap();
    assert_eq!(held.token(), again.token());
    assert!(!format!("{me:?}").contains("passing/0\""), "idle names pile up");
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_notices_what_was_lost_while_it_waited() {
    let pair = Pair::simulated().await;
    let other = pair.holder.mutex("b").lock().await.unwrap();
    let multi = pair.waiter.multi(["a", "b"]);
    let lock = tokio::spawn(async move { multi.lock().await });
    sleep(ms(10)).await;
    let victim = pair.holder.status("a").await.unwrap().holders.remove(0);
    pair.holder.revoke("a", &victim, Revoke::Now, "meanwhile").await.unwrap();
    drop(other);
    assert_eq!(lock.await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
    idle(&pair.waiter).await;
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_has_one_deadline() {
    let pair = Pair::simulated().await;
    let (a, _b) =
        (pair.holder.mutex("a").lock().await.unwrap(), pair.holder.mutex("b").lock().await);
    let options = LockOptions::default().with_wait(ms(200));
    let multi = pair.waiter.multi(["a", "b"]).with_options(options);
    let start = Instant::now();
    let lock = tokio::spawn(async move { multi.lock().await });
    sleep(ms(150)).await;
    drop(a);
    assert_eq!(lock.await.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(start.elapsed() < ms(230), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn work_under_a_multi_lock_ends_with_any_part() {
    let pair = Pair::simulated().await;
    let multi = pair.waiter.multi(["a", "b"]);
    let done = multi.run(|guard| async move {
        assert!(guard.is_held());
        Ok::<_, String>(7)
    });
    assert_eq!(done.await.unwrap(), 7);
    let failed = multi.run(|_| async { Err::<(), _>("mine") }).await.unwrap_err();
    assert!(matches!(failed, RunError::Work("mine")), "{failed:?}");
    let running = multi.clone();
    let work =
        tokio::spawn(
            async move { running.run(|_| std::future::pending::<Result<(), String>>()).await },
        );
    sleep(ms(10)).await;
    let victim = pair.holder.status("b").await.unwrap().holders.remove(0);
    pair.holder.revoke("b", &victim, Revoke::Orderly, "one of two").await.unwrap();
    let error = soon("the stop", work).await.unwrap().unwrap_err();
    assert!(matches!(error, RunError::Lost { output: None, .. }), "{error:?}");
    idle(&pair.waiter).await;
    // Known only to the engine when the work is over.
    let error = multi.run(|_| async {
        break_unheard(&pair, "b").await;
        Ok::<_, String>(7)
    });
    let error = error.await.unwrap_err();
    assert!(matches!(error, RunError::Lost { output: Some(Ok(7)), .. }), "{error:?}");
    // Known to the guard, though the work fails by itself at that moment.
    let multi = multi.with_options(lease(3000));
    let error = multi.run(|guard| async move {
        advance(ms(3100)).await;
        assert!(matches!(guard.state(), State::Lost(_)));
        Err::<(), _>("mine")
    });
    let error = error.await.unwrap_err();
    assert!(matches!(error, RunError::Lost { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_latch_is_pushed_to_everyone_who_waits() {
    let pair = Pair::simulated().await;
    let latch = pair.holder.latch("l");
    latch.set(1).await.unwrap();
    let wait = || {
        let latch = pair.waiter.latch("l");
        tokio::spawn(async move { latch.wait().await })
    };
    let (gone, stays) = (wait(), wait());
    sleep(ms(10)).await;
    gone.abort();
    let _ = gone.await;
    // The one that stays looks again, so that both have been seen to.
    sleep(Duration::from_secs(2)).await;
    latch.count_down("x").await.unwrap();
    assert_eq!(soon("the push", stays).await.unwrap().unwrap(), Opened::Open);
    idle(&pair.waiter).await;
}

#[tokio::test(start_paused = true)]
async fn a_latch_that_opens_during_a_look_is_seen_at_once() {
    let pair = Pair::simulated().await;
    let latch = pair.holder.latch("l");
    latch.set(1).await.unwrap();
    let gate = stall(&pair, Method::Cell);
    let waiter = pair.waiter.latch("l");
    let waiting = tokio::spawn(async move { waiter.wait().await });
    gate.reached().await;
    latch.count_down("x").await.unwrap();
    sleep(ms(10)).await;
    gate.open();
    assert_eq!(soon("the push", waiting).await.unwrap().unwrap(), Opened::Open);
}

#[tokio::test(start_paused = true)]
async fn a_latch_that_was_set_anew_is_another_one() {
    let pair = Pair::simulated().await;
    let latch = pair.holder.latch("l");
    latch.set(1).await.unwrap();
    let waiter = pair.waiter.latch("l");
    let waiting = tokio::spawn(async move { waiter.wait().await });
    sleep(ms(10)).await;
    pair.faults.hear(|_| false);
    latch.count_down("x").await.unwrap();
    assert!(latch.set(1).await.unwrap());
    let ended = timeout(Duration::from_secs(3), waiting).await.expect("not waited for the new one");
    assert_eq!(ended.unwrap().unwrap(), Opened::Gone);
}

#[tokio::test(start_paused = true)]
async fn a_call_nobody_waits_for_ends() {
    let pair = Pair::simulated().await;
    let latch = pair.waiter.latch("l");
    let waiting = tokio::spawn(async move { latch.wait().await });
    sleep(ms(10)).await;
    waiting.abort();
    idle(&pair.waiter).await;
    let calls = pair.faults.calls();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(pair.faults.calls(), calls, "still looking");
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_takes_its_own_wait_along_and_nothing_else() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let mutex = pair.waiter.mutex("n").on_wait(|_| panic!("a planned panic"));
    let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
    let next = pair.wait();
    assert!(waiting.await.unwrap_err().is_panic());
    drop(guard);
    drop(timeout(Duration::from_secs(1), next).await.expect("its turn").unwrap().unwrap());
    idle(&pair.waiter).await;
}

/// After anything, in any order, with any fault: nothing is left in hand.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_in_the_driver_after_any_operations() {
    let seed = std::env::var("LOCKKEEPER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("LOCKKEEPER_SEED={seed} repeats the choices of this run");
    let mut random = fastrand::Rng::with_seed(seed);
    let pair = Pair::simulated().await;
    for round in 0..20 {
        let faults = Mutex::new(random.fork());
        pair.faults.plan(move |_| {
            let mut random = faults.lock().unwrap();
            Some(match random.u8(..24) {
                0 => Fault::Fail,
                1 => Fault::LoseReply,
                2 => Fault::Duplicate,
                3 => Fault::PanicBefore,
                4 => Fault::PanicAfter,
                5 => {
                    let (gate, pause) = (Gate::closed(), ms(random.u64(..6000)));
                    let open = gate.clone();
                    tokio::spawn(async move {
                        sleep(pause).await;
                        open.open();
                    });
                    Fault::StallAfter(gate)
                }
                _ => return None,
            })
        });
        let mut tasks = Vec::new();
        for task in 0..60 {
            let keeper = if task % 3 == 0 { &pair.holder } else { &pair.waiter }.clone();
            let random = random.fork();
            tasks.push(tokio::spawn(operate(keeper, random)));
        }
        for task in tasks {
            let _ = task.await;
        }
        pair.faults.heal();
        for keeper in [&pair.holder, &pair.waiter] {
            let idle = async || keeper.footprint().await.unwrap().is_empty();
            let start = Instant::now();
            while !idle().await {
                let left = keeper.footprint().await;
                assert!(start.elapsed() < Duration::from_secs(90), "round {round}: {left:?}");
                sleep(ms(100)).await;
            }
        }
    }
}

async fn operate(keeper: Keeper, mut random: fastrand::Rng) {
    let mut options = lease(random.u64(100..4000));
    if random.bool() {
        options = options.with_wait(ms(random.u64(..5000)));
    }
    if random.u8(..4) == 0 {
        options = options.with_max_waiters(2).with_max_hold(ms(500));
    }
    let name = format!("n{}", random.u8(..2));
    let nap = ms(random.u64(..1500));
    let patience = ms(random.u64(..8000));
    let (mutex, lock) = (keeper.mutex(&name), keeper.rwlock(format!("rw-{name}")));
    let (mutex, lock) = (mutex.with_options(options.clone()), lock.with_options(options.clone()));
    let semaphore = keeper.semaphore(format!("s-{name}"), 4).with_options(options.clone());
    let work = async {
        match random.u8(..9) {
            0 => drop((mutex.on_wait(|_| {}).lock().await, sleep(nap).await)),
            1 => drop((mutex.try_lock().await, sleep(nap).await)),
            2 => drop((lock.read().await, sleep(nap).await)),
            3 => drop((lock.try_write().await, sleep(nap).await)),
            4 => {
                if let Ok(write) = lock.write().await {
                    sleep(nap).await;
                    drop(write.downgrade().await);
                }
            }
            5 => drop((semaphore.acquire_many(random.u32(1..4)).await, sleep(nap).await)),
            6 => {
                let multi = keeper.multi(["n0", "n1"]).with_options(options);
                if let Ok(all) = multi.lock().await {
                    sleep(nap).await;
                    let _ = all.release().await;
                }
            }
            7 => {
                if let Ok(guard) = mutex.lock().await {
                    let _ = tokio::join!(guard.verify(), sleep(nap));
                    let _ = guard.release().await;
                }
            }
            // Another kind on the name of a mutex.
            _ => drop(keeper.rwlock(&name).with_options(options).read().await),
        }
    };
    let _ = timeout(patience, work).await;
}
