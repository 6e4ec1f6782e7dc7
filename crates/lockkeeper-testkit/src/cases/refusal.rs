//! P12 refusal, and bad input.

use std::time::Duration;

use lockkeeper::engine::Kind;
use lockkeeper::{ErrorKind, LockOptions};

use crate::stage::Stage;

/// What the engine does not list it refuses; what it lists it does.
pub async fn what_the_engine_cannot_do_is_refused_by_name(stage: &Stage) {
    let kinds = [Kind::Mutex, Kind::ReadWrite, Kind::Semaphore, Kind::Latch, Kind::Fence];
    assert!(stage.info().kinds.contains(&Kind::Mutex), "an engine without a mutex is none");
    for kind in kinds {
        if stage.refuses(kind).await {
            continue;
        }
        let (name, keeper) = (stage.name("kind"), stage.keeper().await);
        match kind {
            Kind::Mutex => drop(keeper.mutex(&name).lock().await.unwrap()),
            Kind::ReadWrite => drop(keeper.rwlock(&name).read().await.unwrap()),
            Kind::Semaphore => drop(keeper.semaphore(&name, 1).acquire().await.unwrap()),
            Kind::Latch => assert!(keeper.latch(&name).set(1).await.unwrap()),
            Kind::Fence => keeper.fence(&name).check(lockkeeper::Token::new(1)).await.unwrap(),
        }
    }
}

/// A name has one kind; another one on it is a mistake, and is named.
pub async fn another_kind_on_a_name_is_invalid(stage: &Stage) {
    let name = stage.name("kinds");
    let keeper = stage.keeper().await;
    let guard = keeper.mutex(&name).with_options(stage.options()).lock().await.unwrap();
    let other = stage.keeper().await;
    let check = |kind: Kind, outcome: lockkeeper::Result<()>| {
        if stage.info().kinds.contains(&kind) {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{kind}: {error}");
            assert!(error.to_string().contains("mutex"), "{error}");
        }
    };
    check(Kind::ReadWrite, other.rwlock(&name).try_read().await.map(drop));
    check(Kind::ReadWrite, other.rwlock(&name).write().await.map(drop));
    check(Kind::Semaphore, other.semaphore(&name, 2).try_acquire().await.map(drop));
    check(Kind::Latch, other.latch(&name).set(1).await.map(drop));
    guard.verify().await.unwrap();
}

/// Another capacity than the stored one is a mistake, and is named.
pub async fn another_capacity_is_invalid_and_named(stage: &Stage) {
    if stage.refuses(Kind::Semaphore).await {
        return;
    }
    let name = stage.name("capacities");
    let keeper = stage.keeper().await;
    let permit = keeper.semaphore(&name, 3).with_options(stage.options()).acquire().await.unwrap();
    let error = keeper.semaphore(&name, 5).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains('3'), "{error}");
    for (count, of) in [(0, 3), (4, 3), (1, 0), (1, u32::MAX)] {
        let error = keeper.semaphore(&name, of).acquire_many(count).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    drop(permit);
}

/// Upgrading would deadlock two readers, so it is refused with a way out.
pub async fn upgrading_is_refused(stage: &Stage) {
    if stage.refuses(Kind::ReadWrite).await {
        return;
    }
    let keeper = stage.keeper().await;
    let lock = keeper.rwlock(stage.name("upgrade")).with_options(stage.options());
    let read = lock.read().await.unwrap();
    let error = read.upgrade().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("downgrade"), "{error}");
    assert!(read.is_held());
}

/// Bad names and options are told before anything is sent.
pub async fn bad_names_and_options_are_refused_unsent(stage: &Stage) {
    let (keeper, faults) = stage.faulty().await;
    for name in [String::new(), "x".repeat(513)] {
        for error in [
            keeper.mutex(&name).lock().await.map(drop).unwrap_err(),
            keeper.mutex(&name).try_lock().await.map(drop).unwrap_err(),
            keeper.latch(&name).set(1).await.map(drop).unwrap_err(),
            keeper.fence(&name).highest().await.map(drop).unwrap_err(),
            keeper.status(&name).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
    }
    let bad = [
        LockOptions::default().with_lease(Duration::from_millis(1)),
        LockOptions::default().with_max_waiters(0),
        LockOptions::default().with_margin(Duration::from_secs(29)),
    ];
    for options in bad {
        let mutex = keeper.mutex("fine").with_options(options);
        assert_eq!(mutex.lock().await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(faults.calls(), 0, "something was sent");
}

/// Names of any text up to the limit work, and never meet each other.
pub async fn any_text_is_a_name_and_all_differ(stage: &Stage) {
    let keeper = stage.keeper().await;
    let unique = stage.name("n");
    let long = |text: &str| text.repeat((512 - unique.len() - 1) / text.len());
    let names = [
        "a", "A", "é", "É", "e\u{301}", " ", "  ", "a ", " a", "a/b", "a%2Fb", "a%2fb", "..", ".",
        "*", "?", "{a}", "[a]", "'", "\"", "\\", "\n", "\0", "日本", "🔒", "a:b", "a\tb", "%", "_",
        "-",
    ];
    let names = names.iter().map(|text| (*text).to_owned());
    let names = names.chain([long("x"), long("é"), long("日")]);
    let mut guards = Vec::new();
    for name in names.map(|text| format!("{unique}{text}")) {
        let guard = keeper.mutex(&name).with_options(stage.options()).try_lock().await.unwrap();
        let guard = guard.unwrap_or_else(|| panic!("{name:?} met another name"));
        assert_eq!(stage.status(&name).await.holders[0].claim, guard.claim_id());
        guards.push(guard);
    }
    let listed = keeper.list(&unique, None, 1000).await.unwrap().entries;
    assert_eq!(listed.len(), guards.len());
    for guard in &guards {
        assert!(listed.iter().any(|entry| entry.name == *guard.name()), "{:?}", guard.name());
    }
}
