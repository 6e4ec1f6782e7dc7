//! Servers that cannot be used: a clear error, in time, and nothing half done.

use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, Keeper};
use lockkeeper_testkit::server::free_port;
use lockkeeper_testkit::within;
use lockkeeper_testkit::zookeeper::{Ensemble, Settings, ZooKeeper, url};

use crate::kit::{Nodes, connect, keeper, locked, name, patient, server};

/// The error of connecting, which must come in time and without secrets.
async fn refused(url: &str, limit: Duration) -> (ErrorKind, String) {
    let start = Instant::now();
    let error = Keeper::connect(url).await.expect_err("this must not connect");
    assert!(start.elapsed() < limit, "{:?}: {error}", start.elapsed());
    let text = format!("{error} {error:?}");
    assert!(!text.contains("hunter2"), "{text}");
    println!("{error} ({:?})", start.elapsed());
    (error.kind(), error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_chroot_is_told() {
    let server = server().await;
    let url = url(&[server.port()], "/no/such/place?session=2s&tick=200ms");
    let (kind, text) = refused(&url, Duration::from_secs(3)).await;
    assert_eq!(kind, ErrorKind::Invalid, "{text}");
    assert!(text.contains("/no/such/place"), "{text}");
    // And it was not made.
    assert!(Nodes::of(&server).await.0.check_stat("/no").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chroot_that_vanishes_is_told() {
    let server = server().await;
    let (nodes, chroot) = (Nodes::of(&server).await, format!("/{}", name("vanishing")));
    nodes.make(&chroot).await;
    let keeper = connect(&url(&[server.port()], &format!("{chroot}?session=2s&tick=200ms"))).await;
    drop(locked(&keeper, "once").await);
    let emptied = async || match nodes.0.delete(&chroot, None).await {
        Ok(()) => true,
        Err(zookeeper_client::Error::NotEmpty) => {
            for child in nodes.children(&chroot).await {
                for deeper in nodes.children(&format!("{chroot}/{child}")).await {
                    let _ = nodes.0.delete(&format!("{chroot}/{child}/{deeper}"), None).await;
                }
                let _ = nodes.0.delete(&format!("{chroot}/{child}"), None).await;
            }
            false
        }
        Err(error) => panic!("{error}"),
    };
    assert!(lockkeeper_testkit::eventually(Duration::from_secs(5), emptied).await);
    let mutex = keeper.mutex("again").with_options(patient().with_wait(Duration::from_secs(3)));
    let error = within(Duration::from_secs(8), "the refusal", mutex.lock()).await.unwrap_err();
    println!("{error}");
    assert_ne!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(nodes.0.check_stat(&chroot).await.unwrap().is_none(), "the chroot was made again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_told() {
    let nobody = url(&[free_port(), free_port()], "/?session=2s&tick=200ms");
    let (kind, text) = refused(&nobody, Duration::from_secs(6)).await;
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    // A server that accepts and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = url(&[silent.local_addr().unwrap().port()], "/?session=2s&tick=200ms&connect=1s");
    let (kind, text) = refused(&silent, Duration::from_secs(3)).await;
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
}

/// Without a majority nobody is let in, not even by a member that still
/// answers reads; a keeper that was connected says so in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_quorum_and_read_only_members_are_told() {
    for (reads, words) in [(true, "is read-only"), (false, "serves nobody")] {
        let settings = Settings::default().property(format!("readonlymode.enabled={reads}"));
        let mut ensemble = Ensemble::with(&settings);
        let keeper = connect(&ensemble.url()).await;
        drop(locked(&keeper, "before").await);
        let leader = ensemble.leader().expect("a leader");
        let last = (leader + 1) % 3;
        for index in (0..3).filter(|&index| index != last) {
            ensemble.members[index].kill();
        }
        let mode = reads.then_some("read-only");
        let alone = async || ensemble.members[last].mode().as_deref() == mode;
        assert!(lockkeeper_testkit::eventually(Duration::from_secs(15), alone).await);
        let port = ensemble.members[last].port();
        let alone = url(&[port], "/?session=2s&tick=200ms");
        for url in [ensemble.url(), alone] {
            let (kind, text) = refused(&url, Duration::from_secs(6)).await;
            assert_eq!(kind, ErrorKind::Unreachable, "{text}");
            let told = format!("the member 127.0.0.1:{port} {words}: its ensemble has no quorum");
            assert!(text.contains(&told), "{text}");
        }
        let start = Instant::now();
        let mutex = keeper.mutex("after").with_options(patient());
        let error = within(Duration::from_secs(8), "the refusal", mutex.lock()).await.unwrap_err();
        println!("{error} after {:?}", start.elapsed());
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        let error = within(Duration::from_secs(8), "the status", keeper.status("before")).await;
        assert!(error.is_err(), "a member without a quorum was believed: {error:?}");
        // With a majority again, the same keeper goes on.
        let other = (last + 1) % 3;
        ensemble.members[other].restart();
        drop(within(Duration::from_secs(20), "the lock", locked(&keeper, "again")).await);
    }
}

/// A lease shorter than the session cannot be kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_shorter_than_the_session_is_refused() {
    let server = server().await;
    let keeper = keeper(&[server.port()]).await;
    assert_eq!(keeper.info().min_lease, Duration::from_secs(2));
    let options = patient().with_lease(Duration::from_millis(1500));
    let error = keeper.mutex(name("brief")).with_options(options).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    // The session is what the server grants, not what was asked for.
    let capped = ZooKeeper::with(Settings::default().line("maxSessionTimeout=3000"));
    let keeper = connect(&url(&[capped.port()], "/?session=30s&tick=200ms")).await;
    assert_eq!(keeper.info().min_lease, Duration::from_secs(3));
}

/// Nodes that belong to another user are neither taken nor broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_digest_is_told() {
    let server = server().await;
    let chroot = format!("/{}", name("private"));
    let nodes = Nodes::of(&server).await;
    nodes.make(&chroot).await;
    let place = |login: &str| {
        format!(
            "zookeeper://{login}127.0.0.1:{}{chroot}?session=2s&tick=200ms{}",
            server.port(),
            if login.is_empty() { "" } else { "&acl=creator" }
        )
    };
    let owner = connect(&place("keeper:se%2Fcret@")).await;
    let guard = locked(&owner, "mine").await;
    for login in ["keeper:hunter2@", ""] {
        let keeper = connect(&place(login)).await;
        for error in [
            keeper.mutex("mine").with_options(patient()).lock().await.map(drop).unwrap_err(),
            keeper.mutex("mine").with_options(patient()).try_lock().await.map(drop).unwrap_err(),
            keeper.status("mine").await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            let text = format!("{error} {error:?}");
            assert!(text.contains("ACL") && !text.contains("hunter2"), "{text}");
        }
    }
    guard.verify().await.unwrap();
    let same = connect(&place("keeper:se%2Fcret@")).await;
    assert!(same.mutex("mine").try_lock().await.unwrap().is_none());
    drop(guard);
    drop(locked(&same, "mine").await);
}
