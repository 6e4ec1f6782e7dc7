//! What goes wrong elsewhere with locks in databases, and must not here.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Cause, Released, State};
use lockkeeper_testkit::child::Worker;
use lockkeeper_testkit::{eventually, within};

use crate::kit::{Place, Strategy, lease, locked, until_lost};

/// A dropped guard is given back: to other keepers, and as a new grant to its
/// own; and no session goes on with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_leaks_no_lock_into_a_session_that_is_used_again() {
    for place in Place::all() {
        let (one, two) = (place.keeper().await, place.keeper().await);
        let mut last = None;
        for round in 0..10 {
            let guard = locked(&one, "dropped", lease(30_000)).await;
            assert!(Some(guard.token()) > last, "{place:?}: the same grant again");
            last = Some(guard.token());
            drop(guard);
            let other = if round % 2 == 0 { &two } else { &one };
            let mutex = other.mutex("dropped").with_options(lease(30_000));
            let next = within(Duration::from_secs(3), "the dropped lock", mutex.lock()).await;
            let next = next.unwrap();
            assert!(Some(next.token()) > last, "{place:?}");
            last = Some(next.token());
            assert_eq!(next.release().await.unwrap(), Released::Released);
        }
        let quiet = async || place.open_transactions() == 0;
        assert!(
            eventually(Duration::from_secs(3), quiet).await,
            "{place:?}: a transaction is open"
        );
    }
}

/// A waiter that was cancelled does not become a holder without an owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_waiter_owns_nothing() {
    for place in Place::all() {
        let (one, two, three) = (place.keeper().await, place.keeper().await, place.keeper().await);
        let guard = locked(&one, "cancelled", lease(30_000)).await;
        for _ in 0..3 {
            let mutex = two.mutex("cancelled").with_options(lease(30_000));
            let waiter = tokio::spawn(async move { mutex.lock().await });
            tokio::time::sleep(Duration::from_millis(200)).await;
            waiter.abort();
            assert!(waiter.await.unwrap_err().is_cancelled());
        }
        // Its session or place must be gone before the holder lets go, or it
        // would win.
        let only_holder = async || match place.strategy {
            Strategy::Lease => three.status("cancelled").await.unwrap().waiters.is_empty(),
            Strategy::Session => place.open_transactions() == 1,
        };
        assert!(eventually(Duration::from_secs(3), only_holder).await, "{place:?}: it still waits");
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        let third = three.mutex("cancelled").try_lock().await.unwrap();
        assert!(third.is_some(), "{place:?}: the abandoned session holds it");
    }
}

/// Whoever ends the session that holds ends the lock, and the holder is told
/// at once, before anybody else has it; sessions of leases hold nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_session_is_lost_at_once_and_said_so() {
    for place in Place::all() {
        place.settled().await;
        let (one, two) = (place.keeper().await, place.keeper().await);
        let guard = Arc::new(locked(&one, "killed", lease(30_000)).await);
        if place.strategy == Strategy::Lease {
            place.kill_open_transactions();
            tokio::time::sleep(Duration::from_millis(500)).await;
            guard.verify().await.unwrap();
            assert_eq!(guard.state(), State::Held, "{place:?}");
            continue;
        }
        let (first, mutex) = (guard.clone(), two.mutex("killed").with_options(lease(30_000)));
        let next = tokio::spawn(async move {
            let next = mutex.lock().await.unwrap();
            (next, first.is_held())
        });
        let waits = async || place.open_transactions() == 2;
        assert!(eventually(Duration::from_secs(3), waits).await, "{place:?}");
        let killed = Instant::now();
        // Of the two, the one that waits is busy and not to be killed.
        let id = place.sql("SELECT session FROM lockkeeper_session_holders");
        match place.server.flavour() {
            lockkeeper_testkit::sql::Flavour::MariaDb => place.sql(&format!("KILL {id}")),
            lockkeeper_testkit::sql::Flavour::Postgres => {
                place.sql(&format!("SELECT pg_terminate_backend({id})"))
            }
        };
        let (cause, _) = until_lost(&guard, Duration::from_secs(2)).await;
        let told = killed.elapsed();
        assert_eq!(cause, Cause::TakenOver, "{place:?}");
        assert!(told < Duration::from_millis(700), "{place:?}: told after {told:?}");
        let (next, both) = within(Duration::from_secs(5), "the next", next).await.unwrap();
        assert!(!both, "{place:?}: two held it at once");
        assert!(next.token() > guard.token());
        let guard = Arc::into_inner(guard).unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost(cause));
        next.verify().await.unwrap();
    }
}

