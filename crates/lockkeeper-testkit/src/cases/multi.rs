//! P11 all or nothing.

use std::time::Duration;

use lockkeeper::engine::Revoke;
use lockkeeper::{Cause, ErrorKind, Keeper, Memory, Multi, Released, State};

use crate::stage::{Stage, within};

/// Every name or none: a part that is busy gives the others back.
pub async fn a_multi_lock_holds_every_name_or_none(stage: &Stage) {
    let names = [stage.name("c"), stage.name("a"), stage.name("b")];
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let all = one.multi(&names).with_options(stage.options()).lock().await.unwrap();
    assert!(all.is_held());
    let tokens = all.tokens().count();
    assert_eq!(tokens, 3);
    for name in &names {
        assert!(two.mutex(name).try_lock().await.unwrap().is_none());
    }
    let _ = all.release().await.unwrap();

    // The last one in the order, so that the others have been got by then.
    let busy = two.mutex(&names[0]).with_options(stage.options()).lock().await.unwrap();
    assert!(one.multi(&names).try_lock().await.unwrap().is_none());
    for name in &names[1..] {
        stage.deserted(name).await;
    }
    let options = stage.options().with_wait(Duration::from_millis(200));
    let error = one.multi(&names).with_options(options).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    for name in &names[1..] {
        stage.deserted(name).await;
    }
    drop(busy);
}

/// Two that ask in opposite orders both get their turn.
pub async fn opposite_orders_do_not_deadlock(stage: &Stage) {
    let (a, b) = (stage.name("a"), stage.name("b"));
    let mut tasks = Vec::new();
    for names in [[a.clone(), b.clone()], [b, a]] {
        let keeper = stage.keeper().await;
        let multi = keeper.multi(names).with_options(stage.options());
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let _ = multi.lock().await.unwrap().release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        within(Duration::from_secs(60), "opposite orders", task).await.unwrap();
    }
}

/// One lost part is a lost whole.
pub async fn a_multi_lock_is_lost_when_any_part_is(stage: &Stage) {
    let names = [stage.name("x"), stage.name("y")];
    let keeper = stage.keeper().await;
    let all = keeper.multi(&names).with_options(stage.options()).lock().await.unwrap();
    let victim = stage.status(&names[1]).await.holders.remove(0);
    keeper.revoke(&names[1], &victim, Revoke::Orderly, "one of two").await.unwrap();
    let cause = within(Duration::from_secs(5), "the loss", all.lost()).await;
    assert!(matches!(cause, Cause::Broken { .. }), "{cause:?}");
    assert!(!all.is_held());
    assert_eq!(all.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(all.state(), State::Lost(cause.clone()));
    assert_eq!(all.release().await.unwrap(), Released::AlreadyLost(cause));
    stage.deserted(&names[0]).await;
    stage.deserted(&names[1]).await;
}

/// Nothing, too much, or the same name twice is refused unsent.
pub async fn a_multi_lock_refuses_nonsense(stage: &Stage) {
    let (keeper, faults) = stage.faulty().await;
    let name = stage.name("twice");
    let none: [&str; 0] = [];
    for multi in [keeper.multi(none), keeper.multi([&name, &name]), keeper.multi(["ok", ""])] {
        assert_eq!(multi.lock().await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(multi.try_lock().await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let many = keeper.multi((0..2000).map(|number| number.to_string()));
    assert_eq!(many.lock().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(faults.calls(), 0, "something was sent");
}

/// The parts may live on different engines.
pub async fn a_multi_lock_spans_engines(stage: &Stage) {
    let name = stage.name("span");
    let here = stage.keeper().await;
    let there = Keeper::new(Memory::private()).await.unwrap();
    let parts = [there.mutex(&name), here.mutex(&name)];
    let both = Multi::of(parts.clone()).with_options(stage.options());
    let guard = both.lock().await.unwrap();
    for part in &parts {
        assert!(part.try_lock().await.unwrap().is_none());
    }
    let _ = guard.release().await.unwrap();
    for part in &parts {
        assert!(part.try_lock().await.unwrap().is_some());
    }
}
