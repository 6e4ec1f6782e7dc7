//! What a lock on ZooKeeper costs, beside the raw requests and beside Curator.
//!
//! `cargo bench -p lockkeeper-testkit --bench zookeeper [-- ensemble]`
//!
//! Everything is measured in one run on one server that writes to disk (or on
//! an ensemble of three), in turns, so that what disturbs one disturbs all.

use std::time::{Duration, Instant};

use lockkeeper::Keeper;
use lockkeeper_testkit::child::Worker;
use lockkeeper_testkit::zookeeper::{Ensemble, Settings, ZooKeeper, curator, url};
use zookeeper_client as zk;

const SESSION: Duration = Duration::from_secs(30);
const REST: &str = "/?session=30s&tick=200ms";
/// How many turns each has, and how many pairs it does per turn.
const TURNS: usize = 10;
const PAIRS: usize = 200;

fn main() {
    let ensemble = std::env::args().any(|argument| argument == "ensemble");
    let durable = Settings::default().property("zookeeper.forceSync=yes");
    let members = match ensemble {
        true => Ensemble::with(&durable).members,
        false => vec![ZooKeeper::with(durable)],
    };
    println!("{} that write to disk", if ensemble { "three members" } else { "one server" });
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // All are on one member, a follower if there is one.
    let member = members.iter().position(|member| member.mode().as_deref() != Some("leader"));
    let server = &members[member.unwrap_or(0)];
    let mut peer = curator(&[server.port()], SESSION);
    runtime.block_on(solo(server, &mut peer));
    for waiters in [2, 10, 100] {
        runtime.block_on(hand_overs(server, waiters, &mut peer));
    }
}

/// A create and a delete, and a lock and a release, of a name nobody wants.
async fn solo(server: &ZooKeeper, peer: &mut Worker) {
    let connector = zk::Client::connector().with_session_timeout(SESSION);
    let client = connector.connect(&format!("127.0.0.1:{}", server.port())).await.unwrap();
    let keep = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let fleeting = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
    client.create("/raw", b"", &keep).await.unwrap();
    let keeper = Keeper::connect(&url(&[server.port()], REST)).await.unwrap();
    let mutex = keeper.mutex("ours");
    let (mut raw, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..=TURNS {
        if turn == 1 {
            // The first turn has warmed everything up.
            raw.clear();
            ours.clear();
        }
        for _ in 0..PAIRS {
            let start = Instant::now();
            let (_, number) = client.create("/raw/lock-", b"127.0.0.1", &fleeting).await.unwrap();
            client.delete(&format!("/raw/lock-{number}"), None).await.unwrap();
            raw.push(start.elapsed());
        }
        for _ in 0..PAIRS {
            let start = Instant::now();
            let _ = mutex.lock().await.unwrap().release().await.unwrap();
            ours.push(start.elapsed());
        }
        theirs.push(peer.ask(&format!("solo /theirs {PAIRS}")));
    }
    let raw = row("raw create + delete", raw);
    let ours = row("lock + release", ours);
    let theirs: Vec<Duration> = theirs[1..].iter().map(|line| nanos(line)).collect();
    row("Curator's, median of turns", theirs);
    println!("lock + release is {:.2} times raw", ours.as_secs_f64() / raw.as_secs_f64());
}

/// Prints the median and the ninetieth percentile; returns the median.
fn row(what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let [p50, p90] = [50, 90].map(|percent| times[times.len() * percent / 100]);
    println!("{what:<28} p50 {:>7.3} ms   p90 {:>7.3} ms", millis(p50), millis(p90));
    p50
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The first number in a line of the peer.
fn nanos(line: &str) -> Duration {
    let number = line.split(' ').nth(1).and_then(|word| word.parse().ok());
    Duration::from_nanos(number.unwrap_or_else(|| panic!("the peer said {line:?}")))
}

/// Many keepers that all want one name all the time, and as many Curators.
async fn hand_overs(server: &ZooKeeper, waiters: usize, peer: &mut Worker) {
    let each = (2000 / waiters).max(20);
    let mut keepers = Vec::new();
    for _ in 0..waiters {
        keepers.push(Keeper::connect(&url(&[server.port()], REST)).await.unwrap());
    }
    let total = (each * waiters) as f64;
    let before = server.measure("zk_packets_received");
    let start = Instant::now();
    let tasks: Vec<_> = keepers
        .into_iter()
        .map(|keeper| {
            tokio::spawn(async move {
                let mutex = keeper.mutex(format!("race-{waiters}"));
                for _ in 0..each {
                    let _ = mutex.lock().await.unwrap().release().await.unwrap();
                }
                keeper
            })
        })
        .collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.unwrap());
    }
    let took = start.elapsed();
    let asked = (server.measure("zk_packets_received") - before - 1) as f64;
    drop(done);
    let before = server.measure("zk_packets_received");
    let line = peer.ask(&format!("race /curator-{waiters} {waiters} {}", each * waiters));
    let theirs = nanos(&line);
    let asked_theirs = (server.measure("zk_packets_received") - before - 1) as f64;
    println!(
        "{waiters:>4} waiters: {:>6.0} hand-overs/s, {:.1} requests each; Curator {:>6.0}/s, about {:.1}",
        total / took.as_secs_f64(),
        asked / total,
        total / theirs.as_secs_f64(),
        asked_theirs / total,
    );
}
