//! What is held, renewed, lost and given back.

use super::*;

// --- lost ---------------------------------------------------------------
#[tokio::test(start_paused = true)]
async fn validity_counts_from_before_the_question() {
    let pair = Pair::simulated().await;
    let span = Duration::from_secs(2);
    let gate = pair.stall(Method::Acquire);
    let mutex = pair.waiter.mutex("n").with_options(lease(30_000));
    let lock = tokio::spawn(async move { mutex.lock().await });
    gate.reached().await;
    sleep(span).await;
    gate.open();
    let guard = lock.await.unwrap().unwrap();
    let most = ms(30_000) - LockOptions::default().effective_margin() - span;
    assert!(guard.valid_for() <= most, "{:?} after a slow grant", guard.valid_for());
    let gate = pair.stall(Method::Renew);
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
    let gate = pair.stall(Method::Renew);
    gate.reached().await;
    // It arrives in time, but the machine sleeps before anybody reads it; the
    // lease it brings would last beyond that.
    gate.open();
    advance(guard.valid_for()).await;
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
    let gate = pair.stall(Method::Renew);
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
    let gate = pair.stall(Method::Renew);
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
    let gate = pair.stall(Method::Acquire);
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