/// Waiting without a limit waits, and gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_ever_waits_and_gets_it() {
    let waits = Place::all().map(|place| async move {
        let (one, two) = (place.keeper().await, place.keeper().await);
        let guard = locked(&one, "for-ever", lease(30_000)).await;
        let mutex = two.mutex("for-ever");
        let waiter = tokio::spawn(async move { mutex.lock().await });
        // Longer than a slice of the wait inside the server.
        tokio::time::sleep(Duration::from_millis(6500)).await;
        assert!(!waiter.is_finished(), "{place:?}: gave up");
        drop(guard);
        let next = within(Duration::from_secs(3), "the waiter", waiter).await.unwrap();
        assert!(next.unwrap().is_held(), "{place:?}");
    });
    futures_util::future::join_all(waits).await;
}

/// Writers that wait behind a reader come one at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_writers_behind_a_reader_never_overlap() {
    for place in Place::all() {
        let keeper = place.keeper().await;
        let mut keepers = Vec::new();
        for _ in 0..8 {
            keepers.push(place.keeper().await);
        }
        let inside = Arc::new(AtomicI64::new(0));
        for round in 0..4 {
            let name = format!("behind-{}", round % 2);
            let read = keeper.rwlock(&name).with_options(lease(20_000)).read().await.unwrap();
            inside.fetch_add(1, Ordering::SeqCst);
            let writers: Vec<_> = keepers
                .iter()
                .map(|keeper| {
                    let lock = keeper.rwlock(&name).with_options(lease(20_000));
                    let inside = inside.clone();
                    tokio::spawn(async move {
                        let write = lock.write().await.unwrap();
                        assert_eq!(inside.fetch_add(1000, Ordering::SeqCst), 0, "not alone");
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        write.check().unwrap();
                        inside.fetch_sub(1000, Ordering::SeqCst);
                        let token = write.token();
                        assert_eq!(write.release().await.unwrap(), Released::Released);
                        token
                    })
                })
                .collect();
            tokio::time::sleep(Duration::from_millis(60)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(read.release().await.unwrap(), Released::Released);
            let mut tokens = Vec::new();
            for writer in writers {
                tokens.push(within(Duration::from_secs(20), "a writer", writer).await.unwrap());
            }
            tokens.sort();
            tokens.dedup();
            assert_eq!(tokens.len(), 8, "{place:?}: a token twice");
        }
    }
}

/// A holder whose process is killed is followed: after its lease, or as soon
/// as the database sees the end of its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_frees_its_names() {
    for place in Place::all() {
        place.settled().await;
        let keeper = place.keeper().await;
        let url = place.url();
        let mut worker = tokio::task::spawn_blocking(move || {
            Worker::start(env!("CARGO_BIN_EXE_lk-worker"), &url)
        })
        .await
        .unwrap();
        assert!(worker.ask("lock crashed 2000").starts_with("granted"));
        assert!(keeper.mutex("crashed").try_lock().await.unwrap().is_none());
        worker.kill();
        let start = Instant::now();
        let guard = locked(&keeper, "crashed", lease(2000)).await;
        let limit = match place.strategy {
            Strategy::Lease => Duration::from_millis(4500),
            Strategy::Session => Duration::from_millis(1000),
        };
        assert!(start.elapsed() < limit, "{place:?}: after {:?}", start.elapsed());
        drop(guard);
        let status = keeper.status("crashed").await.unwrap();
        assert!(status.holders.len() <= 1, "{place:?}: {status:?}");
    }
}

/// A holder that is stopped is followed after its lease, and knows it at its
/// very first look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_is_followed_and_knows_it() {
    for place in Place::all() {
        let keeper = place.keeper().await;
        let url = place.url();
        let mut worker = tokio::task::spawn_blocking(move || {
            Worker::start(env!("CARGO_BIN_EXE_lk-worker"), &url)
        })
        .await
        .unwrap();
        assert!(worker.ask("lock stopped 2000").starts_with("granted"));
        assert_eq!(worker.ask("watch"), "watching");
        worker.stop();
        let start = Instant::now();
        let guard = locked(&keeper, "stopped", lease(2000)).await;
        // It may have been renewed just before, or two thirds of a second ago.
        let took = start.elapsed();
        assert!((1200..5000).contains(&took.as_millis()), "{place:?}: followed after {took:?}");
        worker.go_on();
        let look = worker.line(Duration::from_secs(5));
        assert!(look.ends_with("held false"), "{place:?}: {look}");
        guard.verify().await.unwrap();
    }
}
