//! P6 cancel: dropping anything, anywhere, leaves nothing.

use std::time::Duration;

use lockkeeper::engine::Kind;
use lockkeeper::layer::faults::{Fault, Faults, Gate, Method};
use lockkeeper::{Keeper, LockOptions, Released};

use crate::stage::{Stage, eventually, poll_once, within};

/// A waiter that goes away loses its place, and the next one moves up.
pub async fn a_cancelled_waiter_leaves_no_ticket(stage: &Stage) {
    let name = stage.name("cancelled");
    let (one, two, three) = (stage.keeper().await, stage.keeper().await, stage.keeper().await);
    let guard = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let waiter = two.mutex(&name).with_options(stage.options());
    let waiter = tokio::spawn(async move { waiter.lock().await });
    let next = three.mutex(&name).with_options(stage.options());
    if stage.info().ordered {
        stage.waiters(&name, 1).await;
    }
    let next = tokio::spawn(async move { next.lock().await });
    if stage.info().ordered {
        stage.waiters(&name, 2).await;
    }
    waiter.abort();
    let _ = waiter.await;
    if stage.info().ordered {
        stage.waiters(&name, 1).await;
    }
    drop(guard);
    let guard = within(Duration::from_secs(8), "the next waiter", next).await.unwrap().unwrap();
    drop(guard);
    stage.deserted(&name).await;
}

/// A guard that was sent, but whose caller went away, gives itself back.
pub async fn a_grant_nobody_reads_releases_itself(stage: &Stage) {
    let name = stage.name("unread");
    let (keeper, faults) = stage.faulty().await;
    let mutex = keeper.mutex(&name).with_options(stage.options());
    let gate = Gate::closed();
    let stall = gate.clone();
    faults.plan(move |call| {
        (call.method == Method::Acquire).then(|| Fault::StallAfter(stall.clone()))
    });
    let mut lock = Box::pin(mutex.lock());
    assert!(poll_once(lock.as_mut()).is_none(), "answered before the engine did");
    faults.heal();
    gate.open();
    // The answer is on its way, or there; this future never looks again.
    let held = async || !stage.status(&name).await.holders.is_empty();
    assert!(eventually(Duration::from_secs(5), held).await, "never granted");
    drop(lock);
    stage.deserted(&name).await;
}

/// What a case of cancellation does before it is cancelled.
#[derive(Clone, Copy, Debug)]
enum Scene {
    /// The name is free.
    Free,
    /// Somebody holds the name and lets go once our claim is under way.
    HandedOver,
    /// Two names at once.
    Multi,
    /// A write lock that steps down.
    Downgrade,
    /// A permit of a semaphore.
    Permit,
    /// A wait with somebody listening for whom it waits.
    Told,
}

/// For every kind of fault and every engine call of a lock, one after the
/// other: the call meets the fault, the caller goes away, nothing is left.
pub async fn cancelling_at_every_engine_call_leaves_nothing(stage: &Stage) {
    let mut scenes = vec![Scene::Free, Scene::HandedOver, Scene::Multi, Scene::Told];
    if !stage.refuses(Kind::ReadWrite).await {
        scenes.push(Scene::Downgrade);
    }
    if !stage.refuses(Kind::Semaphore).await {
        scenes.push(Scene::Permit);
    }
    let faults: [fn(&Gate) -> Fault; 7] = [
        |_| Fault::Fail,
        |gate| Fault::StallBefore(gate.clone()),
        |gate| Fault::StallAfter(gate.clone()),
        |_| Fault::LoseReply,
        |_| Fault::Duplicate,
        |_| Fault::PanicBefore,
        |_| Fault::PanicAfter,
    ];
    let mut points = Vec::new();
    for scene in scenes {
        for fault in faults {
            // The scenes make a handful of calls; beats go on for ever.
            for call in 0..6 {
                points.push((scene, fault, call));
            }
        }
    }
    // Side by side: most of the time is spent waiting for leases to be safe.
    let mut reached = Vec::new();
    for chunk in points.chunks(24) {
        let runs = chunk.iter().map(|&(scene, fault, call)| cancel_at(stage, scene, fault, call));
        reached.extend(futures_util::future::join_all(runs).await.into_iter().flatten());
    }
    for method in [Method::Acquire, Method::Renew, Method::Release, Method::Inspect] {
        assert!(reached.contains(&method), "no run was cancelled at {method:?}: {reached:?}");
    }
}

/// Cancels a scene at its `call`-th engine call; says which call that was.
async fn cancel_at(
    stage: &Stage,
    scene: Scene,
    fault: fn(&Gate) -> Fault,
    call: u64,
) -> Option<Method> {
    let name = stage.name("point");
    let (keeper, faults) = stage.faulty().await;
    let (gate, met) = (Gate::closed(), Gate::closed());
    let hit = std::sync::Arc::new(std::sync::Mutex::new(None));
    let plan = (gate.clone(), met.clone(), hit.clone());
    faults.plan(move |now| {
        let (gate, met, hit) = &plan;
        (now.index == call).then(|| {
            *hit.lock().unwrap() = Some(now.method);
            met.open();
            fault(gate)
        })
    });
    let options = stage.options().with_lease(stage.short_lease() * 2);
    let mut scene = Box::pin(play(stage, keeper.clone(), scene, name.clone(), options));
    let met_it = eventually_met(&met);
    let patience = Duration::from_secs(3);
    // Cancelled in the middle of the call, or when the scene is over; a scene
    // that is stuck behind a stalled call is what we want to cancel.
    let _ = tokio::time::timeout(patience, async {
        tokio::select! {
            _ = &mut scene => {}
            _ = met_it => {}
        }
    })
    .await;
    drop(scene);
    gate.open();
    stage.deserted(&name).await;
    stage.deserted(&format!("{name}/second")).await;
    *hit.lock().unwrap()
}

