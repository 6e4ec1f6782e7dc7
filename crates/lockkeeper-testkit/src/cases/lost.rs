//! P5 lost: held, at risk, lost, and told in time.

use std::time::{Duration, Instant};

use lockkeeper::engine::Revoke;
use lockkeeper::layer::faults::{Fault, Gate, Method};
use lockkeeper::{Cause, Clock, ErrorKind, Keeper, Memory, Released, RunError, State};

use crate::stage::{Stage, eventually, within};
use crate::starved::lateness;

/// A guard that was just granted is held, and its loss is not signalled.
pub async fn a_fresh_guard_is_held(stage: &Stage) {
    let name = stage.name("fresh");
    let keeper = stage.keeper().await;
    let guard = keeper.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    assert_eq!(guard.state(), State::Held);
    guard.check().unwrap();
    let longer = stage.short_lease() * 2;
    assert!(tokio::time::timeout(longer, guard.lost()).await.is_err(), "a renewed guard is lost");
    assert_eq!(guard.state(), State::Held);
}

/// How late `lost()` may be, while the process runs.
const PROMPT: Duration = Duration::from_millis(50);

/// An engine that stops answering: at risk at half the time, lost when the
/// grant's own time is over, which is a margin before the engine's lease is.
pub async fn a_silent_engine_is_at_risk_then_lost_in_time(stage: &Stage) {
    let name = stage.name("silence");
    let (keeper, faults) = stage.faulty().await;
    let (lease, clock) = (stage.short_lease(), Clock::system());
    let margin = lease / 4;
    let gate = Gate::closed();
    let stall = gate.clone();
    // Only the grant is answered, so it ends when its answer said.
    faults.plan(move |call| {
        (call.method != Method::Acquire).then(|| Fault::StallBefore(stall.clone()))
    });
    let mutex = keeper.mutex(&name).with_options(stage.options().with_margin(margin));
    let guard = mutex.lock().await.unwrap();
    let (granted, end) = (clock.now(), guard.valid_until());
    let latest = granted + lease - margin;
    assert!(end <= latest, "trusted for {:?} too long", end.since(latest));

    let half = granted + end.since(granted) / 2;
    let limit = lease + Duration::from_secs(10);
    let (risk, late) = within(limit, "the risk", lateness(half, guard.at_risk())).await;
    assert!(late <= PROMPT, "warned {late:?} late");
    // Only whoever was kept from running until then finds it lost already.
    let excused = clock.now() >= end;
    assert!(risk == State::AtRisk || excused, "no warning before the loss: {risk:?}");
    let (cause, late) = within(limit, "the loss", lateness(end, guard.lost())).await;
    assert_eq!(cause, Cause::Expired);
    assert!(clock.now() >= end, "{:?} early", end.since(clock.now()));
    assert!(excused || late <= PROMPT, "told {late:?} late");
    assert!(!guard.is_held());
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    gate.open();
    faults.heal();
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost(Cause::Expired));
}

/// An outage shorter than the lease costs a warning, not the lock.
pub async fn a_short_outage_is_at_risk_and_then_held_again(stage: &Stage) {
    let name = stage.name("outage");
    let (keeper, faults) = stage.faulty().await;
    let options = stage.options().with_lease(stage.short_lease() * 2);
    let guard = keeper.mutex(&name).with_options(options).lock().await.unwrap();
    faults.plan(|_| Some(Fault::Fail));
    assert_eq!(within(stage.short_lease() * 2, "the risk", guard.at_risk()).await, State::AtRisk);
    faults.heal();
    let held = async || guard.state() == State::Held;
    assert!(eventually(stage.short_lease(), held).await, "{:?}", guard.state());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

/// A broken holder is told so, with the reason, at once.
pub async fn a_broken_holder_learns_the_reason(stage: &Stage) {
    let name = stage.name("broken");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let guard = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let victim = stage.status(&name).await.holders.remove(0);
    assert_eq!(victim.token, Some(guard.token()));
    two.revoke(&name, &victim, Revoke::Orderly, "stuck deploy").await.unwrap();
    let cause = within(stage.short_lease(), "learning of the break", guard.lost()).await;
    let Cause::Broken { reason } = &cause else { panic!("{cause:?}") };
    assert_eq!(&**reason, "stuck deploy");
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost(cause));
    stage.deserted(&name).await;
}

/// Broken in order, the name passes on when the owner lets go, not before.
pub async fn a_broken_holder_keeps_others_out_until_it_lets_go(stage: &Stage) {
    let name = stage.name("orderly");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let long = stage.options().with_lease(Duration::from_secs(30));
    let guard = one.mutex(&name).with_options(long).lock().await.unwrap();
    let waiter = two.mutex(&name).with_options(stage.options());
    let waiter = tokio::spawn(async move { waiter.lock().await });
    let victim = stage.status(&name).await.holders.remove(0);
    two.revoke(&name, &victim, Revoke::Orderly, "please").await.unwrap();
    let _ = within(Duration::from_secs(5), "learning of the break", guard.lost()).await;
    assert!(!waiter.is_finished(), "passed on while the owner winds up");
    assert!(stage.status(&name).await.holders[0].revoked);
    drop(guard);
    let next = within(Duration::from_secs(5), "the next holder", waiter).await.unwrap().unwrap();
    assert!(Some(next.token()) > victim.token);
}

