//! `bench`: what it counts, what it says, and that it leaves nothing.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use lockkeeper_testkit::fleet::{RedisCluster, Sentinels, TlsServer};
use lockkeeper_testkit::server::RedisServer;
use lockkeeper_testkit::sql::{Flavour, SqlServer};
use lockkeeper_testkit::zookeeper::ZooKeeper;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::kit::{
    Place, Running, Said, eventually, is_alive, kill, lockkeeper, run, state, until_dead,
};

fn on(url: &str, words: &[&str]) -> Command {
    let mut command = lockkeeper(words);
    command.env("LOCKKEEPER_URL", url);
    command
}

fn data(said: &Said) -> Value {
    assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{said:?}");
    serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Checks what every scenario has.
fn is_whole(scenario: &Value) {
    for side in ["lockkeeper", "floor"] {
        let figures = &scenario[side];
        assert!(figures["operations"].as_u64() > Some(0), "{scenario}");
        let number = |field: &str| figures[field].as_f64().unwrap();
        assert!(number("per_second") > 0.0, "{scenario}");
        let rising = ["p50_us", "p90_us", "p99_us", "max_us"].map(number);
        assert!(rising.is_sorted() && rising[0] > 0.0, "{scenario}");
    }
    for figure in ["per_second", "p50", "p90", "p99"] {
        assert!(scenario["ratio"][figure].as_f64().unwrap() > 0.0, "{scenario}");
    }
}

/// The processes that a process has started.
fn children(pid: i32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Waits until hand-overs are under way, and returns the workers.
fn until_handing_over(server: &RedisServer, bench: &Running, count: usize) -> Vec<i32> {
    eventually("a queue", || {
        let keys = server.cli(&["--scan", "--pattern", "lk:{lockkeeper-bench/*}:q"]);
        (!keys.is_empty()).then_some(())
    });
    let workers = children(bench.pid());
    assert_eq!(workers.len(), count);
    workers
}

#[test]
fn bench_counts_the_commands_of_pairs_and_hand_overs() {
    let server = RedisServer::start();
    let words = "--json bench --seconds 0.3 --rounds 2 --tasks 16 --waiters 2,100";
    let words: Vec<&str> = words.split(' ').collect();
    let report = data(&run(on(&server.url(), &words)));
    assert_eq!(report["engine"], "redis");
    assert_eq!(report["label"], server.url());
    assert!(report["server"].as_str().unwrap().starts_with("Redis "), "{report}");
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&report["rounds"], &report["round_ms"]), (&json!(2), &json!(300)));
    assert!(report["machine"]["cores"].as_u64().unwrap() >= 1);
    assert!(report["machine"]["load_before"].is_f64() && report["machine"]["busy"].is_boolean());
    let scenarios = report["scenarios"].as_array().unwrap();
    let shape = |scenario: &Value| {
        (scenario["scenario"].clone(), scenario["tasks"].clone(), scenario["waiters"].clone())
    };
    assert_eq!(
        scenarios.iter().map(shape).collect::<Vec<_>>(),
        [
            (json!("solo"), json!(1), json!(null)),
            (json!("many"), json!(16), json!(null)),
            (json!("handover"), json!(null), json!(2)),
            (json!("handover"), json!(null), json!(100)),
        ]
    );
    for scenario in scenarios {
        is_whole(scenario);
        assert!(scenario["ratio"]["server_cpu"].as_f64().unwrap() > 0.0, "{scenario}");
        let commands = |side: &str| scenario[side]["commands_per_operation"].as_f64().unwrap();
        if scenario["scenario"] == "solo" {
            assert_eq!((commands("lockkeeper"), commands("floor")), (2.0, 2.0), "{scenario}");
        } else if scenario["scenario"] == "many" {
            // Claims that ask together share a command.
            assert!((0.1..=2.0).contains(&commands("lockkeeper")), "{scenario}");
            assert_eq!(commands("floor"), 2.0, "{scenario}");
        } else {
            // The release; and on a busy machine some are held for long enough
            // to be confirmed.
            assert!((1.0..=2.0).contains(&commands("lockkeeper")), "{scenario}");
            assert_eq!(commands("floor"), 1.0, "{scenario}");
            let queueing = scenario["lockkeeper"]["queue_commands_per_operation"].as_f64();
            assert!(queueing.unwrap() >= 1.0, "{scenario}");
        }
    }
    assert_eq!(server.cli(&["DBSIZE"]), "0", "{}", server.cli(&["KEYS", "*"]));
}

