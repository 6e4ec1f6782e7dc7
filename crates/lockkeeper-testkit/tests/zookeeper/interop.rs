//! Our locks and those of the real Curator are the same locks.

use std::time::Duration;

use lockkeeper::{Cause, ErrorKind, Released};
use lockkeeper_testkit::child::Worker;
use lockkeeper_testkit::within;
use lockkeeper_testkit::witness::Seen;
use lockkeeper_testkit::zookeeper::{ZooKeeper, curator, url};

use crate::kit::{
    Nodes, WORKER, connect, locked, locking, name, patient, server, until_lost, waiters,
};

/// Long enough for a busy machine.
const SESSION: Duration = Duration::from_secs(10);
const REST: &str = "/?session=10s&tick=200ms";
/// What each of the five processes does.
const EACH: usize = 320;

fn peer(server: &ZooKeeper) -> Worker {
    curator(&[server.port()], SESSION)
}

/// Two programs with Curator and three of ours use one name, before a witness.
async fn shared_by_five(kind: &str) -> Seen {
    let server = server().await;
    let (name, kind) = (name("shared"), kind.to_owned());
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().to_owned();
    let visits = move || {
        let ours = url(&[server.port()], REST);
        let mut workers: Vec<Worker> = (0..2).map(|_| peer(&server)).collect();
        workers.extend((0..3).map(|_| Worker::start(WORKER, &ours)));
        let log = log.display();
        for (index, worker) in workers.iter_mut().enumerate() {
            worker.send(&match index {
                0 | 1 => format!("{kind} /{name} {EACH} {log}"),
                _ => format!("witness {kind} {name} {EACH} {log}"),
            });
        }
        for worker in &mut workers {
            assert_eq!(worker.line(Duration::from_secs(120)), "done");
        }
    };
    tokio::task::spawn_blocking(visits).await.expect("all visits");
    let seen = Seen::read(folder.path());
    println!("{seen:?}");
    assert_eq!(seen.stays.values().copied().collect::<Vec<_>>(), [EACH; 5]);
    assert!(seen.turns > 5 * EACH / 4, "they hardly met: {} turns", seen.turns);
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_is_shared_with_curator() {
    let seen = shared_by_five("mutex").await;
    assert_eq!((seen.exclusive, seen.shared), (5 * EACH, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_write_lock_is_shared_with_curator() {
    let seen = shared_by_five("readwrite").await;
    assert!(seen.exclusive > EACH && seen.shared > 2 * EACH, "{seen:?}");
    assert!(seen.together > 1, "readers were never inside together");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_is_shared_with_curator() {
    let seen = shared_by_five("semaphore-3").await;
    assert_eq!((seen.exclusive, seen.shared), (0, 5 * EACH));
    assert_eq!(seen.together, 3, "the permits were never all out");
}

/// Each waits for the other, is woken by the other, and has the larger token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_passes_from_curator_to_us_and_back() {
    let server = server().await;
    let keeper = connect(&url(&[server.port()], REST)).await;
    let name = name("passed");
    let mut peer = peer(&server);
    let granted = peer.ask(&format!("lock /{name}"));
    let theirs: u64 = granted["granted ".len()..].parse().unwrap();
    assert!(keeper.mutex(&name).try_lock().await.unwrap().is_none());
    let status = keeper.status(&name).await.unwrap();
    assert_eq!((status.holders.len(), status.waiters.len()), (1, 0), "{status:?}");
    assert_eq!(status.holders[0].token.map(|token| token.get()), Some(theirs));
    let waiting = locking(keeper.clone(), &name);
    waiters(&keeper, &name, 1).await;
    assert_eq!(peer.ask("release"), "released");
    let (guard, _) = within(Duration::from_secs(2), "the hand-over", waiting).await.unwrap();
    assert!(guard.token().get() > theirs);
    // And back: Curator finds our node, and is woken by its end.
    peer.send(&format!("lock /{name}"));
    waiters(&keeper, &name, 1).await;
    assert_eq!(peer.try_line(Duration::from_millis(300)), None);
    let ours = guard.token().get();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let granted = peer.line(Duration::from_secs(2));
    assert!(granted["granted ".len()..].parse::<u64>().unwrap() > ours, "{granted} after {ours}");
}

/// Readers of both sides go together; writers of both sides go alone, in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_of_both_sides_respect_each_other() {
    let server = server().await;
    let keeper = connect(&url(&[server.port()], REST)).await;
    let name = name("mixed");
    let lock = keeper.rwlock(&name).with_options(patient());
    let mut peer = peer(&server);
    assert_eq!(peer.ask(&format!("read /{name}")), "granted 0");
    let beside = within(Duration::from_secs(2), "a reader beside", lock.read()).await.unwrap();
    assert!(lock.try_write().await.unwrap().is_none());
    assert_eq!(beside.release().await.unwrap(), Released::Released);
    let writing = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await.unwrap() }
    });
    waiters(&keeper, &name, 1).await;
    assert_eq!(peer.ask("release"), "released");
    let write = within(Duration::from_secs(2), "our turn to write", writing).await.unwrap();
    peer.send(&format!("read /{name}"));
    waiters(&keeper, &name, 1).await;
    assert_eq!(peer.try_line(Duration::from_millis(300)), None);
    // Stepping down lets Curator's reader in, and keeps its writers out.
    let token = write.token();
    let read = write.downgrade().await.unwrap();
    assert_eq!(read.token(), Some(token));
    assert_eq!(peer.line(Duration::from_secs(2)), "granted 0");
    assert_eq!(peer.ask("release"), "released");
    peer.send(&format!("write /{name}"));
    waiters(&keeper, &name, 1).await;
    assert_eq!(peer.try_line(Duration::from_millis(300)), None);
    assert_eq!(read.release().await.unwrap(), Released::Released);
    let granted = peer.line(Duration::from_secs(2));
    assert!(granted["granted ".len()..].parse::<u64>().unwrap() > token.get(), "{granted}");
}

