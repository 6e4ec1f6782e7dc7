//! P7 order.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper::ErrorKind;
use lockkeeper::layer::faults::Fault;

use crate::stage::{Stage, eventually, poll_once, within};

/// Who was served, in order.
type Served = Arc<Mutex<Vec<usize>>>;

/// One claim each of several keepers: served as they came.
pub async fn keepers_are_served_in_the_order_of_arrival(stage: &Stage) {
    if !stage.info().ordered {
        return;
    }
    let name = stage.name("fifo");
    let first = stage.keeper().await;
    let guard = first.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let served = Served::default();
    let mut tasks = Vec::new();
    for number in 0..6 {
        let keeper = stage.keeper().await;
        let (mutex, served) = (keeper.mutex(&name).with_options(stage.options()), served.clone());
        tasks.push(tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            served.lock().unwrap().push(number);
            drop(guard);
        }));
        // The next one arrives only when this one stands in the queue.
        stage.waiters(&name, number + 1).await;
    }
    drop(guard);
    for task in tasks {
        within(Duration::from_secs(20), "a waiter", task).await.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
}

/// Claims of one keeper keep their order too, though only one contends.
pub async fn claims_of_one_keeper_are_served_in_order(stage: &Stage) {
    let name = stage.name("local-fifo");
    let keeper = stage.keeper().await;
    let mutex = keeper.mutex(&name).with_options(stage.options());
    let guard = mutex.lock().await.unwrap();
    let served = Served::default();
    let mut locks = Vec::new();
    for number in 0..8 {
        let (mutex, served) = (mutex.clone(), served.clone());
        let mut lock = Box::pin(async move {
            let guard = mutex.lock().await.unwrap();
            served.lock().unwrap().push(number);
            drop(guard);
        });
        // Posted in this order, from this one task.
        assert!(poll_once(lock.as_mut()).is_none());
        locks.push(lock);
    }
    if stage.info().ordered {
        stage.waiters(&name, 1).await;
    }
    drop(guard);
    let all = futures_util::future::join_all(locks);
    within(Duration::from_secs(20), "the local queue", all).await;
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// A keeper with many claims and one with a single one take turns.
pub async fn a_keeper_with_many_claims_overtakes_by_one_at_a_time(stage: &Stage) {
    if !stage.info().ordered {
        return;
    }
    let name = stage.name("crowd");
    let (crowd, single) = (stage.keeper().await, stage.keeper().await);
    let mutex = crowd.mutex(&name).with_options(stage.options());
    let guard = mutex.lock().await.unwrap();
    let served = Served::default();
    let serve = |mutex: lockkeeper::Mutex, number: usize, served: Served| {
        tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            served.lock().unwrap().push(number);
            drop(guard);
        })
    };
    let mut tasks: Vec<_> =
        (0..10).map(|number| serve(mutex.clone(), number, served.clone())).collect();
    stage.waiters(&name, 1).await;
    let lone = single.mutex(&name).with_options(stage.options());
    tasks.push(serve(lone, 99, served.clone()));
    stage.waiters(&name, 2).await;
    drop(guard);
    for task in tasks {
        within(Duration::from_secs(20), "a waiter", task).await.unwrap();
    }
    let served = served.lock().unwrap();
    let turn = served.iter().position(|&number| number == 99).unwrap();
    // It has nobody ahead in its own keeper, so one of the crowd may pass,
    // or two if the second was on its way when it came.
    assert!(turn <= 2, "the single claim came {turn}th: {served:?}");
}

/// A try neither jumps the queue nor leaves anything in it.
pub async fn try_lock_never_overtakes_and_leaves_nothing(stage: &Stage) {
    let name = stage.name("try");
    let (one, two, three) = (stage.keeper().await, stage.keeper().await, stage.keeper().await);
    let guard = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    for _ in 0..5 {
        assert!(three.mutex(&name).try_lock().await.unwrap().is_none());
    }
    let status = stage.status(&name).await;
    assert!(status.waiters.is_empty(), "a try left a ticket: {status:?}");
    if !stage.info().ordered {
        return;
    }
    let mutex = two.mutex(&name).with_options(stage.options());
    let waiter = tokio::spawn(async move { mutex.lock().await });
    stage.waiters(&name, 1).await;
    drop(guard);
    // Whoever gets it, it is not the one who only tries, until the other had it.
    let start = Instant::now();
    while !waiter.is_finished() && start.elapsed() < Duration::from_secs(5) {
        let tried = three.mutex(&name).try_lock().await.unwrap();
        assert!(tried.is_none() || waiter.is_finished(), "overtaken by a try");
    }
    drop(waiter.await.unwrap().unwrap());
    // The same within one keeper: a try behind a local waiter is refused.
    let guard = two.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let mutex = one.mutex(&name).with_options(stage.options());
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    stage.waiters(&name, 1).await;
    assert!(mutex.try_lock().await.unwrap().is_none());
    drop(guard);
    drop(waiter.await.unwrap().unwrap());
}

/// A waiter that dies in the queue holds those behind it up for its ticket's
/// life and a beat, not more.
pub async fn a_dead_waiter_delays_the_queue_a_little(stage: &Stage) {
    if !stage.info().ordered {
        return;
    }
    let name = stage.name("dead-waiter");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let (dead, faults) = stage.faulty().await;
    let guard = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let mutex = dead.mutex(&name).with_options(stage.options());
    let doomed = tokio::spawn(async move { mutex.lock().await });
    stage.waiters(&name, 1).await;
    let mutex = two.mutex(&name).with_options(stage.options());
    let next = tokio::spawn(async move { mutex.lock().await });
    stage.waiters(&name, 2).await;
    faults.plan(|_| Some(Fault::Fail));
    faults.hear(|_| false);
    drop(guard);
    let limit = Duration::from_millis(2000 + 700 + 1300);
    let guard = within(limit, "passing a dead waiter", next).await.unwrap().unwrap();
    assert!(guard.is_held() && !doomed.is_finished());
    doomed.abort();
}

/// The queue has a limit, and says so.
pub async fn too_many_waiters_are_refused(stage: &Stage) {
    let name = stage.name("crowded");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let guard = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let options = stage.options().with_max_waiters(2);
    let mutex = two.mutex(&name).with_options(options.clone());
    let mut waiters = Vec::new();
    for _ in 0..2 {
        let mut lock = Box::pin(mutex.lock());
        assert!(poll_once(lock.as_mut()).is_none());
        waiters.push(lock);
    }
    let error = mutex.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooMany, "{error}");
    drop(waiters);
    if stage.info().ordered {
        // Across keepers the engine counts. What is withdrawn may still be asked for.
        let gone = async || two.footprint().await.is_ok_and(|footprint| footprint.entries == 0);
        assert!(eventually(Duration::from_secs(10), gone).await);
        stage.waiters(&name, 0).await;
        let mut tasks = Vec::new();
        for count in 1..=2 {
            let keeper = stage.keeper().await;
            let mutex = keeper.mutex(&name).with_options(options.clone());
            tasks.push(tokio::spawn(async move { mutex.lock().await.map(drop) }));
            stage.waiters(&name, count).await;
        }
        let keeper = stage.keeper().await;
        let error = keeper.mutex(&name).with_options(options).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooMany, "{error}");
        for task in tasks {
            task.abort();
        }
    }
    drop(guard);
}
