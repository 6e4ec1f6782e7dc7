//! Seeing who holds what.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::Waiting;

use crate::stage::{Stage, eventually};

/// Holders and waiters, with who, where, since when and why.
pub async fn status_tells_who_holds_and_who_waits(stage: &Stage) {
    let name = stage.name("status");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let options = stage.options().with_note("release 2.14").with_who("alice");
    let guard = one.mutex(&name).with_options(options).lock().await.unwrap();
    let status = stage.status(&name).await;
    assert_eq!(status.kind, Some(lockkeeper::engine::Kind::Mutex));
    let [holder] = &status.holders[..] else { panic!("{status:?}") };
    assert_eq!(holder.claim, guard.claim_id());
    assert_eq!(holder.token, Some(guard.token()));
    assert_eq!((&*holder.about.who, &*holder.about.note), ("alice", "release 2.14"));
    assert_eq!(holder.about.pid, std::process::id());
    assert!(!holder.about.host.is_empty());
    assert!(holder.age < Duration::from_secs(60) && !holder.revoked);
    assert!(holder.lease_left <= stage.short_lease().max(stage.info().min_lease));
    if stage.info().ordered {
        let mutex = two.mutex(&name).with_options(stage.options().with_note("waits"));
        let waiter = tokio::spawn(async move { mutex.lock().await });
        stage.waiters(&name, 1).await;
        assert_eq!(stage.status(&name).await.waiters[0].about.note, "waits");
        waiter.abort();
        stage.waiters(&name, 0).await;
    }
    drop(guard);
    stage.deserted(&name).await;
}

/// The hook of a waiter hears of the holder and of its own position.
pub async fn a_waiter_is_told_whom_it_waits_for(stage: &Stage) {
    let name = stage.name("told");
    let (one, two) = (stage.keeper().await, stage.keeper().await);
    let options = stage.options().with_who("bob");
    let guard = one.mutex(&name).with_options(options).lock().await.unwrap();
    let told = Arc::new(Mutex::new(Vec::<Waiting>::new()));
    let mut waiters = Vec::new();
    for _ in 0..2 {
        let told = told.clone();
        let mutex = two.mutex(&name).with_options(stage.options());
        let mutex = mutex.on_wait(move |waiting| told.lock().unwrap().push(waiting.clone()));
        waiters.push(tokio::spawn(async move { mutex.lock().await.map(drop) }));
    }
    let both = async || {
        let told = told.lock().unwrap();
        let at = |ahead| told.iter().any(|waiting| waiting.ahead == Some(ahead));
        at(0) && at(1)
    };
    assert!(eventually(Duration::from_secs(8), both).await, "{:?}", told.lock().unwrap());
    let news = told.lock().unwrap()[0].clone();
    assert_eq!(news.name.as_str(), name);
    assert_eq!(news.holders[0].about.who, "bob");
    assert!(news.waited >= Duration::from_millis(100));
    drop(guard);
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}

/// Names in use are listed by prefix, page by page, each once.
pub async fn a_listing_has_pages(stage: &Stage) {
    let prefix = stage.name("list");
    let keeper = stage.keeper().await;
    let mut guards = Vec::new();
    let mut expected = Vec::new();
    for number in 0..7 {
        let name = format!("{prefix}/é{number}");
        guards.push(keeper.mutex(&name).with_options(stage.options()).lock().await.unwrap());
        expected.push(name);
    }
    let _elsewhere = keeper.mutex(stage.name("other")).lock().await.unwrap();
    let mut listed = Vec::new();
    let mut from = None;
    loop {
        let page = keeper.list(&prefix, from, 3).await.unwrap();
        assert!(page.entries.len() <= 3);
        for entry in page.entries {
            assert_eq!(entry.holders.len(), 1);
            listed.push(entry.name.as_str().to_owned());
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    listed.sort();
    assert_eq!(listed, expected);
    drop(guards);
    let empty = async || keeper.list(&prefix, None, 10).await.unwrap().entries.is_empty();
    assert!(eventually(Duration::from_secs(5), empty).await, "free names are still listed");
    assert!(keeper.list("", None, 0).await.is_err());
}