/// A reader that stepped down keeps its write's place: a writer of Curator that
/// has been waiting does not overtake it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stepping_down_is_not_overtaken_by_a_waiting_writer_of_curator() {
    let server = server().await;
    let keeper = connect(&url(&[server.port()], REST)).await;
    let name = name("down");
    let mut peer = peer(&server);
    let write = keeper.rwlock(&name).with_options(patient()).write().await.unwrap();
    peer.send(&format!("write /{name}"));
    waiters(&keeper, &name, 1).await;
    let read = within(Duration::from_secs(2), "stepping down", write.downgrade()).await.unwrap();
    assert_eq!(peer.try_line(Duration::from_millis(500)), None);
    read.verify().await.unwrap();
    assert_eq!(read.release().await.unwrap(), Released::Released);
    assert!(peer.line(Duration::from_secs(2)).starts_with("granted "));
}

/// Mutex and read/write nodes do not see each other, so mixing them is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_kind_of_lock_on_the_path_of_curator_is_refused() {
    let server = server().await;
    let keeper = connect(&url(&[server.port()], REST)).await;
    let name = name("kind");
    let mut peer = peer(&server);
    assert!(peer.ask(&format!("lock /{name}")).starts_with("granted "));
    let lock = keeper.rwlock(&name).with_options(patient());
    for error in [lock.read().await.unwrap_err(), lock.write().await.map(drop).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("mutex"), "{error}");
    }
    assert_eq!(peer.ask("release"), "released");
    assert!(peer.ask(&format!("write /{name}")).starts_with("granted "));
    let error = keeper.mutex(&name).with_options(patient()).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(Nodes::of(&server).await.claims(&format!("/{name}")).await.len(), 1);
}

/// What Curator writes to ask a holder to let go is heard, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_hears_that_curator_revokes_it() {
    let server = server().await;
    let keeper = connect(&url(&[server.port()], REST)).await;
    let name = name("revoked");
    let guard = locked(&keeper, &name).await;
    let nodes = Nodes::of(&server).await;
    let node = format!("/{name}/{}", nodes.claims(&format!("/{name}")).await[0]);
    nodes.0.set_data(&node, b"__REVOKE__", None).await.unwrap();
    let (cause, _) = until_lost(&guard, Duration::from_secs(5)).await;
    assert!(matches!(cause, Cause::Broken { .. }), "{cause:?}");
    drop(guard);
    nodes.deserted(&format!("/{name}"), Duration::from_secs(5)).await;
}
