//! What people call: closing, re-entry, several locks, latches.

use super::*;

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
    // It would say good-bye, but gives nothing back.
    let gate = Gate::closed();
    pair.faults.plan(move |call| {
        (call.method == Method::Release).then(|| Fault::StallBefore(gate.clone()))
    });
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
async fn a_latch_that_is_over_leaves_its_name_free_for_anything() {
    let pair = Pair::simulated().await;
    let latch = pair.holder.latch("l").keep(ms(1500));
    latch.set(2).await.unwrap();
    let error = pair.holder.mutex("l").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    advance(ms(1600)).await;
    assert_eq!(pair.holder.status("l").await.unwrap().kind, None);
    assert!(pair.holder.mutex("l").try_lock().await.unwrap().is_some());
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
    let gate = pair.stall(Method::Cell);
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
    let seed = lockkeeper_testkit::seed();
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
