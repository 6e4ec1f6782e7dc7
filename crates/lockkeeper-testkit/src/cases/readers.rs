//! Read/write locks and semaphores.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use lockkeeper::ErrorKind;
use lockkeeper::engine::Kind;
use lockkeeper::layer::faults::Fault;

use crate::stage::{Stage, within};

/// Readers and writers of several keepers: many readers or one writer.
pub async fn readers_share_and_writers_do_not(stage: &Stage) {
    if stage.refuses(Kind::ReadWrite).await {
        return;
    }
    let name = stage.name("rw");
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = Vec::new();
    for number in 0..4 {
        let keeper = stage.keeper().await;
        for writes in [false, number % 2 == 0] {
            let lock = keeper.rwlock(&name).with_options(stage.options());
            let inside = inside.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..15 {
                    if writes {
                        let guard = lock.write().await.unwrap();
                        let before = inside.fetch_sub(1000, Ordering::SeqCst);
                        assert_eq!(before, 0, "a writer is not alone");
                        tokio::task::yield_now().await;
                        guard.check().unwrap();
                        inside.fetch_add(1000, Ordering::SeqCst);
                        let _ = guard.release().await.unwrap();
                    } else {
                        let guard = lock.read().await.unwrap();
                        let before = inside.fetch_add(1, Ordering::SeqCst);
                        assert!(before >= 0, "a reader beside a writer");
                        tokio::task::yield_now().await;
                        guard.check().unwrap();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        let _ = guard.release().await.unwrap();
                    }
                }
            }));
        }
    }
    for task in tasks {
        within(Duration::from_secs(120), "readers and writers", task).await.unwrap();
    }
    let keeper = stage.keeper().await;
    let lock = keeper.rwlock(&name).with_options(stage.options());
    let (one, two) = (lock.read().await.unwrap(), lock.try_read().await.unwrap());
    assert!(two.is_some() && lock.try_write().await.unwrap().is_none());
    drop((one, two));
    stage.deserted(&name).await;
}

/// A reader that comes after a waiting writer waits behind it.
pub async fn readers_wait_behind_a_waiting_writer(stage: &Stage) {
    if stage.refuses(Kind::ReadWrite).await || !stage.info().ordered {
        return;
    }
    let name = stage.name("rw-order");
    let (one, two, three) = (stage.keeper().await, stage.keeper().await, stage.keeper().await);
    let read = one.rwlock(&name).with_options(stage.options()).read().await.unwrap();
    let lock = two.rwlock(&name).with_options(stage.options());
    let writer = tokio::spawn(async move { lock.write().await });
    stage.waiters(&name, 1).await;
    let lock = three.rwlock(&name).with_options(stage.options());
    assert!(lock.try_read().await.unwrap().is_none(), "a try overtook the writer");
    let reader = tokio::spawn(async move { lock.read().await });
    stage.waiters(&name, 2).await;
    drop(read);
    let write = within(Duration::from_secs(8), "the writer", writer).await.unwrap().unwrap();
    assert!(!reader.is_finished(), "a reader beside the writer");
    drop(write);
    let _ = within(Duration::from_secs(8), "the reader", reader).await.unwrap().unwrap();
}

/// Stepping down lets waiting readers in, and no writer in between.
pub async fn stepping_down_lets_readers_in_and_no_writer(stage: &Stage) {
    if stage.refuses(Kind::ReadWrite).await {
        return;
    }
    let name = stage.name("down");
    let (one, two, three) = (stage.keeper().await, stage.keeper().await, stage.keeper().await);
    let write = one.rwlock(&name).with_options(stage.options()).write().await.unwrap();
    let lock = two.rwlock(&name).with_options(stage.options());
    let reader = tokio::spawn(async move { lock.read().await });
    if stage.info().ordered {
        stage.waiters(&name, 1).await;
    }
    let lock = three.rwlock(&name).with_options(stage.options());
    let writer = tokio::spawn(async move { lock.write().await });
    if stage.info().ordered {
        stage.waiters(&name, 2).await;
    }
    let token = write.token();
    let read = write.downgrade().await.unwrap();
    assert_eq!(read.token(), Some(token));
    if stage.info().ordered {
        let other = within(Duration::from_secs(8), "the waiting reader", reader).await;
        let other = other.unwrap().unwrap();
        assert!(!writer.is_finished() && read.is_held() && other.is_held());
        read.verify().await.unwrap();
        drop((read, other));
    } else {
        // Whichever of the two is next, the other follows.
        drop(read);
        tokio::spawn(async move { drop(reader.await) });
    }
    let write = within(Duration::from_secs(12), "the writer", writer).await.unwrap().unwrap();
    assert!(write.token() > token);
}