#[test]
fn the_json_of_bench_has_a_stable_shape() {
    let report = data(&run(on("memory:", &["--json", "bench", "solo", "--seconds", "0.05"])));
    assert_eq!(
        keys(&report),
        [
            "engine",
            "floor",
            "label",
            "machine",
            "round_ms",
            "rounds",
            "scenarios",
            "server",
            "version"
        ]
    );
    assert_eq!(keys(&report["machine"]), ["busy", "cores", "load_after", "load_before"]);
    assert_eq!(keys(&report["floor"]), ["hand_over", "pair"]);
    let scenario = &report["scenarios"][0];
    assert_eq!(keys(scenario), ["floor", "lockkeeper", "ratio", "scenario", "tasks", "waiters"]);
    for side in ["lockkeeper", "floor"] {
        assert_eq!(
            keys(&scenario[side]),
            [
                "beats_per_operation",
                "commands_per_operation",
                "max_us",
                "operations",
                "p50_us",
                "p90_us",
                "p99_us",
                "per_second",
                "queue_commands_per_operation",
                "server_cpu_us_per_operation"
            ]
        );
    }
    assert_eq!(
        keys(&scenario["ratio"]),
        ["commands", "p50", "p90", "p99", "per_second", "server_cpu"]
    );
    // Nobody counts in memory, so nothing is made up.
    assert!(scenario["lockkeeper"]["commands_per_operation"].is_null());
    assert!(report["server"].is_null() && scenario["ratio"]["server_cpu"].is_null());
}

#[test]
fn bench_runs_on_engines_without_a_server() {
    let place = Place::new();
    for url in [place.url(), "memory:".to_owned()] {
        let words = ["--json", "bench", "--seconds", "0.3", "--rounds", "2", "--waiters", "1,3"];
        let report = data(&run(on(&url, &words)));
        let scenarios = report["scenarios"].as_array().unwrap();
        assert_eq!(scenarios.len(), 4);
        scenarios.iter().for_each(is_whole);
    }
    let left: Vec<_> = fs::read_dir(place.dir.join("locks")).unwrap().flatten().collect();
    assert!(left.iter().all(|entry| entry.file_type().unwrap().is_file()), "{left:?}");
    let table = run(on(&place.url(), &["bench", "solo", "--seconds", "0.05", "--rounds", "1"]));
    assert_eq!((table.code, table.stderr.as_str()), (0, ""), "{table:?}");
    let lines: Vec<&str> = table.stdout.lines().collect();
    assert!(lines[0].starts_with("lockkeeper ") && lines[1].contains("load "), "{table:?}");
    let head = lines.iter().position(|line| line.starts_with("SCENARIO")).unwrap();
    assert!(lines[head + 1].starts_with("solo      lockkeeper"), "{table:?}");
    assert!(lines[head + 1].trim_end().ends_with('–'), "{table:?}");
    assert!(lines[head + 3].contains("ratio"), "{table:?}");
}

