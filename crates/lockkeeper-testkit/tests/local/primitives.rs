//! Every primitive, over keepers of one process and over processes.

use std::time::Duration;

use lockkeeper::engine::Revoke;
use lockkeeper::{Cause, Clock, ErrorKind, Keeper, LockOptions, Opened, Released};

use crate::kit::{PATIENCE, keeper, until, waiters, worker};

async fn two() -> (tempfile::TempDir, Keeper, Keeper) {
    let temp = tempfile::tempdir().unwrap();
    let (one, two) = (keeper(temp.path()).await, keeper(temp.path()).await);
    (temp, one, two)
}

#[tokio::test]
async fn a_mutex_has_one_holder_and_hands_over() {
    let (_temp, one, two) = two().await;
    let guard = one.mutex("m").lock().await.unwrap();
    assert!(two.mutex("m").try_lock().await.unwrap().is_none());
    let waiting = two.mutex("m");
    let next = tokio::spawn(async move { waiting.lock().await.unwrap() });
    waiters(&one, "m", 1).await;
    let first = guard.token();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let guard = tokio::time::timeout(PATIENCE, next).await.unwrap().unwrap();
    assert!(guard.token() > first);
    assert!(guard.is_held());
    guard.verify().await.unwrap();
}

#[tokio::test]
async fn readers_share_and_a_writer_does_not() {
    let (_temp, one, two) = two().await;
    let (a, b) = (one.rwlock("rw").read().await.unwrap(), two.rwlock("rw").read().await.unwrap());
    let lock = one.rwlock("rw");
    let writer = tokio::spawn(async move { lock.write().await.unwrap() });
    waiters(&one, "rw", 1).await;
    assert!(two.rwlock("rw").try_read().await.unwrap().is_none(), "overtook a writer");
    drop((a, b));
    let writer = tokio::time::timeout(PATIENCE, writer).await.unwrap().unwrap();
    let token = writer.token();
    let lock = two.rwlock("rw");
    let reader = tokio::spawn(async move { lock.read().await.unwrap() });
    waiters(&one, "rw", 1).await;
    let down = writer.downgrade().await.unwrap();
    assert_eq!(down.token(), Some(token));
    let _reader = tokio::time::timeout(PATIENCE, reader).await.unwrap().unwrap();
}

#[tokio::test]
async fn permits_are_counted_over_keepers() {
    let (_temp, one, two) = two().await;
    let many = one.semaphore("s", 3).acquire_many(2).await.unwrap();
    let last = two.semaphore("s", 3).acquire().await.unwrap();
    assert!(one.semaphore("s", 3).try_acquire().await.unwrap().is_none());
    let wrong = two.semaphore("s", 4).acquire().await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Invalid);
    assert!(wrong.to_string().contains('3'), "{wrong}");
    drop(many);
    until("permits come back", async || {
        two.semaphore("s", 3).try_acquire_many(2).await.unwrap().is_some()
    })
    .await;
    drop(last);
    one.semaphore("s", 3).set_capacity(5).await.unwrap();
    assert_eq!(two.semaphore("s", 5).stored_capacity().await.unwrap(), Some(5));
}

#[tokio::test]
async fn a_latch_opens_for_everyone_once() {
    let (_temp, one, two) = two().await;
    let latch = two.latch("l");
    let waiting = tokio::spawn(async move { latch.wait().await.unwrap() });
    assert!(one.latch("l").set(2).await.unwrap());
    assert_eq!(one.latch("l").count_down("a").await.unwrap(), Some(1));
    assert_eq!(two.latch("l").count_down("a").await.unwrap(), Some(1));
    assert_eq!(two.latch("l").count_down("b").await.unwrap(), Some(0));
    let opened = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(opened, Opened::Open);
    one.latch("l").remove().await.unwrap();
    assert_eq!(two.latch("l").remaining().await.unwrap(), None);
    assert!(one.latch("l").set(1).await.unwrap());
    assert_eq!(one.latch("l").count_down("a").await.unwrap(), Some(0), "an id of the latch before");
}

