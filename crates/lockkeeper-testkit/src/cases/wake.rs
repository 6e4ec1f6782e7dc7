//! P8 wake-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::engine::{Event, Kind};
use lockkeeper::layer::faults::{Fault, Method};

use crate::stage::{Stage, within};

/// With every re-poll failing, only a push can bring the lock: a pushed grant
/// by itself, a nudge by the renewal that it brings about.
pub async fn a_push_alone_hands_the_lock_over(stage: &Stage) {
    if stage.info().polled || !stage.info().ordered {
        return;
    }
    let name = stage.name("push");
    let one = stage.keeper().await;
    let (two, faults) = stage.faulty().await;
    let guard = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let mutex = two.mutex(&name).with_options(stage.options());
    let waiter = tokio::spawn(async move { mutex.lock().await });
    stage.waiters(&name, 1).await;
    let nudged = Arc::new(AtomicBool::new(false));
    let heard = nudged.clone();
    faults.hear(move |event| {
        heard.fetch_or(matches!(event, Event::Nudge(_)), Ordering::SeqCst);
        true
    });
    faults.plan(move |call| {
        let re_poll = call.method == Method::Renew && !nudged.load(Ordering::SeqCst);
        re_poll.then_some(Fault::Fail)
    });
    drop(guard);
    let guard = within(Duration::from_secs(1), "the push", waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
    faults.heal();
    guard.verify().await.unwrap();
}

/// With every push lost, the re-poll brings the lock within two seconds.
pub async fn a_missed_push_costs_one_re_poll_at_most(stage: &Stage) {
    let name = stage.name("missed");
    let one = stage.keeper().await;
    let (two, faults) = stage.faulty().await;
    faults.hear(|_| false);
    let guard = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let mutex = two.mutex(&name).with_options(stage.options());
    let waiter = tokio::spawn(async move { mutex.lock().await });
    if stage.info().ordered {
        stage.waiters(&name, 1).await;
    } else {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let start = Instant::now();
    drop(guard);
    let guard = within(Duration::from_secs(4), "the re-poll", waiter).await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_millis(2500), "{:?}", start.elapsed());
    assert!(guard.is_held());
}

/// A release is news to one waiting keeper, not to the herd.
pub async fn one_release_wakes_one_waiter(stage: &Stage) {
    if stage.info().polled || !stage.info().ordered {
        return;
    }
    let name = stage.name("herd");
    let first = stage.keeper().await;
    let guard = first.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let pushes = Arc::new(AtomicU32::new(0));
    let mut waiters = Vec::new();
    for number in 0..8 {
        let (keeper, faults) = stage.faulty().await;
        let pushes = pushes.clone();
        faults.hear(move |_| {
            pushes.fetch_add(1, Ordering::SeqCst);
            true
        });
        let mutex = keeper.mutex(&name).with_options(stage.options());
        waiters.push(tokio::spawn(async move { (mutex.lock().await.unwrap(), keeper) }));
        stage.waiters(&name, number + 1).await;
    }
    assert_eq!(pushes.load(Ordering::SeqCst), 0);
    drop(guard);
    for (number, waiter) in waiters.into_iter().enumerate() {
        let next = within(Duration::from_secs(8), "the next waiter", waiter).await.unwrap();
        assert_eq!(pushes.load(Ordering::SeqCst), number as u32 + 1, "more than one was woken");
        drop(next);
    }
    stage.deserted(&name).await;
}

/// A writer's release lets the whole batch of readers in.
pub async fn a_release_wakes_a_batch_of_readers(stage: &Stage) {
    if stage.refuses(Kind::ReadWrite).await || !stage.info().ordered {
        return;
    }
    let name = stage.name("batch");
    let first = stage.keeper().await;
    let write = first.rwlock(&name).with_options(stage.options()).write().await.unwrap();
    let mut readers = Vec::new();
    for number in 0..4 {
        let lock = stage.keeper().await.rwlock(&name).with_options(stage.options());
        readers.push(tokio::spawn(async move { lock.read().await.unwrap() }));
        stage.waiters(&name, number + 1).await;
    }
    drop(write);
    let mut inside = Vec::new();
    for reader in readers {
        inside.push(within(Duration::from_secs(8), "a reader", reader).await.unwrap());
    }
    assert!(inside.iter().all(|guard| guard.is_held()));
}
