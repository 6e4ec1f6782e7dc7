//! The nodes themselves: reaped, used up, too many, and other people's.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, Keeper, Released};
use lockkeeper_testkit::history::Recorder;
use lockkeeper_testkit::zookeeper::{ZooKeeper, preset_counter, url};
use lockkeeper_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use zookeeper_client as zk;

use crate::kit::{Nodes, connect, keeper, locked, name, patient, server};

/// An idle name leaves nothing behind: the server reaps its node. The numbers
/// of its children start again; the tokens do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reaped_name_starts_again_with_a_higher_token() {
    let server = server().await;
    let (keeper, nodes) = (keeper(&[server.port()]).await, Nodes::of(&server).await);
    let name = name("reaped");
    let path = format!("/{name}");
    let mut tokens = Vec::new();
    for round in 0..2 {
        let guard = locked(&keeper, &name).await;
        let claims = nodes.claims(&path).await;
        assert!(claims[0].ends_with("-lock-0000000000"), "round {round}: {claims:?}");
        tokens.push(guard.token());
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        let reaped = async || nodes.0.check_stat(&path).await.unwrap().is_none();
        assert!(eventually(Duration::from_secs(6), reaped).await, "never reaped");
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

/// Servers without container nodes get persistent ones, which stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_containers_will_do() {
    let server = server().await;
    let nodes = Nodes::of(&server).await;
    let (port, asked) = without_containers(server.port()).await;
    let (plain, keeper) = (keeper(&[server.port()]).await, keeper(&[port]).await);
    let names = [name("mutex"), name("readers"), name("permits")];
    let reaped = name("reaped");
    drop(locked(&plain, &reaped).await);
    drop(locked(&keeper, &names[0]).await);
    drop(keeper.rwlock(&names[1]).with_options(patient()).read().await.unwrap());
    drop(keeper.semaphore(&names[2], 2).with_options(patient()).acquire().await.unwrap());
    assert_eq!(asked.load(Relaxed), 1, "what the server lacks is asked for once");
    // The server has looked for empty containers since.
    let gone = async || nodes.0.check_stat(&format!("/{reaped}")).await.unwrap().is_none();
    assert!(eventually(Duration::from_secs(6), gone).await, "never reaped");
    for name in &names {
        assert!(nodes.0.check_stat(&format!("/{name}")).await.unwrap().is_some(), "{name}");
    }
    assert!(locked(&keeper, &names[0]).await.is_held());
}

/// A way to a server on which it does not understand what makes containers:
/// its own answer to a request it does not know. Also counts them.
async fn without_containers(server: u16) -> (u16, Arc<AtomicUsize>) {
    const CREATE_CONTAINER: i32 = 19;
    const UNKNOWN: i32 = 9999;
    let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, asked) = (door.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counted = asked.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = door.accept().await {
            let there = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = there.into_split();
            let asked = counted.clone();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            tokio::spawn(async move {
                // The first message opens the session, and has no kind.
                let mut opening = true;
                while let Ok(length) = from_client.read_u32().await {
                    let mut message = vec![0; length as usize];
                    from_client.read_exact(&mut message).await?;
                    if !opening && message[4..8] == CREATE_CONTAINER.to_be_bytes() {
                        message[4..8].copy_from_slice(&UNKNOWN.to_be_bytes());
                        asked.fetch_add(1, Relaxed);
                    }
                    opening = false;
                    to_server.write_u32(length).await?;
                    to_server.write_all(&message).await?;
                }
                std::io::Result::Ok(())
            });
        }
    });
    (port, asked)
}

/// Nodes that are reaped between being made and being used are made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reaping_under_our_hands_goes_unnoticed() {
    let server = server().await;
    let keeper = keeper(&[server.port()]).await;
    let names: Vec<String> = (0..12).map(|_| name("fleeting")).collect();
    let recorder = Recorder::new();
    let start = Instant::now();
    // The server looks for empty nodes once a second.
    while start.elapsed() < Duration::from_secs(4) {
        for name in &names {
            let arrival = recorder.now();
            let guard = locked(&keeper, name).await;
            recorder.leave(recorder.enter(name, arrival, guard.token()));
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        }
    }
    println!("{} locks", recorder.entries().len());
    recorder.history().check();
}