async fn eventually_met(met: &Gate) {
    while !met.is_open() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn play(stage: &Stage, keeper: Keeper, scene: Scene, name: String, options: LockOptions) {
    match scene {
        Scene::Free => drop(keeper.mutex(&name).with_options(options).lock().await),
        Scene::HandedOver | Scene::Told => {
            let other = stage.keeper().await;
            let held = other.mutex(&name).with_options(stage.options()).lock().await.unwrap();
            let mut mutex = keeper.mutex(&name).with_options(options);
            if matches!(scene, Scene::Told) {
                mutex = mutex.on_wait(|waiting| assert!(!waiting.name.as_str().is_empty()));
            }
            let let_go = async {
                tokio::time::sleep(Duration::from_millis(700)).await;
                drop(held);
            };
            let (guard, ()) = tokio::join!(mutex.lock(), let_go);
            drop(guard);
        }
        Scene::Multi => {
            let names = [format!("{name}/second"), name];
            drop(keeper.multi(names).with_options(options).lock().await);
        }
        Scene::Downgrade => {
            if let Ok(write) = keeper.rwlock(&name).with_options(options).write().await {
                drop(write.downgrade().await);
            }
        }
        Scene::Permit => {
            drop(keeper.semaphore(&name, 3).with_options(options).acquire_many(2).await);
        }
    }
}

/// A lock that is polled n times and then dropped, for every n until it ends.
pub async fn cancelling_after_every_poll_leaves_nothing(stage: &Stage) {
    for contended in [false, true] {
        for polls in 1..8 {
            let name = stage.name("polls");
            let other = stage.keeper().await;
            let keeper = stage.keeper().await;
            let held = if contended {
                Some(other.mutex(&name).with_options(stage.options()).lock().await.unwrap())
            } else {
                None
            };
            let mutex = keeper.mutex(&name).with_options(stage.options()).on_wait(|_| {});
            let mut lock = Box::pin(mutex.lock());
            let mut held = held;
            for _ in 0..polls {
                if poll_once(lock.as_mut()).is_some() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                if polls == 4 {
                    drop(held.take());
                }
            }
            drop(lock);
            drop(held);
            stage.deserted(&name).await;
        }
    }
}

/// Holds up releases before they reach the engine.
fn stalled_releases(faults: &Faults) -> Gate {
    let gate = Gate::closed();
    let stall = gate.clone();
    faults.plan(move |call| {
        (call.method == Method::Release).then(|| Fault::StallBefore(stall.clone()))
    });
    gate
}

/// Once a release is asked for, it happens, whoever waits for its report.
pub async fn a_cancelled_release_goes_on(stage: &Stage) {
    let name = stage.name("release");
    let (keeper, faults) = stage.faulty().await;
    let options = stage.options().with_lease(Duration::from_secs(30));
    let guard = keeper.mutex(&name).with_options(options).lock().await.unwrap();
    let gate = stalled_releases(&faults);
    let mut release = Box::pin(guard.release());
    assert!(poll_once(release.as_mut()).is_none());
    gate.reached().await;
    drop(release);
    faults.heal();
    gate.open();
    stage.deserted(&name).await;
}

/// Dropping a guard never blocks and frees the name soon.
pub async fn a_dropped_guard_frees_the_name(stage: &Stage) {
    let name = stage.name("drop");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let options = stage.options().with_lease(Duration::from_secs(30));
    let guard = one.mutex(&name).with_options(options).lock().await.unwrap();
    // Dropped where there is no runtime at all.
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let next = two.mutex(&name).with_options(stage.options());
    let next = within(Duration::from_secs(5), "the name to be free", next.lock()).await.unwrap();
    assert_eq!(next.release().await.unwrap(), Released::Released);
}

/// Closing releases guards and withdraws waiters.
pub async fn closing_a_keeper_gives_everything_back(stage: &Stage) {
    let (held, waited) = (stage.name("close"), stage.name("close"));
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let options = stage.options().with_lease(Duration::from_secs(30));
    let other = two.mutex(&waited).with_options(stage.options()).lock().await.unwrap();
    let guard = one.mutex(&held).with_options(options.clone()).lock().await.unwrap();
    let mutex = one.mutex(&waited).with_options(options);
    let waiter = tokio::spawn(async move { mutex.lock().await.map(drop) });
    if stage.info().ordered {
        stage.waiters(&waited, 1).await;
    }
    within(Duration::from_secs(6), "closing", one.close()).await.unwrap();
    assert!(waiter.await.unwrap().is_err());
    assert!(!guard.is_held());
    stage.deserted(&held).await;
    drop(other);
    stage.deserted(&waited).await;
}

/// A program that ends right after dropping its guards leaves nothing: the
/// last keeper's drop waits for what is posted already.
pub async fn the_last_drop_waits_for_releases_already_posted(stage: &Stage) {
    let name = stage.name("last");
    let (keeper, faults) = stage.faulty().await;
    let options = stage.options().with_lease(Duration::from_secs(30));
    let guard = keeper.mutex(&name).with_options(options).lock().await.unwrap();
    // The engine takes its time, but less than the drop waits.
    let gate = stalled_releases(&faults);
    tokio::spawn(async move {
        gate.reached().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        gate.open();
    });
    tokio::task::spawn_blocking(move || {
        drop(guard);
        drop(keeper);
    })
    .await
    .unwrap();
    assert!(stage.status(&name).await.holders.is_empty(), "not given back by the drop");
}
