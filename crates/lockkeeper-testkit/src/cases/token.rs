//! P4 token.

use lockkeeper::engine::{Kind, Revoke};
use lockkeeper::layer::faults::Fault;
use lockkeeper::{ErrorKind, Reentry, Released, Token};

use crate::stage::Stage;

/// Each new holder's token is larger, whatever ended the one before.
pub async fn tokens_grow_over_release_expiry_and_break(stage: &Stage) {
    let name = stage.name("tokens");
    let (one, faults) = stage.faulty().await;
    let two = stage.keeper().await;
    let lock = async |keeper: &lockkeeper::Keeper| {
        keeper.mutex(&name).with_options(stage.options()).lock().await.unwrap()
    };
    let mut last = Token::ZERO;
    let mut grew = |token: Token, after: &str| {
        assert!(token > last, "{token} after {last}, after {after}");
        last = token;
    };
    let guard = lock(&one).await;
    grew(guard.token(), "nothing");
    let _ = guard.release().await.unwrap();
    let guard = lock(&one).await;
    grew(guard.token(), "a release");
    faults.plan(|_| Some(Fault::Fail));
    let next = lock(&two).await;
    grew(next.token(), "an expiry");
    faults.heal();
    for how in [Revoke::Orderly, Revoke::Now] {
        let victim = stage.status(&name).await.holders.remove(0);
        two.revoke(&name, &victim, how, "for the token").await.unwrap();
        let guard = lock(&one).await;
        grew(guard.token(), "a break");
        // The next round breaks this one.
        std::mem::forget(guard);
    }
}

/// Tokens rise strictly over many locks, and failed tries use none up wrongly.
pub async fn tokens_grow_over_many_cycles(stage: &Stage) {
    let name = stage.name("cycles");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let mut last = Token::ZERO;
    for round in 0..100 {
        let keeper = if round % 3 == 0 { &one } else { &two };
        let guard = keeper.mutex(&name).with_options(stage.options()).lock().await.unwrap();
        assert!(guard.token() > last, "{} after {last}", guard.token());
        last = guard.token();
        assert!(one.mutex(&name).try_lock().await.unwrap().is_none());
        let _ = guard.release().await.unwrap();
    }
}

/// Re-entry gets the same grant and token; the last guard gives it back; a
/// lost grant is not re-entered.
pub async fn re_entry_keeps_the_token(stage: &Stage) {
    let name = stage.name("reentry");
    let (keeper, faults) = stage.faulty().await;
    let me = Reentry::new();
    let mutex = keeper.mutex(&name).with_options(stage.options());
    let outer = mutex.lock_as(&me).await.unwrap();
    let calls = faults.calls();
    let inner = mutex.lock_as(&me).await.unwrap();
    let third = mutex.try_lock_as(&me).await.unwrap().unwrap();
    assert_eq!(faults.calls(), calls, "re-entry asked the engine");
    assert_eq!((outer.token(), inner.token()), (third.token(), third.token()));
    drop(third);
    assert!(mutex.try_lock_as(&Reentry::new()).await.unwrap().is_none());
    assert_eq!(outer.release().await.unwrap(), Released::StillHeld);
    assert!(stage.keeper().await.mutex(&name).try_lock().await.unwrap().is_none());

    faults.plan(|_| Some(Fault::Fail));
    let _ = inner.lost().await;
    let error = mutex.lock_as(&me).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    faults.heal();
    let _ = inner.release().await.unwrap();
    let again = mutex.lock_as(&me).await.unwrap();
    assert_eq!(again.release().await.unwrap(), Released::Released);
    stage.deserted(&name).await;

    // Two who share the value at the same time share the grant.
    let (one, two) = tokio::join!(mutex.lock_as(&me), mutex.lock_as(&me));
    assert_eq!(one.unwrap().token(), two.unwrap().token());
}

/// Who shares has no place in an order, so no number to show for it; nor has
/// a name that nobody has had for himself yet.
pub async fn readers_and_permits_have_no_token(stage: &Stage) {
    let keeper = stage.keeper().await;
    if !stage.refuses(Kind::ReadWrite).await {
        let name = stage.name("no-token");
        let lock = keeper.rwlock(&name).with_options(stage.options());
        let read = lock.read().await.unwrap();
        assert_eq!(read.token(), None);
        let status = stage.status(&name).await;
        assert_eq!((status.token, status.holders[0].token), (None, None), "{status:?}");
        drop(read);
        let write = lock.write().await.unwrap();
        let token = write.token();
        assert_eq!(stage.status(&name).await.token, Some(token));
        let read = write.downgrade().await.unwrap();
        assert_eq!(read.token(), Some(token), "stepping down keeps the token");
    }
    if !stage.refuses(Kind::Semaphore).await {
        let name = stage.name("no-token");
        let permit = keeper.semaphore(&name, 2).with_options(stage.options()).acquire().await;
        let permit = permit.unwrap();
        let status = stage.status(&name).await;
        assert_eq!((status.token, status.holders[0].token), (None, None), "{status:?}");
        assert_eq!(status.holders[0].claim, permit.claim_id());
    }
}

/// In the blocking face a thread re-enters what it holds, and another does not.
pub async fn a_thread_re_enters_its_lock(stage: &Stage) {
    let (url, name, options) = (stage.url().to_owned(), stage.name("thread"), stage.options());
    let work = move || {
        let keeper = lockkeeper::blocking::Keeper::connect(&url).unwrap();
        let mutex = keeper.mutex(&name).with_options(options);
        let outer = mutex.lock().unwrap();
        let inner = mutex.lock().unwrap();
        assert_eq!(outer.token(), inner.token());
        let elsewhere = mutex.clone();
        let other = std::thread::spawn(move || elsewhere.try_lock().unwrap().is_none());
        assert!(other.join().unwrap(), "another thread came in");
        assert_eq!(inner.release().unwrap(), Released::StillHeld);
        assert_eq!(outer.release().unwrap(), Released::Released);
        let other = std::thread::spawn(move || mutex.try_lock().unwrap().is_some());
        assert!(other.join().unwrap(), "not free after the last release");
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}
