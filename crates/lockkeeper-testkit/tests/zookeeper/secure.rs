//! Servers that ask who we are, and connections nobody can read.

use std::time::Duration;

use lockkeeper::{ErrorKind, Keeper, Released};
use lockkeeper_testkit::within;
use lockkeeper_testkit::zookeeper::ZooKeeper;

use crate::kit::{connect, locked, locking, waiters};

/// Locks and hands over, so that all that a keeper needs is known to work.
async fn works(url: &str) {
    let (one, two) = (connect(url).await, connect(url).await);
    let guard = locked(&one, "secure").await;
    let waiting = locking(two, "secure");
    waiters(&one, "secure", 1).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let (next, _) = within(Duration::from_secs(3), "the hand-over", waiting).await.unwrap();
    assert_eq!(next.release().await.unwrap(), Released::Released);
}

async fn refused(url: &str) -> ErrorKind {
    let connecting = Keeper::connect(url);
    let error = within(Duration::from_secs(8), "the refusal", connecting).await.unwrap_err();
    println!("{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    error.kind()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_connection_works_and_checks_whom_it_speaks_to() {
    let (server, stranger) = (ZooKeeper::tls(false), ZooKeeper::tls(false));
    let place = |server: &ZooKeeper, trusted: &ZooKeeper| {
        let ca = trusted.folder().join("cert.pem");
        let port = server.secure_port().expect("a port for TLS");
        format!("zookeepers://localhost:{port}/?session=4s&tick=200ms&ca={}", ca.display())
    };
    works(&place(&server, &server)).await;
    let kind = refused(&place(&server, &stranger)).await;
    assert!(matches!(kind, ErrorKind::Unreachable | ErrorKind::Invalid), "{kind:?}");
    // Plain text to the port that wants TLS is no connection either.
    let plain = format!("zookeeper://127.0.0.1:{}/?session=4s", server.secure_port().unwrap());
    assert_eq!(refused(&plain).await, ErrorKind::Unreachable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_asks_for_a_certificate_gets_one() {
    let server = ZooKeeper::tls(true);
    let [ca, key] = ["cert.pem", "key.pem"].map(|name| server.folder().join(name));
    let port = server.secure_port().expect("a port for TLS");
    let anonymous =
        format!("zookeepers://localhost:{port}/?session=4s&tick=200ms&ca={}", ca.display());
    works(&format!("{anonymous}&cert={}&key={}", ca.display(), key.display())).await;
    let kind = refused(&anonymous).await;
    assert!(matches!(kind, ErrorKind::Unreachable | ErrorKind::Invalid), "{kind:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_by_sasl_works_and_a_wrong_one_is_told() {
    let server = ZooKeeper::sasl();
    let place = |login: &str, auth: &str| {
        format!("zookeeper://{login}127.0.0.1:{}/?session=4s&tick=200ms{auth}", server.port())
    };
    works(&place("keeper:se%2Fcret@", "&auth=sasl")).await;
    works(&place("keeper:se%2Fcret@", "&auth=sasl&acl=creator")).await;
    assert_eq!(refused(&place("keeper:hunter2@", "&auth=sasl")).await, ErrorKind::Invalid);
    let kind = refused(&place("", "")).await;
    assert!(matches!(kind, ErrorKind::Unreachable | ErrorKind::Invalid), "{kind:?}");
}
