//! P3 only the owner.

use std::time::Duration;

use lockkeeper::engine::{Found, Revoke};
use lockkeeper::layer::faults::Fault;
use lockkeeper::{Cause, State};

use crate::stage::{Stage, within};

/// A holder that was replaced and then releases does not free its successor.
pub async fn a_late_release_never_frees_a_later_holder(stage: &Stage) {
    let name = stage.name("late");
    let (one, faults) = stage.faulty().await;
    let two = stage.keeper().await;
    let first = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    faults.plan(|_| Some(Fault::Fail));
    let second = two.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    faults.heal();
    let _ = first.release().await.unwrap();
    second.verify().await.unwrap();
    let third = stage.keeper().await;
    assert!(third.mutex(&name).try_lock().await.unwrap().is_none(), "freed by a stranger");
}

/// A lapsed lease is not revived by a renewal, even if nobody else came.
pub async fn a_renewal_never_revives(stage: &Stage) {
    let name = stage.name("revive");
    let (one, faults) = stage.faulty().await;
    let guard = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    faults.plan(|_| Some(Fault::Fail));
    let limit = stage.short_lease() + Duration::from_secs(1);
    assert_eq!(within(limit, "the loss", guard.lost()).await, Cause::Expired);
    stage.deserted(&name).await;
    faults.heal();
    tokio::time::sleep(stage.short_lease()).await;
    assert_eq!(guard.state(), State::Lost(Cause::Expired));
    assert!(stage.status(&name).await.holders.is_empty(), "revived");
}

/// A revoke that names an earlier grant does not touch the present one.
pub async fn a_late_revoke_never_hits_a_later_holder(stage: &Stage) {
    let name = stage.name("late-revoke");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let first = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let victim = stage.status(&name).await.holders.remove(0);
    let _ = first.release().await.unwrap();
    let second = one.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    for how in [Revoke::Orderly, Revoke::Now] {
        let found = two.revoke(&name, &victim, how, "too late").await.unwrap();
        assert_eq!(found, Found::Nothing);
    }
    second.verify().await.unwrap();
}