/// Near the end of the numbers that a server gives to children, two claims
/// could get the same one. Long before, claims are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_used_up_sequence_is_refused_and_never_lets_two_in() {
    let mut server = ZooKeeper::start();
    let nodes = Nodes::of(&server).await;
    let parents = [
        ("/end", 2_147_483_640),
        ("/stuck", 2_147_483_647),
        ("/readers", 2_147_483_640),
        ("/permits/locks", 2_147_483_640),
        ("/near", 2_146_999_995),
        ("/far", 2_000_000_000),
    ];
    for (path, _) in parents {
        nodes.make(path).await;
    }
    drop(nodes);
    server.kill();
    for (path, counter) in parents {
        preset_counter(&server.folder().join("data"), path, counter);
    }
    server.restart();
    let mut keepers = Vec::new();
    for _ in 0..3 {
        keepers.push(keeper(&[server.port()]).await);
    }
    // The numbers are really there.
    let nodes = Nodes::of(&server).await;
    drop(locked(&keepers[0], "far").await);
    assert_eq!(grants(&keepers, "far", 30).await, 30);
    let near = grants(&keepers, "near", 30).await;
    assert!((1..=5).contains(&near), "{near} grants from number 2146999995 on");
    assert_eq!(grants(&keepers, "end", 30).await, 0);
    assert_eq!(grants(&keepers, "stuck", 30).await, 0);
    for keeper in &keepers {
        let lock = keeper.rwlock("readers").with_options(patient());
        refused(&lock.read().await.map(drop).unwrap_err());
        refused(&lock.write().await.map(drop).unwrap_err());
        let semaphore = keeper.semaphore("permits", 2).with_options(patient());
        refused(&semaphore.acquire().await.map(drop).unwrap_err());
    }
    for path in ["/end", "/stuck", "/readers", "/permits", "/near", "/far"] {
        nodes.deserted(path, Duration::from_secs(5)).await;
    }
}

/// How many of `tries` locks are granted, by keepers that all try at once;
/// the others must be refused with the reason.
async fn grants(keepers: &[Keeper], name: &str, tries: usize) -> usize {
    let recorder = Recorder::new();
    let each = tries / keepers.len();
    let mut workers = Vec::new();
    for keeper in keepers {
        let (mutex, recorder) = (keeper.mutex(name).with_options(patient()), recorder.clone());
        let name = name.to_owned();
        workers.push(tokio::spawn(async move {
            for _ in 0..each {
                let arrival = recorder.now();
                match mutex.lock().await {
                    Ok(guard) => {
                        let entry = recorder.enter(&name, arrival, guard.token());
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        recorder.leave(entry);
                        assert_eq!(guard.release().await.unwrap(), Released::Released);
                    }
                    Err(error) => refused(&error),
                }
            }
        }));
    }
    for worker in workers {
        within(Duration::from_secs(30), "a worker", worker).await.unwrap();
    }
    recorder.history().check();
    recorder.entries().len()
}

fn refused(error: &lockkeeper::Error) {
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("sequence"), "{error}");
}