/// Never more permits out than there are, over many tasks and keepers.
pub async fn permits_never_exceed_the_capacity(stage: &Stage) {
    if stage.refuses(Kind::Semaphore).await {
        return;
    }
    let name = stage.name("permits");
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = Vec::new();
    for number in 0..9 {
        let keeper = stage.keeper().await;
        let semaphore = keeper.semaphore(&name, 4).with_options(stage.options());
        let (inside, count) = (inside.clone(), number % 3 + 1);
        tasks.push(tokio::spawn(async move {
            for _ in 0..15 {
                let permits = semaphore.acquire_many(count).await.unwrap();
                assert_eq!(permits.count(), count);
                let now = inside.fetch_add(i64::from(count), Ordering::SeqCst) + i64::from(count);
                assert!(now <= 4, "{now} permits of 4 are out");
                tokio::task::yield_now().await;
                permits.check().unwrap();
                inside.fetch_sub(i64::from(count), Ordering::SeqCst);
                let _ = permits.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        within(Duration::from_secs(120), "a permit", task).await.unwrap();
    }
    stage.deserted(&name).await;
}

/// A claim for many permits at the head holds back the small ones behind it.
pub async fn a_large_claim_is_not_starved(stage: &Stage) {
    if stage.refuses(Kind::Semaphore).await || !stage.info().ordered {
        return;
    }
    let name = stage.name("large");
    let (one, two, three) = (stage.keeper().await, stage.keeper().await, stage.keeper().await);
    let semaphore =
        |keeper: &lockkeeper::Keeper| keeper.semaphore(&name, 3).with_options(stage.options());
    let first = semaphore(&one).acquire().await.unwrap();
    let large = semaphore(&two);
    let large = tokio::spawn(async move { large.acquire_many(3).await });
    stage.waiters(&name, 1).await;
    assert!(semaphore(&three).try_acquire().await.unwrap().is_none(), "overtook the large one");
    let small = semaphore(&three);
    let small = tokio::spawn(async move { small.acquire().await });
    stage.waiters(&name, 2).await;
    drop(first);
    let large = within(Duration::from_secs(8), "the large claim", large).await.unwrap().unwrap();
    assert!(!small.is_finished());
    drop(large);
    let _ = within(Duration::from_secs(8), "the small claim", small).await.unwrap().unwrap();
}

/// The capacity is stored: another one is refused and named; changing it is
/// explicit and lets waiters in.
pub async fn a_changed_capacity_is_told(stage: &Stage) {
    if stage.refuses(Kind::Semaphore).await {
        return;
    }
    let name = stage.name("capacity");
    let keeper = stage.keeper().await;
    let mut semaphore = keeper.semaphore(&name, 1).with_options(stage.options());
    assert_eq!(semaphore.stored_capacity().await.unwrap(), None);
    let permit = semaphore.acquire().await.unwrap();
    assert_eq!(semaphore.stored_capacity().await.unwrap(), Some(1));
    let waiter = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await }
    });
    if stage.info().ordered {
        stage.waiters(&name, 1).await;
    }
    semaphore.set_capacity(2).await.unwrap();
    if stage.info().ordered {
        let second = within(Duration::from_secs(8), "the new permit", waiter).await.unwrap();
        let second = second.unwrap();
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        drop(second);
    } else {
        waiter.abort();
    }
    let error = keeper.semaphore(&name, 1).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains('2'), "{error}");
    drop(permit);
    assert_eq!(semaphore.set_capacity(0).await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// A permit whose holder fell silent comes back after its lease.
pub async fn permits_of_the_dead_come_back(stage: &Stage) {
    if stage.refuses(Kind::Semaphore).await {
        return;
    }
    let name = stage.name("dead-permit");
    let (dead, faults) = stage.faulty().await;
    let keeper = stage.keeper().await;
    let semaphore = dead.semaphore(&name, 2).with_options(stage.options());
    let lost = semaphore.acquire_many(2).await.unwrap();
    faults.plan(|_| Some(Fault::Fail));
    let semaphore = keeper.semaphore(&name, 2).with_options(stage.options());
    let limit = stage.short_lease() + Duration::from_secs(4);
    let permits = within(limit, "the permits", semaphore.acquire_many(2)).await.unwrap();
    assert!(permits.is_held() && !lost.is_held());
}
