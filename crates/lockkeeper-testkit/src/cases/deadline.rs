//! P10 deadline.

use std::time::{Duration, Instant};

use lockkeeper::ErrorKind;
use lockkeeper::layer::faults::{Fault, Gate};

use crate::stage::{Stage, within};

/// What a wait may take beyond its limit on a busy machine.
const SLACK: Duration = Duration::from_millis(1500);

/// A wait ends in time, says why, and leaves no place behind.
pub async fn the_wait_bounds_the_acquisition(stage: &Stage) {
    let name = stage.name("wait");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let guard = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let wait = Duration::from_millis(300);
    let start = Instant::now();
    let options = stage.options().with_wait(wait);
    let error = two.mutex(&name).with_options(options).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(start.elapsed() >= wait && start.elapsed() < wait + SLACK, "{:?}", start.elapsed());
    stage.waiters(&name, 0).await;
    assert!(guard.is_held());
}

/// A wait of nothing asks once: free is granted, busy is timed out.
pub async fn no_patience_still_asks_once(stage: &Stage) {
    let name = stage.name("impatient");
    let keeper = stage.keeper().await;
    let now = stage.options().with_wait(Duration::ZERO);
    let mutex = keeper.mutex(&name).with_options(now);
    let guard = mutex.lock().await.unwrap();
    let error = mutex.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    drop(guard);
}

/// No answer at all is `Unreachable`, after the wait or five seconds.
pub async fn a_silent_engine_is_unreachable_in_time(stage: &Stage) {
    let name = stage.name("unreachable");
    let (keeper, faults) = stage.faulty().await;
    let gate = Gate::closed();
    let stall = gate.clone();
    faults.plan(move |_| Some(Fault::StallBefore(stall.clone())));
    let wait = Duration::from_millis(300);
    let start = Instant::now();
    let options = stage.options().with_wait(wait);
    let error = keeper.mutex(&name).with_options(options).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(start.elapsed() >= wait && start.elapsed() < wait + SLACK, "{:?}", start.elapsed());

    let start = Instant::now();
    let mutex = keeper.mutex(&name);
    let (patient, try_once) = tokio::join!(mutex.lock(), mutex.try_lock());
    for error in [patient.map(drop).unwrap_err(), try_once.map(drop).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(5) + SLACK, "{:?}", start.elapsed());
    gate.open();
    stage.deserted(&name).await;
}

/// Those who queue behind each other in one keeper do not add up their limits.
pub async fn local_waiters_of_a_silent_engine_end_together(stage: &Stage) {
    let name = stage.name("silent-queue");
    let (keeper, faults) = stage.faulty().await;
    faults.plan(|_| Some(Fault::Fail));
    let start = Instant::now();
    let mutex = keeper.mutex(&name);
    let locks: Vec<_> = (0..5).map(|_| mutex.lock()).collect();
    for lock in futures_util::future::join_all(locks).await {
        assert_eq!(lock.unwrap_err().kind(), ErrorKind::Unreachable);
    }
    assert!(start.elapsed() < Duration::from_secs(5) + SLACK, "{:?}", start.elapsed());
}

/// Once the engine has answered, an outage does not end the wait.
pub async fn an_outage_is_ridden_out_once_answered(stage: &Stage) {
    let name = stage.name("outage");
    let one = stage.keeper().await;
    let (two, faults) = stage.faulty().await;
    let guard = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let options = stage.options().with_wait(Duration::from_secs(60));
    let mutex = two.mutex(&name).with_options(options);
    let waiter = tokio::spawn(async move { mutex.lock().await });
    if stage.info().ordered {
        stage.waiters(&name, 1).await;
    } else {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    faults.plan(|_| Some(Fault::Fail));
    faults.hear(|_| false);
    // Longer than the limit for a first answer, and than any ticket lives.
    tokio::time::sleep(Duration::from_millis(5600)).await;
    assert!(!waiter.is_finished(), "gave up during the outage");
    drop(guard);
    faults.heal();
    let guard = within(Duration::from_secs(10), "getting it after the outage", waiter).await;
    assert!(guard.unwrap().unwrap().is_held());
}
