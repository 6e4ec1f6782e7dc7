//! What a lock on Redis costs: `cargo bench -p lockkeeper-testkit --bench redis`.
//!
//! Everything beside its floor in one run, in rounds of each in turn, so that
//! the ratios mean something on a noisy machine. The floor of a lock and its
//! release is `SET NX PX` and a compare-and-delete script through the same
//! client library; that of a hand-over is a bare publish to its receipt.
//!
//! `-- solo`, `many`, `handover` or `hold [GUARDS SECONDS]` runs one part; with
//! `alone` behind `solo` or `many` there is no floor, for whoever profiles us.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Keeper, LockOptions, Memory};
use lockkeeper_testkit::server::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, Value, cmd};
use tokio::runtime::Runtime;

const ROUNDS: usize = 9;
/// How many tasks *many* has.
const TASKS: u64 = 256;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    let is = |part: &str| words.first().is_none_or(|word| word == part);
    let server = RedisServer::start();
    println!("{}, {ROUNDS} rounds", server.cli(&["--version"]));
    if is("solo") {
        solo(&server);
    }
    if is("many") {
        many(&server);
    }
    if is("handover") {
        handover(&server);
    }
    if is("hold") {
        hold(&server, number(1).unwrap_or(10_000), number(2).unwrap_or(60));
    }
}

/// One task: the time of a pair, and what it costs the server.
fn solo(server: &RedisServer) {
    const PAIRS: u64 = 2000;
    let runtime = single();
    runtime.block_on(async {
        let keeper = Keeper::connect(&server.url()).await.unwrap();
        let mutex = keeper.mutex("solo");
        let nearby = Keeper::new(Memory::private()).await.unwrap();
        let in_memory = nearby.mutex("solo");
        let floor = Floor::connect(server).await;
        let mut memory = Vec::new();
        let (mut ours, mut bare) = (Column::default(), Column::default());
        for round in 0..=ROUNDS {
            let meter = Meter::start(server);
            let mut times = Vec::new();
            for _ in 0..PAIRS {
                let start = Instant::now();
                let guard = mutex.lock().await.unwrap();
                let _ = guard.release().await.unwrap();
                times.push(start.elapsed());
            }
            ours.add(round, p50(times), meter.stop(server, PAIRS));
            if alone() {
                continue;
            }
            let meter = Meter::start(server);
            let mut times = Vec::new();
            for number in 0..PAIRS {
                let start = Instant::now();
                floor.pair("solo-floor", number).await;
                times.push(start.elapsed());
            }
            bare.add(round, p50(times), meter.stop(server, PAIRS));
            let mut times = Vec::new();
            for _ in 0..PAIRS {
                let start = Instant::now();
                let guard = in_memory.lock().await.unwrap();
                let _ = guard.release().await.unwrap();
                times.push(start.elapsed());
            }
            memory.push(p50(times).as_secs_f64() * 1e6);
        }
        println!("\nsolo, one task                  lockkeeper      floor");
        row("p50 of a pair, µs", ours.time(), bare.time());
        row("server CPU per pair, µs", ours.cpu(), bare.cpu());
        row("client CPU per pair, µs", ours.client(), bare.client());
        row("commands per pair", ours.commands(), 2.0);
        verdict("p50 on memory:, µs", median(memory));
        verdict("p50 ratio (≤ 1.25)", ours.ratio(&bare, |sample| sample.time));
        verdict("p50 difference, µs (≤ 25)", ours.time() - bare.time());
        verdict("server CPU ratio (≤ 2)", ours.ratio(&bare, |sample| sample.cpu));
    });
}

/// Many tasks, a name each, through one keeper or one connection.
fn many(server: &RedisServer) {
    const EACH: u64 = 80;
    let runtime = several();
    runtime.block_on(async {
        let keeper = Keeper::connect(&server.url()).await.unwrap();
        let floor = Arc::new(Floor::connect(server).await);
        let (mut ours, mut bare) = (Column::default(), Column::default());
        for round in 0..=ROUNDS {
            let meter = Meter::start(server);
            let start = Instant::now();
            let tasks = (0..TASKS).map(|task| {
                let mutex = keeper.mutex(format!("many/{task}"));
                tokio::spawn(async move {
                    for _ in 0..EACH {
                        let guard = mutex.lock().await.unwrap();
                        let _ = guard.release().await.unwrap();
                    }
                })
            });
            futures_util::future::join_all(tasks).await;
            let each = start.elapsed() / (TASKS * EACH) as u32;
            ours.add(round, each, meter.stop(server, TASKS * EACH));
            if alone() {
                continue;
            }
            let meter = Meter::start(server);
            let start = Instant::now();
            let tasks = (0..TASKS).map(|task| {
                let (floor, key) = (floor.clone(), format!("many-floor/{task}"));
                tokio::spawn(async move {
                    for number in 0..EACH {
                        floor.pair(&key, number).await;
                    }
                })
            });
            futures_util::future::join_all(tasks).await;
            let each = start.elapsed() / (TASKS * EACH) as u32;
            bare.add(round, each, meter.stop(server, TASKS * EACH));
        }
        println!("\nmany, {TASKS} tasks                 lockkeeper      floor");
        row("pairs per second", 1e6 / ours.time(), 1e6 / bare.time());
        row("server CPU per pair, µs", ours.cpu(), bare.cpu());
        row("client CPU per pair, µs", ours.client(), bare.client());
        row("commands per pair", ours.commands(), 2.0);
        verdict("throughput ratio (≥ 0.8)", bare.ratio(&ours, |sample| sample.time));
        verdict("server CPU ratio, pipelined", ours.ratio(&bare, |sample| sample.cpu));
    });
}

