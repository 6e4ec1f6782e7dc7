//! Answers: late ones, lost ones, slow ones.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_answer_after_the_end_revives_nothing() {
    let pair = Pair::simulated().await;
    let lease = Duration::from_secs(3);
    let mutex = pair.waiter.mutex("n").with_options(LockOptions::default().with_lease(lease));
    let guard = mutex.lock().await.unwrap();
    // The engine renews; the answer comes when the guard is over.
    let gate = pair.stall(Method::Renew);
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
    let gate = pair.stall(Method::Renew);
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
    let gate = pair.stall(Method::Renew);
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
