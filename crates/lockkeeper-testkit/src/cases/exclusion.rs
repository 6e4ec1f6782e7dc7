//! P1 exclusion and P2 no deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::layer::faults::Fault;
use lockkeeper::{Keeper, LockOptions, Released};

use crate::history::Recorder;
use crate::stage::{Stage, within};

/// Somebody else's `try_lock` is refused while a guard is held, and no longer.
pub async fn a_second_holder_is_refused(stage: &Stage) {
    let name = stage.name("second");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let guard = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    assert!(two.mutex(&name).try_lock().await.unwrap().is_none());
    assert!(one.mutex(&name).try_lock().await.unwrap().is_none());
    assert!(guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let guard = two.mutex(&name).try_lock().await.unwrap();
    assert!(guard.is_some(), "free again after the release");
}

/// Tasks of several keepers hammer one name; a witness sees one at a time.
pub async fn many_tasks_of_many_keepers_never_overlap(stage: &Stage) {
    let name = stage.name("hammer");
    let inside = Arc::new(AtomicU32::new(0));
    let recorder = Recorder::new();
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let keeper = stage.keeper().await;
        for _ in 0..4 {
            let work = hammer(keeper.clone(), name.clone(), stage.options(), inside.clone());
            tasks.push(tokio::spawn(work(recorder.clone(), 25)));
        }
    }
    for task in tasks {
        within(Duration::from_secs(120), "a hammering task", task).await.unwrap();
    }
    let history = recorder.history();
    assert_eq!(history.grants(&name), 3 * 4 * 25);
    history.check();
    stage.deserted(&name).await;
}

/// A task that locks again and again and looks for others inside.
fn hammer(
    keeper: Keeper,
    name: String,
    options: LockOptions,
    inside: Arc<AtomicU32>,
) -> impl FnOnce(Recorder, u32) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    move |recorder, rounds| {
        Box::pin(async move {
            let mutex = keeper.mutex(&name).with_options(options);
            for _ in 0..rounds {
                let arrival = recorder.now();
                let guard = mutex.lock().await.unwrap();
                let entry = recorder.enter(&name, arrival, guard.token());
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside {name}");
                tokio::task::yield_now().await;
                guard.check().unwrap();
                inside.fetch_sub(1, Ordering::SeqCst);
                recorder.leave(entry);
                assert_eq!(guard.release().await.unwrap(), Released::Released);
            }
        })
    }
}

/// A holder whose engine never hears of it again is followed, but only after
/// its own guard has said "lost".
pub async fn a_silent_holder_is_followed_after_its_lease_and_not_before(stage: &Stage) {
    let name = stage.name("silent");
    let (one, faults) = stage.faulty().await;
    let two = stage.keeper().await;
    let start = Instant::now();
    let first = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    faults.plan(|_| Some(Fault::Fail));
    let second = two.mutex(&name).with_options(stage.options());
    let limit = stage.short_lease() + Duration::from_secs(4);
    let second = within(limit, "following a silent holder", second.lock()).await.unwrap();
    assert!(!first.is_held(), "both hold {name}");
    assert!(start.elapsed() >= stage.short_lease(), "followed before the lease was over");
    assert!(second.token() > first.token());
}

/// A name that was released early stays closed until min-hold is over.
pub async fn min_hold_keeps_the_name_closed(stage: &Stage) {
    let name = stage.name("min-hold");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let min_hold = Duration::from_millis(700);
    let start = Instant::now();
    let options = stage.options().with_min_hold(min_hold);
    let guard = one.mutex(&name).with_options(options).lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(two.mutex(&name).try_lock().await.unwrap().is_none(), "closed, though ownerless");
    let status = stage.status(&name).await;
    assert!(status.holders.is_empty() && !status.closed_for.is_zero(), "{status:?}");
    let guard = two.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    assert!(start.elapsed() >= min_hold - Duration::from_millis(20), "{:?}", start.elapsed());
    assert!(guard.is_held());
}

/// After a holder fails, its lock-delay passes first; after a release, none does.
pub async fn lock_delay_follows_a_failed_holder_only(stage: &Stage) {
    let name = stage.name("lock-delay");
    let delay = Duration::from_millis(600);
    let (one, faults) = stage.faulty().await;
    let two = stage.keeper().await;
    let careful = stage.options().with_lock_delay(delay);

    let guard = one.mutex(&name).with_options(careful.clone()).lock().await.unwrap();
    let _ = guard.release().await.unwrap();
    let guard = two.mutex(&name).try_lock().await.unwrap();
    let _ = guard.expect("no delay after a clean release").release().await.unwrap();

    let failing = one.mutex(&name).with_options(careful).lock().await.unwrap();
    faults.plan(|_| Some(Fault::Fail));
    let start = Instant::now();
    let limit = stage.short_lease() + delay + Duration::from_secs(4);
    let next = two.mutex(&name).with_options(stage.options());
    let next = within(limit, "following a failed holder", async {
        let mut next = std::pin::pin!(next.lock());
        loop {
            tokio::select! {
                next = &mut next => return next.unwrap(),
                status = stage.status(&name) => {
                    // The end of the delay may fall between what a look reads.
                    let closed = status.closed_for > delay / 6;
                    let wrong = closed && !status.holders.is_empty();
                    assert!(!wrong, "somebody holds a closed name: {status:?}");
                }
            }
        }
    });
    let next = next.await;
    let waited = start.elapsed();
    let least = stage.short_lease() + delay - Duration::from_millis(100);
    assert!(waited >= least, "followed after {waited:?}, before {least:?}");
    assert!(!failing.is_held() && next.is_held());
}