#[test]
fn bench_knows_encryption_logins_sentinels_and_clusters() {
    let words = "--json bench --seconds 0.3 --rounds 2 --tasks 8 --waiters 2";
    let words: Vec<&str> = words.split(' ').collect();
    let (tls, cluster, sentinels) = (TlsServer::start(), RedisCluster::start(), Sentinels::start());
    for url in [tls.url(), sentinels.url(), cluster.url()] {
        let report = data(&run(on(&url, &words)));
        for scenario in report["scenarios"].as_array().unwrap() {
            is_whole(scenario);
            if scenario["scenario"] == "solo" {
                // A look at the map of the cluster, every ten seconds, is among them.
                let count = scenario["lockkeeper"]["commands_per_operation"].as_f64().unwrap();
                assert!((2.0..2.05).contains(&count), "{scenario}");
            }
        }
    }
    for server in cluster.nodes.iter().chain([&sentinels.servers[sentinels.master()]]) {
        // The fleet itself may have tried whether replicas follow.
        assert_eq!(server.cli(&["KEYS", "lk:*"]), "");
    }
}

#[test]
fn bench_knows_the_floor_of_zookeeper() {
    let server = ZooKeeper::start();
    let words = "--json bench --seconds 0.3 --rounds 2 --tasks 8 --waiters 2";
    let words: Vec<&str> = words.split(' ').collect();
    let report = data(&run(on(&server.url(), &words)));
    assert!(report["server"].as_str().unwrap().starts_with("ZooKeeper 3."), "{report}");
    for scenario in report["scenarios"].as_array().unwrap() {
        is_whole(scenario);
        let commands = |side: &str| scenario[side]["commands_per_operation"].as_f64().unwrap();
        // Packets: heartbeats are among them.
        assert!((2.0..9.0).contains(&commands("lockkeeper")), "{scenario}");
        assert!((2.0..2.2).contains(&commands("floor")), "{scenario}");
        assert!(scenario["ratio"]["server_cpu"].is_null(), "nobody counts it: {scenario}");
    }
}

#[test]
fn bench_knows_the_floors_of_databases() {
    let words = "--json bench --seconds 0.3 --rounds 2 --tasks 8 --waiters 2";
    let words: Vec<&str> = words.split(' ').collect();
    for flavour in [Flavour::MariaDb, Flavour::Postgres] {
        let server = SqlServer::start(flavour);
        let url = server.url(&server.database());
        for strategy in ["", "?strategy=session&prefix=session_"] {
            let report = data(&run(on(&format!("{url}{strategy}"), &words)));
            let known = ["MariaDB", "PostgreSQL"];
            let name = report["server"].as_str().unwrap();
            assert!(known.iter().any(|known| name.contains(known)), "{report}");
            for scenario in report["scenarios"].as_array().unwrap() {
                assert!(scenario["lockkeeper"]["operations"].as_u64() > Some(0), "{scenario}");
                let has_floor = scenario["waiters"].is_null() || flavour == Flavour::Postgres;
                assert_eq!(scenario["floor"].is_object(), has_floor, "{scenario}");
                let counted = scenario["lockkeeper"]["commands_per_operation"].is_f64();
                // Where every guard came from asking again, nothing was handed over.
                if scenario["waiters"].is_null() || counted {
                    assert_eq!(counted, flavour == Flavour::MariaDb, "{scenario}");
                }
            }
        }
    }
}

#[test]
fn ctrl_c_ends_a_bench_and_leaves_nothing() {
    let server = RedisServer::start();
    let words = ["bench", "handover", "--seconds", "30", "--waiters", "4"];
    let bench = Running::start(on(&server.url(), &words));
    let workers = until_handing_over(&server, &bench, 5);
    bench.signal(Signal::INT);
    let said = bench.end();
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (130, "", ""), "{said:?}");
    assert!(said.took < Duration::from_secs(15), "{said:?}");
    assert!(!workers.into_iter().any(is_alive), "a worker outlived it");
    assert_eq!(server.cli(&["DBSIZE"]), "0", "{}", server.cli(&["KEYS", "*"]));

    let bench = Running::start(on(&server.url(), &["bench", "many", "--seconds", "30"]));
    eventually("locks", || (server.cli(&["DBSIZE"]) != "0").then_some(()));
    bench.signal(Signal::TERM);
    assert_eq!(bench.end().code, 143);
    assert_eq!(server.cli(&["DBSIZE"]), "0", "{}", server.cli(&["KEYS", "*"]));
}