/// Broken at once, the name is free at once, and the owner is told.
pub async fn break_now_frees_at_once(stage: &Stage) {
    let name = stage.name("now");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let long = stage.options().with_lease(Duration::from_secs(30));
    let guard = one.mutex(&name).with_options(long).lock().await.unwrap();
    let victim = stage.status(&name).await.holders.remove(0);
    two.revoke(&name, &victim, Revoke::Now, "on fire").await.unwrap();
    let next = two.mutex(&name).try_lock().await.unwrap().expect("free at once");
    assert!(next.token() > guard.token());
    let cause = within(Duration::from_secs(5), "learning of the break", guard.lost()).await;
    assert!(matches!(cause, Cause::Broken { .. }), "{cause:?}");
    drop(guard);
    next.verify().await.unwrap();
}

/// At max-hold the guard is lost first, then the name is free.
pub async fn held_too_long_is_lost_then_released(stage: &Stage) {
    let name = stage.name("max-hold");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let max_hold = Duration::from_millis(400);
    // A lease so long that only a release can free the name in time.
    let options = stage.options().with_lease(Duration::from_secs(30)).with_max_hold(max_hold);
    let start = Instant::now();
    let guard = one.mutex(&name).with_options(options).lock().await.unwrap();
    let next = two.mutex(&name).with_options(stage.options());
    let next = within(Duration::from_secs(10), "the release", next.lock()).await.unwrap();
    assert!(!guard.is_held(), "both hold {name}");
    assert!(start.elapsed() >= max_hold);
    assert_eq!(guard.lost().await, Cause::HeldTooLong);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost(Cause::HeldTooLong));
    next.verify().await.unwrap();
}

/// Guards of a closed keeper are lost, not left in doubt.
pub async fn a_closed_keeper_loses_its_guards(stage: &Stage) {
    let name = stage.name("closed");
    let keeper = stage.keeper().await;
    let guard = keeper.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    keeper.close().await.unwrap();
    assert_eq!(guard.state(), State::Lost(Cause::EngineGone));
    assert_eq!(guard.lost().await, Cause::EngineGone);
    let error = keeper.mutex(&name).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    stage.deserted(&name).await;
}

/// `verify` finds out what only the engine knows.
pub async fn verify_asks_the_engine(stage: &Stage) {
    let name = stage.name("verify");
    let (one, faults) = stage.faulty().await;
    let two = stage.keeper().await;
    let long = stage.options().with_lease(Duration::from_secs(30));
    let guard = one.mutex(&name).with_options(long).lock().await.unwrap();
    guard.verify().await.unwrap();
    faults.hear(|_| false);
    let victim = stage.status(&name).await.holders.remove(0);
    two.revoke(&name, &victim, Revoke::Now, "unheard").await.unwrap();
    assert!(guard.is_held(), "no push came, so the guard cannot know");
    let error = guard.verify().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!guard.is_held());
}

/// The closure form drops the work at its next await once the lock is lost.
pub async fn work_is_stopped_when_its_lock_is_lost(stage: &Stage) {
    let name = stage.name("scope");
    let keeper = stage.keeper().await;
    let options = stage.options().with_max_hold(Duration::from_millis(300));
    let mutex = keeper.mutex(&name).with_options(options);
    let work = mutex.run(|scope| async move {
        assert!(scope.token().is_some() && scope.is_held());
        std::future::pending::<Result<(), String>>().await
    });
    let error = within(Duration::from_secs(10), "stopping the work", work).await.unwrap_err();
    let RunError::Lost { cause: Cause::HeldTooLong, output: None } = error else {
        panic!("{error:?}")
    };
    let failed = keeper.mutex(&name).run(|_| async { Err::<(), _>("mine") }).await.unwrap_err();
    assert!(matches!(failed, RunError::Work("mine")), "{failed:?}");
    let done = keeper.mutex(&name).run(|_| async { Ok::<_, String>(7) }).await.unwrap();
    assert_eq!(done, 7);
    stage.deserted(&name).await;
}

/// Work that blocks its thread past the end is reported, with its output.
pub async fn blocked_work_does_not_pass_for_done(stage: &Stage) {
    let name = stage.name("blocked");
    let keeper = stage.keeper().await;
    let options = stage.options().with_max_hold(Duration::from_millis(200));
    let mutex = keeper.mutex(&name).with_options(options);
    let work = mutex.run(|_| async {
        std::thread::sleep(Duration::from_millis(500));
        Ok::<_, String>("done")
    });
    let error = work.await.unwrap_err();
    let RunError::Lost { output: Some(Ok("done")), .. } = error else { panic!("{error:?}") };
}

/// A panic inside the engine is one failed call, never silence.
pub async fn an_engine_that_panics_loses_nothing_it_still_has(stage: &Stage) {
    let name = stage.name("panic");
    let (keeper, faults) = stage.faulty().await;
    let guard = keeper.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    faults.plan(|call| (call.method == Method::Renew).then_some(Fault::PanicBefore));
    within(stage.short_lease(), "the risk", guard.at_risk()).await;
    faults.heal();
    let held = async || guard.state() == State::Held;
    assert!(eventually(stage.short_lease(), held).await, "{:?}", guard.state());

    faults.plan(|call| (call.method == Method::Acquire).then_some(Fault::PanicAfter));
    let other = stage.name("panic");
    let error = keeper.mutex(&other).with_options(stage.options()).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    faults.heal();
    stage.deserted(&other).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);

    // The rest of the process is not concerned.
    let elsewhere = Keeper::new(Memory::private()).await.unwrap();
    assert!(elsewhere.mutex("free").try_lock().await.unwrap().is_some());
}