#[tokio::test]
async fn a_fence_keeps_the_highest_token_over_keepers() {
    let (_temp, one, two) = two().await;
    let older = one.mutex("m").lock().await.unwrap();
    let old = older.token();
    let _ = older.release().await.unwrap();
    let new = two.mutex("m").lock().await.unwrap().token();
    two.fence("f").check(new).await.unwrap();
    assert_eq!(one.fence("f").check(old).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(one.fence("f").highest().await.unwrap(), Some(new));
}

#[tokio::test]
async fn a_broken_holder_is_told_and_the_name_passes_on() {
    let (_temp, one, two) = two().await;
    for how in [Revoke::Orderly, Revoke::Now] {
        let guard = one.mutex("m").lock().await.unwrap();
        let status = two.status("m").await.unwrap();
        two.revoke("m", &status.holders[0], how, "stuck").await.unwrap();
        let cause = tokio::time::timeout(PATIENCE, guard.lost()).await.unwrap();
        assert_eq!(cause, Cause::Broken { reason: "stuck".into() });
        drop(guard);
        let next = two.mutex("m").with_options(LockOptions::default().with_wait(PATIENCE));
        let _ = next.lock().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn names_are_listed_in_pages_and_any_text_is_a_name() {
    let (_temp, one, two) = two().await;
    let names = ["a", "a\0b", "a/b", "A", "ä", "日本", "%", "a b", "'; DROP TABLE names; --"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(one.mutex(name).lock().await.unwrap());
    }
    let mut seen = Vec::new();
    let mut from = None;
    loop {
        let page = two.list("", from, 2).await.unwrap();
        seen.extend(page.entries.into_iter().map(|entry| entry.name.to_string()));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    let mut expected: Vec<String> = names.map(String::from).into();
    expected.sort();
    assert_eq!(seen, expected);
    let some = two.list("a", None, 100).await.unwrap().entries;
    assert_eq!(some.len(), 4, "{some:?}");
}

#[tokio::test]
async fn processes_exclude_each_other_and_hand_over() {
    let temp = tempfile::tempdir().unwrap();
    let mut a = worker(temp.path());
    let mut b = worker(temp.path());
    let here = keeper(temp.path()).await;
    let first = a.lock("m", 30_000);
    assert!(here.mutex("m").try_lock().await.unwrap().is_none());
    b.want("m", 30_000);
    let status = waiters(&here, "m", 1).await;
    assert_eq!(status.holders.len(), 1);
    assert_eq!(status.holders[0].token, Some(first));
    let released = Clock::system().now();
    assert_eq!(a.ask("release"), "Released");
    let (second, at) = b.granted();
    assert!(second > first);
    let took = at.since(released);
    assert!(took < Duration::from_millis(100), "handed over after {took:?}");
    a.finish();
    b.finish();
    let status = here.status("m").await.unwrap();
    assert!(status.holders.is_empty() && status.waiters.is_empty(), "{status:?}");
}

/// New names go on above a floor, which is nobody's token.
#[tokio::test]
async fn a_token_is_shown_once_there_is_one() {
    let (_temp, one, two) = two().await;
    let shown = async |name: &str| two.status(name).await.unwrap().token;
    let deserted = async |name: &str| {
        until("given back", async || two.status(name).await.unwrap().holders.is_empty()).await;
    };
    assert_eq!(shown("rw").await, None, "never used");
    let lock = one.rwlock("rw");
    let read = lock.read().await.unwrap();
    assert!(lock.try_write().await.unwrap().is_none());
    assert_eq!(shown("rw").await, None, "read");
    drop(read);
    deserted("rw").await;
    assert_eq!(shown("rw").await, None, "released");
    let broken = lock.read().await.unwrap();
    let victim = two.status("rw").await.unwrap().holders.remove(0);
    two.revoke("rw", &victim, Revoke::Now, "no token").await.unwrap();
    drop(broken);
    deserted("rw").await;
    assert_eq!(shown("rw").await, None, "broken");
    let write = lock.write().await.unwrap();
    assert_eq!(shown("rw").await, Some(write.token()));
    drop(one.semaphore("permits", 2).acquire().await.unwrap());
    deserted("permits").await;
    assert_eq!(shown("permits").await, None, "a permit");
}

#[tokio::test]
async fn min_hold_keeps_the_name_closed_for_other_processes() {
    let (_temp, one, two) = two().await;
    let hold = Duration::from_millis(300);
    let options = LockOptions::default().with_min_hold(hold);
    let start = std::time::Instant::now();
    let guard = one.mutex("m").with_options(options).lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(two.mutex("m").try_lock().await.unwrap().is_none());
    let _guard = two.mutex("m").lock().await.unwrap();
    assert!(start.elapsed() >= hold, "{:?}", start.elapsed());
}

#[tokio::test]
async fn closing_leaves_no_files_of_ours() {
    let temp = tempfile::tempdir().unwrap();
    let keeper = keeper(temp.path()).await;
    let guard = keeper.mutex("m").lock().await.unwrap();
    keeper.close().await.unwrap();
    drop(guard);
    let files = || -> Vec<String> {
        let entries = std::fs::read_dir(temp.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    until("the files are gone", async || !files().iter().any(|file| file.starts_with("s-"))).await;
}