/// From the release of one keeper to the guard of the next.
fn handover(server: &RedisServer) {
    const TURNS: usize = 300;
    let runtime = several();
    runtime.block_on(async {
        let keepers = [
            Keeper::connect(&server.url()).await.unwrap(),
            Keeper::connect(&server.url()).await.unwrap(),
        ];
        let watcher = Keeper::connect(&server.url()).await.unwrap();
        let receiver = Receiver::start(server);
        let mut publisher = connect(server, AsyncConnectionConfig::new()).await;
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let mut times = Vec::new();
            let mut guard = keepers[0].mutex("handover").lock().await.unwrap();
            for turn in 1..=TURNS {
                let mutex = keepers[turn % 2].mutex("handover");
                let next = tokio::spawn(async move {
                    let guard = mutex.lock().await.unwrap();
                    (guard, Instant::now())
                });
                while watcher.status("handover").await.unwrap().waiters.is_empty() {
                    tokio::task::yield_now().await;
                }
                // The winner's keeper has had its last answer, as in a real wait.
                tokio::time::sleep(Duration::from_millis(1)).await;
                let start = Instant::now();
                let released = tokio::spawn(guard.release());
                let (winner, at) = next.await.unwrap();
                times.push(at - start);
                let _ = released.await.unwrap().unwrap();
                guard = winner;
            }
            let _ = guard.release().await.unwrap();
            let mut floor = Vec::new();
            for _ in 0..TURNS {
                tokio::time::sleep(Duration::from_millis(1)).await;
                floor.push(receiver.ping(&mut publisher).await);
            }
            if round > 0 {
                ours.push(p50(times).as_secs_f64() * 1e6);
                bare.push(p50(floor).as_secs_f64() * 1e6);
            }
        }
        let ratios = ours.iter().zip(&bare).map(|(ours, bare)| ours / bare).collect();
        println!("\nhandover, two keepers           lockkeeper      floor");
        row("p50, µs", median(ours), median(bare));
        verdict("p50 ratio (≤ 2.5)", median(ratios));
    });
}

/// Many guards of one keeper, held and renewed.
fn hold(server: &RedisServer, guards: u64, seconds: u64) {
    let runtime = single();
    runtime.block_on(async {
        let keeper = Keeper::connect(&server.url()).await.unwrap();
        let options = LockOptions::default().with_lease(Duration::from_secs(30));
        let mut waiting: VecDeque<_> = (0..guards)
            .map(|number| {
                let mutex = keeper.mutex(format!("hold/{number}")).with_options(options.clone());
                tokio::spawn(async move { mutex.lock().await.unwrap() })
            })
            .collect();
        let mut held = Vec::new();
        while let Some(next) = waiting.pop_front() {
            held.push(next.await.unwrap());
        }
        let (meter, start) = (Meter::start(server), Instant::now());
        let sets = calls(server, "set");
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let spent = start.elapsed().as_secs_f64();
        let sample = meter.stop(server, 1);
        let renewed = (calls(server, "set") - sets) as f64;
        let lost = held.iter().filter(|guard| !guard.is_held()).count();
        println!("\nhold, {guards} guards with leases of 30 s for {seconds} s");
        verdict("guards lost", lost as f64);
        verdict("renewals per second", renewed / spent);
        verdict("commands per second", sample.commands / spent);
        verdict("CPU of the server, % of a core", sample.cpu / spent / 1e4);
        verdict("CPU of this process, % of a core", sample.client / spent / 1e4);
        assert_eq!(lost, 0);
    });
}

/// The least that any lock on Redis has to do.
struct Floor {
    connection: MultiplexedConnection,
    hash: String,
}

impl Floor {
    async fn connect(server: &RedisServer) -> Self {
        let mut connection = connect(server, AsyncConnectionConfig::new()).await;
        let code = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                    return redis.call('DEL', KEYS[1]) else return 0 end";
        let mut load = cmd("SCRIPT");
        let hash = load.arg("LOAD").arg(code).query_async(&mut connection).await.unwrap();
        Floor { connection, hash }
    }

