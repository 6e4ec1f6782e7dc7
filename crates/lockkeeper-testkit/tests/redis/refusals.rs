//! Servers that cannot be used: a clear error, in time, and nothing half done.

use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, Keeper};
use lockkeeper_testkit::server::{RedisServer, free_port};

/// The error of connecting, which must come in time and without secrets.
async fn refused(url: &str) -> (ErrorKind, String) {
    let start = Instant::now();
    let error = Keeper::connect(url).await.expect_err("this must not connect");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}: {error}", start.elapsed());
    let text = format!("{error} {error:?}");
    assert!(!text.contains("hunter2"), "{text}");
    (error.kind(), error.to_string())
}

#[tokio::test]
async fn a_wrong_password_is_told() {
    let server = RedisServer::with(&["--requirepass", "secret", "--save", ""]);
    let port = server.port();
    for login in ["", ":hunter2@", "nobody:hunter2@"] {
        let (kind, text) = refused(&format!("redis://{login}127.0.0.1:{port}/0")).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        assert!(text.contains("password"), "{text}");
    }
    let good = Keeper::connect(&format!("redis://:secret@127.0.0.1:{port}/0")).await.unwrap();
    drop(good.mutex("a").lock().await.unwrap());
}

#[tokio::test]
async fn a_wrong_database_is_told() {
    let server = RedisServer::start();
    let (kind, text) = refused(&format!("redis://127.0.0.1:{}/99", server.port())).await;
    assert_eq!(kind, ErrorKind::Invalid, "{text}");
    assert!(text.contains("database"), "{text}");
}

#[tokio::test]
async fn a_replica_is_told() {
    let master = RedisServer::start();
    let port = master.port().to_string();
    let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &port, "--save", ""]);
    let (kind, text) = refused(&replica.url()).await;
    assert_eq!(kind, ErrorKind::Invalid, "{text}");
    assert!(text.contains("replica"), "{text}");
}

#[tokio::test]
async fn nobody_there_is_told() {
    let (kind, text) = refused(&format!("redis://127.0.0.1:{}", free_port())).await;
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    // A server that accepts and says nothing.
    let silent = RedisServer::start();
    silent.freeze();
    let (kind, text) = refused(&format!("{}?connect=300ms", silent.url())).await;
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    silent.thaw();
}

#[tokio::test]
async fn a_node_of_a_cluster_is_told() {
    let server = RedisServer::with(&["--cluster-enabled", "yes", "--save", ""]);
    server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let (kind, text) = refused(&server.url()).await;
    assert_eq!(kind, ErrorKind::Invalid, "{text}");
    assert!(text.contains("cluster"), "{text}");
    // And the other way round.
    let single = RedisServer::start();
    let (kind, text) = refused(&format!("redis+cluster://127.0.0.1:{}", single.port())).await;
    assert_eq!(kind, ErrorKind::Invalid, "{text}");
    assert!(text.contains("cluster"), "{text}");
}

#[tokio::test]
async fn wrong_sentinels_are_told() {
    let single = RedisServer::start();
    let (kind, text) = refused(&format!("redis+sentinel://127.0.0.1:{}/m", single.port())).await;
    assert_ne!(kind, ErrorKind::Unexpected, "{text}");
    let (kind, text) = refused(&format!("redis+sentinel://127.0.0.1:{}/m", free_port())).await;
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
}

#[tokio::test]
async fn a_user_who_may_not_write_is_told() {
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "reader", "on", ">hunter2", "~*", "&*", "+@all", "-@write"]);
    let (kind, text) =
        refused(&format!("redis://reader:hunter2@127.0.0.1:{}", server.port())).await;
    assert_eq!(kind, ErrorKind::Invalid, "{text}");
    assert!(text.contains("allow"), "{text}");
}

#[tokio::test]
async fn foreign_keys_are_left_alone() {
    let server = RedisServer::start();
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    server.cli(&["HSET", "lk:{foreign}", "field", "value"]);
    server.cli(&["SET", "lk:{text}", "not a record"]);
    for name in ["foreign", "text"] {
        for error in [
            keeper.mutex(name).lock().await.map(drop).unwrap_err(),
            keeper.mutex(name).try_lock().await.map(drop).unwrap_err(),
            keeper.status(name).await.map(drop).unwrap_err(),
            keeper.latch(name).set(1).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains(&format!("lk:{{{name}}}")), "{error}");
        }
    }
    assert_eq!(server.cli(&["HGET", "lk:{foreign}", "field"]), "value");
    assert_eq!(server.cli(&["GET", "lk:{text}"]), "not a record");
    assert_eq!(server.cli(&["DBSIZE"]), "2");
    drop(keeper.mutex("fine").lock().await.unwrap());
}

/// Out of memory: no new locks, but those that are held can be renewed and
/// given back.
#[tokio::test]
async fn a_full_server_takes_no_new_locks_and_loses_none() {
    let server = RedisServer::with(&["--maxmemory-policy", "noeviction", "--save", ""]);
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    let guard = keeper.mutex("held").lock().await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let start = Instant::now();
    for error in [
        keeper.mutex("new").lock().await.map(drop).unwrap_err(),
        keeper.rwlock("read").read().await.map(drop).unwrap_err(),
        keeper.latch("latch").set(1).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::TooMany, "{error}");
        assert!(error.to_string().contains("memory"), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(2));
    guard.verify().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), lockkeeper::Released::Released);
    assert_eq!(server.cli(&["DBSIZE"]), "1", "something half done");
    let (kind, text) = refused(&server.url()).await;
    assert_eq!(kind, ErrorKind::TooMany, "{text}");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    drop(keeper.mutex("held").lock().await.unwrap());
}

/// A server that may drop our keys is used, but says so.
#[tokio::test]
async fn an_evicting_server_is_warned_about() {
    let evicting =
        RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let keeper = Keeper::connect(&evicting.url()).await.unwrap();
    assert!(keeper.info().caveat.contains("allkeys-lru"), "{}", keeper.info().caveat);
    let plain = RedisServer::start();
    let keeper = Keeper::connect(&plain.url()).await.unwrap();
    assert!(!keeper.info().caveat.contains("evict"), "{}", keeper.info().caveat);
}
