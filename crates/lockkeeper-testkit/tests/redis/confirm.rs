//! Grants that replicas must confirm.

use std::time::Duration;

use lockkeeper::{ErrorKind, Keeper, LockOptions, Released};
use lockkeeper_testkit::fleet::Replicated;
use lockkeeper_testkit::server::RedisServer;
use lockkeeper_testkit::{eventually, within};

/// How often the server was asked to wait for replicas.
fn waits(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

fn lease() -> LockOptions {
    LockOptions::default().with_lease(Duration::from_secs(3)).with_wait(Duration::from_secs(10))
}

/// Every guard is confirmed once, whether it was free or handed over; renewals
/// and releases are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_guard_is_confirmed_once() {
    let Replicated { master, .. } = &Replicated::start(2);
    let url = format!("{}?confirm=all", master.url());
    let (one, two) = (Keeper::connect(&url).await.unwrap(), Keeper::connect(&url).await.unwrap());
    let before = waits(master);
    let first = one.mutex("firm").with_options(lease()).lock().await.unwrap();
    assert_eq!(waits(master) - before, 1);
    first.verify().await.unwrap();
    let mutex = two.mutex("firm").with_options(lease());
    let waiter = tokio::spawn(async move { mutex.lock().await.unwrap() });
    let waiting = async || one.status("firm").await.unwrap().waiters.len() == 1;
    assert!(eventually(Duration::from_secs(5), waiting).await);
    assert_eq!(waits(master) - before, 1, "a place in the queue is no guard");
    assert_eq!(first.release().await.unwrap(), Released::Released);
    let second = within(Duration::from_secs(1), "the hand-over", waiter).await.unwrap();
    assert!(second.is_held());
    tokio::time::sleep(Duration::from_millis(2500)).await;
    second.verify().await.unwrap();
    assert_eq!(second.release().await.unwrap(), Released::Released);
    assert_eq!(waits(master) - before, 2);
}

/// Without the replicas there is no guard, and nothing is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_confirmed_is_given_back() {
    let Replicated { master, replicas } = &Replicated::start(2);
    let bystander = Keeper::connect(&master.url()).await.unwrap();
    let connect = async |confirm: &str| {
        let url = format!("{}?confirm={confirm}&command=600ms", master.url());
        Keeper::connect(&url).await.unwrap()
    };
    let (one, majority, all) =
        (connect("one").await, connect("majority").await, connect("all").await);
    replicas[0].freeze();
    let impatient = lease().with_wait(Duration::from_millis(1500));
    drop(one.mutex("one").with_options(impatient.clone()).lock().await.unwrap());
    drop(majority.mutex("majority").with_options(impatient.clone()).lock().await.unwrap());
    let error = all.mutex("all").with_options(impatient).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let free = async || {
        let status = bystander.status("all").await.unwrap();
        status.holders.is_empty() && status.waiters.is_empty()
    };
    assert!(eventually(Duration::from_secs(4), free).await, "left behind");
    replicas[0].thaw();
    let mutex = all.mutex("all").with_options(lease());
    drop(within(Duration::from_secs(8), "the confirmed lock", mutex.lock()).await.unwrap());
}

/// A master without replicas confirms nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_no_majority() {
    let server = RedisServer::start();
    for confirm in ["one", "majority", "all"] {
        let url = format!("{}?confirm={confirm}&command=300ms", server.url());
        let keeper = Keeper::connect(&url).await.unwrap();
        let impatient = lease().with_wait(Duration::from_millis(600));
        let error = keeper.mutex("alone").with_options(impatient).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{confirm}: {error}");
    }
}
