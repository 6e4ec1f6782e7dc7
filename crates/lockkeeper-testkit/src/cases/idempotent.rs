//! P9 idempotent: a request whose reply was lost can be sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::engine::{Kind, Standing};
use lockkeeper::layer::faults::{Fault, Gate, Method};
use lockkeeper::{ErrorKind, Released};

use crate::stage::{Stage, within};

/// The first answer is lost; asking again finds the grant instead of
/// deadlocking behind it.
pub async fn a_lost_grant_is_found_again(stage: &Stage) {
    let name = stage.name("lost-grant");
    let (keeper, faults) = stage.faulty().await;
    let lost = Arc::new(AtomicU32::new(0));
    let count = lost.clone();
    faults.plan(move |call| {
        let first = call.method == Method::Acquire && count.fetch_add(1, Ordering::Relaxed) < 2;
        first.then_some(Fault::LoseReply)
    });
    let options = stage.options().with_lease(Duration::from_secs(30));
    let mutex = keeper.mutex(&name).with_options(options);
    let guard = within(Duration::from_secs(4), "finding the grant", mutex.lock()).await.unwrap();
    assert!(lost.load(Ordering::Relaxed) >= 3);
    let holders = stage.status(&name).await.holders;
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].token, Some(guard.token()));
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    stage.deserted(&name).await;
}

/// A release whose answer was lost is repeated, finds nothing, and counts.
pub async fn a_lost_release_counts_as_released(stage: &Stage) {
    let name = stage.name("lost-release");
    let (keeper, faults) = stage.faulty().await;
    let options = stage.options().with_lease(Duration::from_secs(30));
    let guard = keeper.mutex(&name).with_options(options).lock().await.unwrap();
    let lost = AtomicU32::new(0);
    faults.plan(move |call| {
        let first = call.method == Method::Release && lost.fetch_add(1, Ordering::Relaxed) == 0;
        first.then_some(Fault::LoseReply)
    });
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    stage.deserted(&name).await;
}

/// Every call reaches the engine twice, and nobody can tell.
pub async fn everything_twice_changes_nothing(stage: &Stage) {
    let name = stage.name("twice");
    let (one, faults) = stage.faulty().await;
    let two = stage.keeper().await;
    faults.plan(|_| Some(Fault::Duplicate));
    let mut last = None;
    for _ in 0..5 {
        let held = two.mutex(&name).with_options(stage.options()).lock().await.unwrap();
        let mutex = one.mutex(&name).with_options(stage.options());
        let waiter = tokio::spawn(async move { mutex.lock().await });
        if stage.info().ordered {
            stage.waiters(&name, 1).await;
        }
        drop(held);
        let guard = waiter.await.unwrap().unwrap();
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.verify().await.unwrap();
        let status = stage.status(&name).await;
        assert_eq!((status.holders.len(), status.waiters.len()), (1, 0), "{status:?}");
        let _ = guard.release().await.unwrap();
    }
    stage.deserted(&name).await;
}

/// A count-down whose answer was lost is repeated and counts once.
pub async fn a_lost_count_down_counts_once(stage: &Stage) {
    if stage.refuses(Kind::Latch).await {
        return;
    }
    let name = stage.name("lost-count");
    let (keeper, faults) = stage.faulty().await;
    let lost = AtomicU32::new(0);
    faults.plan(move |call| {
        let odd = lost.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        (call.method == Method::Cell && odd).then_some(Fault::LoseReply)
    });
    let latch = keeper.latch(&name);
    assert!(latch.set(3).await.unwrap());
    assert_eq!(latch.count_down("a").await.unwrap(), Some(2));
    assert_eq!(latch.count_down("a").await.unwrap(), Some(2));
    assert_eq!(latch.count_down("b").await.unwrap(), Some(1));
}

/// A request that arrives after its claim was given up is refused, so that no
/// orphan holds the name.
pub async fn a_late_acquire_of_a_finished_claim_is_refused(stage: &Stage) {
    let name = stage.name("late-acquire");
    let (keeper, faults) = stage.faulty().await;
    // The first request hangs on the way for longer than its call may take.
    let (gate, first) = (Gate::closed(), AtomicU32::new(0));
    let stall = gate.clone();
    faults.plan(move |call| {
        let hang = call.method == Method::Acquire && first.fetch_add(1, Ordering::Relaxed) == 0;
        hang.then(|| Fault::Late(stall.clone()))
    });
    let options = stage.options().with_lease(Duration::from_secs(30));
    let impatient = options.with_wait(Duration::from_millis(200));
    let error = keeper.mutex(&name).with_options(impatient).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    // The claim is released as unsure; only then does the request arrive.
    within(Duration::from_secs(12), "the release", faults.answered(Method::Release)).await;
    gate.open();
    let answer = within(Duration::from_secs(5), "the late answer", faults.late_answer()).await;
    assert!(matches!(answer, Some(Standing::Gone(_))), "{answer:?}");
    assert!(stage.status(&name).await.holders.is_empty(), "an orphan holds {name}");
}
