//! Who waits, in which order, and for how long.

use super::*;

// --- order --------------------------------------------------------------
#[tokio::test(start_paused = true)]
async fn a_try_behind_a_local_waiter_is_refused_at_once() {
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let gate = pair.stall(Method::Acquire);
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
    let gate = pair.stall(Method::Renew);
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
    sleep(ms(10)).await;
    // What was missed while the connection was down is asked for at once.
    let guard = holder.mutex("n").lock().await.unwrap();
    let waiting = wait();
    sleep(ms(10)).await;
    drop(guard);
    sleep(ms(10)).await;
    assert!(!waiting.is_finished(), "heard what is not to be heard");
    let events = odd.0.events.lock().unwrap().clone().unwrap();
    faults.heal();
    events.push(Event::Link { shard: 0, up: true });
    assert!(soon("asking anew", waiting).await.unwrap().unwrap().is_held());
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
    let gate = pair.stall(Method::Acquire);
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
    let gate = pair.stall(Method::Acquire);
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