/// Names are one component each: no name is inside another, and what a name
/// looks like in a path changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_name_is_inside_another() {
    let server = ZooKeeper::start();
    let nodes = Nodes::of(&server).await;
    nodes.make("/app/locks").await;
    let keeper = connect(&url(&[server.port()], "/app/locks?session=5s&tick=200ms")).await;
    let names = ["a", "a/b", "a/b/c", "a%2Fb", "/a", "a/", "..", ".", "zookeeper", "a b", "ä/ö"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(within(Duration::from_secs(3), name, locked(&keeper, name)).await);
    }
    let below = nodes.children("/app/locks").await;
    let ours = below.iter().filter(|node| !node.starts_with("%lockkeeper")).count();
    assert_eq!(ours, names.len(), "{below:?}");
    for node in &below {
        for child in nodes.children(&format!("/app/locks/{node}")).await {
            assert!(nodes.children(&format!("/app/locks/{node}/{child}")).await.is_empty());
        }
    }
    assert!(nodes.children("/").await.len() == 2, "something is outside the chroot");
    let page = keeper.list("", None, 100).await.unwrap();
    let mut listed: Vec<_> = page.entries.iter().map(|entry| entry.name.as_str()).collect();
    let mut wanted = names;
    listed.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(listed, wanted);
    for guard in guards {
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

/// A list of children that no longer fits into an answer would lock everybody
/// out: claims are refused before it comes to that, and soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_too_long_to_be_listed_is_refused_in_time() {
    let server = ZooKeeper::start();
    let nodes = Nodes::of(&server).await;
    nodes.make("/long").await;
    let options = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
    let mut made = 0;
    let uuid = "6a15ca5e-6709-4bce-bb72-410eb8a69295";
    // 59 bytes each in the list of one megabyte.
    while made < 17_500 {
        let mut batch = nodes.0.new_multi_writer();
        for _ in 0..500 {
            batch.add_create(&format!("/long/_c_{uuid}-lock-"), b"", &options).unwrap();
        }
        batch.commit().await.unwrap();
        made += 500;
    }
    let keeper = keeper(&[server.port()]).await;
    for (limit, reason) in [(10_000, "max_waiters"), (1_000_000, "megabyte")] {
        let start = Instant::now();
        let mutex = keeper.mutex("long").with_options(patient().with_max_waiters(limit));
        let error = within(Duration::from_secs(8), "the refusal", mutex.lock()).await.unwrap_err();
        println!("{error} after {:?}", start.elapsed());
        assert_eq!(error.kind(), ErrorKind::TooMany, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(mutex.try_lock().await.unwrap().is_none());
    }
    // Nothing of ours was left in the line, and others are served.
    let stat = nodes.0.check_stat("/long").await.unwrap().unwrap();
    assert_eq!(stat.num_children, made);
    drop(locked(&keeper, "short").await);
}

/// A node that somebody else keeps other things in is left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_peoples_nodes_are_left_alone() {
    let server = server().await;
    let (keeper, nodes) = (keeper(&[server.port()]).await, Nodes::of(&server).await);
    let name = name("foreign");
    nodes.make(&format!("/{name}/brokers/ids")).await;
    for error in [
        keeper.mutex(&name).with_options(patient()).lock().await.map(drop).unwrap_err(),
        keeper.rwlock(&name).with_options(patient()).read().await.map(drop).unwrap_err(),
        keeper.semaphore(&name, 2).with_options(patient()).acquire().await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(nodes.children(&format!("/{name}")).await, ["brokers"]);
    assert_eq!(nodes.children(&format!("/{name}/brokers")).await, ["ids"]);
}

/// Whoever may make nodes but not list them cannot lock, and leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_may_not_be_listed_is_refused_without_a_trace() {
    let server = server().await;
    let (keeper, nodes) = (keeper(&[server.port()]).await, Nodes::of(&server).await);
    let path = format!("/{}", name("unlisted"));
    nodes.0.auth("digest", b"owner:secret").await.unwrap();
    let some = zk::Permission::CREATE | zk::Permission::DELETE | zk::Permission::WRITE;
    let acls = [
        zk::Acl::new(zk::Permission::ALL, zk::AuthId::authed()),
        zk::Acl::new(some, zk::AuthId::anyone()),
    ];
    let options = zk::CreateMode::Persistent.with_acls(zk::Acls::new(&acls));
    nodes.0.create(&path, b"", &options).await.unwrap();
    for _ in 0..3 {
        let mutex = keeper.mutex(&path[1..]).with_options(patient());
        let error = within(Duration::from_secs(5), "the refusal", mutex.lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    nodes.deserted(&path, Duration::from_secs(3)).await;
}