    async fn pair(&self, key: &str, number: u64) {
        let owner = format!("0123456789abcdef0123456789abcdef-{number}");
        let mut connection = self.connection.clone();
        let mut set = cmd("SET");
        set.arg(key).arg(&owner).arg("NX").arg("PX").arg(30_000);
        let granted: Value = set.query_async(&mut connection).await.unwrap();
        assert_eq!(granted, Value::Okay);
        let mut delete = cmd("EVALSHA");
        delete.arg(&self.hash).arg(1).arg(key).arg(&owner);
        let deleted: u64 = delete.query_async(&mut connection).await.unwrap();
        assert_eq!(deleted, 1);
    }
}

async fn connect(server: &RedisServer, config: AsyncConnectionConfig) -> MultiplexedConnection {
    let url = format!("redis://127.0.0.1:{}/?protocol=resp3", server.port());
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// A subscriber on a thread of its own that takes the time of every message.
struct Receiver {
    heard: tokio::sync::Mutex<tokio::sync::mpsc::UnboundedReceiver<Instant>>,
}

impl Receiver {
    fn start(server: &RedisServer) -> Self {
        let (sender, heard) = tokio::sync::mpsc::unbounded_channel();
        let mut thread = tokio::runtime::Builder::new_multi_thread();
        let thread = thread.worker_threads(1).enable_all().build().unwrap();
        let config = AsyncConnectionConfig::new().set_push_sender(move |info: PushInfo| {
            if info.kind == PushKind::Message {
                return sender.send(Instant::now()).map_err(drop);
            }
            Ok(())
        });
        let port = server.port();
        let (ready, is_ready) = std::sync::mpsc::channel();
        thread.spawn(async move {
            let url = format!("redis://127.0.0.1:{port}/?protocol=resp3");
            let client = redis::Client::open(url).unwrap();
            let connected = client.get_multiplexed_async_connection_with_config(&config).await;
            let mut connection = connected.unwrap();
            connection.subscribe("bare").await.unwrap();
            ready.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        is_ready.recv().unwrap();
        // Ends with the process: a runtime must not be dropped within another.
        std::mem::forget(thread);
        Receiver { heard: heard.into() }
    }

    /// From before a message is published to its receipt.
    async fn ping(&self, publisher: &mut MultiplexedConnection) -> Duration {
        let mut publish: Cmd = cmd("PUBLISH");
        publish.arg("bare").arg("0123456789abcdef0123456789abcdef-12345-0 1790000000000000");
        let start = Instant::now();
        let heard: u64 = publish.query_async(publisher).await.unwrap();
        assert_eq!(heard, 1);
        self.heard.lock().await.recv().await.unwrap() - start
    }
}

/// What was used up since its start: by the server, by this process, in commands.
struct Meter {
    server: f64,
    client: f64,
    commands: u64,
}

#[derive(Clone, Copy)]
struct Sample {
    time: f64,
    cpu: f64,
    client: f64,
    commands: f64,
}

impl Meter {
    fn start(server: &RedisServer) -> Self {
        Meter { server: server_cpu(server), client: own_cpu(), commands: calls(server, "evalsha") }
    }

    fn stop(self, server: &RedisServer, pairs: u64) -> Sample {
        let per = |spent: f64| spent / pairs as f64;
        Sample {
            time: 0.0,
            cpu: per(server_cpu(server) - self.server),
            client: per(own_cpu() - self.client),
            commands: per((calls(server, "evalsha") - self.commands) as f64),
        }
    }
}

/// The samples of all rounds but the first, which warms up.
#[derive(Default)]
struct Column(Vec<Sample>);

impl Column {
    fn add(&mut self, round: usize, time: Duration, sample: Sample) {
        if round > 0 {
            self.0.push(Sample { time: time.as_secs_f64() * 1e6, ..sample });
        }
    }

    fn of(&self, what: impl Fn(&Sample) -> f64) -> f64 {
        median(self.0.iter().map(what).collect())
    }

    fn time(&self) -> f64 {
        self.of(|sample| sample.time)
    }

    fn cpu(&self) -> f64 {
        self.of(|sample| sample.cpu)
    }

    fn client(&self) -> f64 {
        self.of(|sample| sample.client)
    }

    fn commands(&self) -> f64 {
        self.of(|sample| sample.commands)
    }

    /// The median of the rounds' own ratios.
    fn ratio(&self, floor: &Column, what: impl Fn(&Sample) -> f64) -> f64 {
        median(self.0.iter().zip(&floor.0).map(|(ours, bare)| what(ours) / what(bare)).collect())
    }
}

/// µs of CPU that the server's main thread has used.
fn server_cpu(server: &RedisServer) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{}/schedstat", server.id()));
    let text = text.expect("Linux tells the time of a process");
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("a number") / 1e3
}

/// µs of CPU that all threads of this process have used.
fn own_cpu() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the valid timespec it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let start = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&start));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Whether the floor is left out.
fn alone() -> bool {
    std::env::args().any(|word| word == "alone")
}

fn single() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn several() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn p50(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn median(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn row(what: &str, ours: f64, floor: f64) {
    println!("  {what:<28} {ours:>12.2} {floor:>10.2}");
}

fn verdict(what: &str, value: f64) {
    println!("  {what:<28} {value:>12.2}");
}