#[test]
fn a_bench_does_not_end_before_its_waiters() {
    let server = RedisServer::start();
    let words = ["bench", "handover", "--seconds", "30", "--waiters", "2"];
    let mut bench = Running::start(on(&server.url(), &words));
    let workers = until_handing_over(&server, &bench, 3);
    // One that cannot hear that it is over: it is waited for, then ended.
    let deaf = workers[1];
    // The kernel would wake it, if nobody beside it had a parent left.
    let mut beside = Command::new("sleep");
    beside.arg("60").process_group(deaf);
    let _beside = Running::start(beside);
    kill(deaf, Signal::STOP);
    eventually("a stopped waiter", || (state(deaf) == Some('T')).then_some(()));
    bench.signal(Signal::INT);
    bench.status();
    let left: Vec<i32> = workers.into_iter().filter(|&worker| is_alive(worker)).collect();
    for &worker in &left {
        kill(worker, Signal::KILL);
    }
    let said = bench.end();
    assert!(left.is_empty(), "waiters outlived their bench: {left:?}, {said:?}");
    assert_eq!(said.code, 130, "{said:?}");
}

#[test]
fn waiters_of_a_killed_bench_end_and_let_go() {
    let server = RedisServer::start();
    let words = ["bench", "handover", "--seconds", "30", "--waiters", "2"];
    let mut bench = Running::start(on(&server.url(), &words));
    let workers = until_handing_over(&server, &bench, 3);
    bench.child.kill().unwrap();
    for worker in workers {
        until_dead(worker);
    }
    // What stays is the record of the name, which nobody holds, for a day.
    eventually("an empty queue", || {
        let list = run(on(&server.url(), &["--json", "ls"])).stdout;
        (list.trim() == r#"{"names":[]}"#).then_some(())
    });
}

#[test]
fn no_process_list_shows_the_password_of_a_bench() {
    let server = RedisServer::with(&["--save", "", "--requirepass", "hunter2"]);
    let url = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    let words = ["bench", "handover", "--seconds", "30", "--waiters", "1"];
    let bench = Running::start(on(&url, &words));
    let workers = eventually("workers", || {
        let workers = children(bench.pid());
        (workers.len() == 2).then_some(workers)
    });
    for pid in workers {
        // Before its exec, a worker still shows our own line.
        let line = eventually("a worker's command line", || {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            line.contains("bench-worker").then_some(line)
        });
        assert!(!line.contains("hunter2"), "{line:?}");
    }
    bench.signal(Signal::INT);
    let said = bench.end();
    assert!(!format!("{said:?}").contains("hunter2"), "{said:?}");
}

#[test]
fn nonsense_is_refused_before_anything_is_measured() {
    for (words, reason) in [
        ("bench --rounds 0", "--rounds 0 makes no sense: 1 to 100"),
        ("bench --seconds 0", "--seconds 0 makes no sense: 0.05 to 60"),
        ("bench --seconds soon", "invalid value 'soon'"),
        ("bench --tasks 10001", "--tasks 10001 makes no sense: 1 to 10000"),
        ("bench --waiters 2,x", "invalid value 'x'"),
        ("bench --waiters 1001", "--waiters 1001 makes no sense: 1 to 1000"),
        ("bench solo --tasks 5", "--tasks is for the scenario many"),
        ("bench many --waiters 5", "--waiters is for the scenario handover"),
        ("bench quickly", "invalid value 'quickly'"),
    ] {
        let said = run(lockkeeper(&words.split(' ').collect::<Vec<_>>()));
        assert_eq!((said.code, said.stdout.as_str()), (64, ""), "{said:?}");
        assert!(said.stderr.contains(reason), "{said:?}");
    }
    let said = run(on("redis://127.0.0.1:1", &["bench", "solo"]));
    assert_eq!(said.code, 69, "{said:?}");
    let said = run(on("nonsense:", &["bench", "solo"]));
    assert_eq!(said.code, 78, "{said:?}");
}
