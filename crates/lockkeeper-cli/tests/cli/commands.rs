//! Looking, breaking, checking, latches, papers.

use serde_json::{Value, json};

use crate::kit::{Place, Running, Said, lockkeeper, run};

fn data(said: &Said) -> Value {
    serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn ls_and_status_show_who_holds_what() {
    let place = Place::new();
    let said = run(place.lockkeeper(&["ls"]));
    assert_eq!((said.code, said.stdout.as_str()), (0, ""), "{said:?}");
    let words =
        ["run", "--note", "line\u{1b}[2Jbreak", "--owner", "alice", "tf/net", "sleep", "60"];
    let holder = Running::start(place.lockkeeper(&words));
    crate::kit::eventually("holder", || {
        run(place.lockkeeper(&["ls"])).stdout.contains("alice").then_some(())
    });
    let _waiter = Running::start(place.lockkeeper(&["run", "tf/net", "true"]));
    place.until_waiting("tf/net", 1);

    let table = run(place.lockkeeper(&["ls", "tf/"])).stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert!(lines[0].starts_with("NAME") && lines[0].contains("WAITERS"), "{table}");
    assert!(lines[1].starts_with("tf/net") && lines[1].contains("alice@"), "{table}");
    assert!(!table.contains('\u{1b}'), "a note cannot redraw the terminal: {table:?}");
    assert_eq!(run(place.lockkeeper(&["ls", "other"])).stdout, "");

    let page = run(place.lockkeeper(&["status", "tf/net"])).stdout;
    assert!(page.contains("holds") && page.contains("waits 1"), "{page}");
    assert!(page.contains(&format!("(pid {})", holder.pid())), "{page}");
}

#[test]
fn json_has_a_stable_shape() {
    let place = Place::new();
    let _holder = place.hold("x");
    let _waiter = Running::start(place.lockkeeper(&["run", "x", "true"]));
    place.until_waiting("x", 1);
    let status = place.status("x");
    assert_eq!(
        keys(&status),
        ["closed_for_ms", "holders", "kind", "name", "number", "token", "waiters"]
    );
    assert_eq!((&status["name"], &status["kind"]), (&json!("x"), &json!("mutex")));
    assert!(status["token"].is_string());
    let holder = &status["holders"][0];
    assert_eq!(
        keys(holder),
        [
            "age_ms",
            "host",
            "lease_left_ms",
            "mode",
            "note",
            "owner",
            "permits",
            "pid",
            "revoked",
            "token",
            "who"
        ]
    );
    assert!(holder["age_ms"].is_u64() && holder["lease_left_ms"].as_u64().unwrap() <= 30_000);
    assert_eq!((&holder["mode"], &holder["revoked"]), (&json!("exclusive"), &json!(false)));
    assert_eq!(
        keys(&status["waiters"][0]),
        ["age_ms", "host", "mode", "note", "owner", "permits", "pid", "who"]
    );
    let list = data(&run(place.lockkeeper(&["--json", "ls"])));
    assert_eq!(list["names"][0]["name"], "x");
    let unused = place.status("never used");
    assert!(unused["kind"].is_null() && unused["token"].is_null());
}

#[test]
fn errors_are_json_too() {
    let said = run(lockkeeper(&["--json", "--engine", "nonsense:", "ls"]));
    let error: Value = serde_json::from_str(&said.stderr).unwrap();
    assert_eq!((&error["event"], &error["exit_code"]), (&json!("failed"), &json!(78)));
    assert!(error["message"].is_string() && error["hint"].is_string(), "{error}");
}

#[test]
fn watch_shows_changes() {
    let place = Place::new();
    let watch = Running::start(place.lockkeeper(&["--json", "watch", "x", "--interval", "50ms"]));
    let seen = |count| {
        crate::kit::eventually("change", || {
            (watch.stdout().lines().count() >= count).then_some(())
        });
    };
    seen(1);
    let holder = place.hold("x");
    seen(2);
    drop(holder);
    seen(3);
    let lines: Vec<Value> =
        watch.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let counts: Vec<usize> =
        lines.iter().map(|line| line["holders"].as_array().unwrap().len()).collect();
    assert_eq!(counts[..3], [0, 1, 0]);
}

#[test]
fn break_asks_before_it_takes() {
    let place = Place::new();
    let mut holder = place.hold("x");
    let said = run(place.lockkeeper(&["break", "x", "--reason", "r"]));
    assert_eq!(said.code, 64, "{said:?}");
    assert!(said.stderr.contains("is held by") && said.stderr.contains("--yes"), "{said:?}");
    assert!(holder.is_running(), "nothing was broken");
    let other = "00000000000000000000000000000000-1-0";
    let words = ["break", "x", "--reason", "r", "--yes", "--owner", other];
    assert_eq!(run(place.lockkeeper(&words)).code, 0);
    assert!(holder.is_running(), "another owner's lock is left alone");
    assert_eq!(place.status("x")["holders"][0]["revoked"], false, "and not even told to end");
    let said = run(place.lockkeeper(&["break", "free", "--reason", "r", "--yes"]));
    assert_eq!(said.code, 0);
    assert!(said.stderr.contains("nobody holds"), "{said:?}");
}

#[test]
fn check_knows_the_lock_of_its_own_run() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let script = format!("{program} check x && echo mine; {program} check y; echo $?");
    let said = run(place.lockkeeper(&["run", "x", "sh", "-c", &script]));
    assert_eq!(said.stdout, "mine\n64\n", "{said:?}");
    // Broken under its feet, but told to go on: the check says so.
    let script =
        format!("echo $$ > child.pid; until [ -e go ]; do sleep 0.02; done; {program} check x");
    let words = ["run", "--on-lost", "ignore", "x", "sh", "-c", &script];
    let holder = Running::start(place.lockkeeper(&words));
    place.pid("child.pid");
    assert_eq!(run(place.lockkeeper(&["break", "x", "--reason", "r", "--yes", "--now"])).code, 0);
    std::fs::write(place.file("go"), "").unwrap();
    let said = holder.end();
    assert_eq!(said.code, 79);
    assert!(said.stderr.contains("check \"x\": the lock is lost: nobody holds it"), "{said:?}");
}

#[test]
fn check_does_not_trust_a_lock_that_is_being_taken_away() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let script = format!(
        "echo $$ > child.pid; until [ -e go ]; do sleep 0.02; done; {program} check x; echo $?"
    );
    let words = ["run", "--on-lost", "ignore", "x", "sh", "-c", &script];
    let holder = Running::start(place.lockkeeper(&words));
    place.pid("child.pid");
    assert_eq!(run(place.lockkeeper(&["break", "x", "--reason", "r", "--yes"])).code, 0);
    std::fs::write(place.file("go"), "").unwrap();
    assert_eq!(holder.end().stdout, "79\n");
}

#[test]
fn check_by_token() {
    let place = Place::new();
    let _holder = place.hold("x");
    let token = place.status("x")["token"].as_str().unwrap().to_owned();
    assert_eq!(run(place.lockkeeper(&["check", "x", "--token", &token])).code, 0);
    let said = run(place.lockkeeper(&["--json", "check", "x", "--token", "1000000000000"]));
    assert_eq!((said.code, &data(&said)["held"]), (79, &json!(false)));
}

#[test]
fn a_fence_refuses_older_tokens() {
    let place = Place::new();
    let fence =
        |token: &str| run(place.lockkeeper(&["fence", "s3://bucket/report", "--token", token]));
    assert_eq!(fence("18").code, 0);
    assert_eq!(fence("18").code, 0);
    let said = fence("17");
    assert_eq!(said.code, 76, "{said:?}");
    assert!(said.stderr.contains("token 17 is stale: 18 has been seen"), "{said:?}");
    let words = ["--json", "fence", "s3://bucket/report", "--token", "17"];
    let said = run(place.lockkeeper(&words));
    assert_eq!(said.code, 76);
    let expected = json!({ "resource": "s3://bucket/report", "token": "17", "accepted": false, "highest": "18" });
    assert_eq!(data(&said), expected);
}

#[test]
fn a_latch_opens_at_zero() {
    let place = Place::new();
    let latch = |words: &[&str]| run(place.lockkeeper(&[&["latch", "loaded"], words].concat()));
    assert_eq!(latch(&["down"]).code, 79, "there is none yet");
    let waiter = Running::start(place.lockkeeper(&["latch", "loaded", "wait"]));
    assert_eq!(latch(&["set", "2"]).code, 0);
    assert!(latch(&["set", "5"]).stderr.contains("unchanged"));
    assert_eq!(latch(&["down", "--id", "a"]).code, 0);
    assert!(latch(&["down", "--id", "a"]).stderr.contains("1 to go"), "counts once");
    assert_eq!(latch(&["wait", "--wait", "100ms"]).code, 75);
    assert!(latch(&["down"]).stderr.contains("open"));
    assert_eq!(waiter.end().code, 0);
    assert_eq!(latch(&["wait"]).code, 0);
}

#[test]
fn a_latch_removed_under_a_wait_is_gone() {
    let place = Place::new();
    assert_eq!(run(place.lockkeeper(&["latch", "l", "set", "1"])).code, 0);
    let waiter = Running::start(place.lockkeeper(&["latch", "l", "wait"]));
    waiter.until_stderr("waiting for the latch");
    assert_eq!(run(place.lockkeeper(&["latch", "l", "remove"])).code, 0);
    assert_eq!(waiter.end().code, 79);
}

#[test]
fn info_says_what_the_engine_promises() {
    let place = Place::new();
    let info = data(&run(place.lockkeeper(&["--json", "info"])));
    assert_eq!((&info["engine"], &info["tokens"]), (&json!("local"), &json!("durable")));
    assert!(info["ordered"].is_boolean() && info["min_lease_ms"].is_u64());
    let said = run(place.lockkeeper(&["info"]));
    assert!(said.stdout.contains("does not") && said.stdout.contains("one host only"), "{said:?}");
}

#[test]
fn papers_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let said = run(lockkeeper(&["completions", shell]));
        assert!(said.code == 0 && said.stdout.contains("kill-after"), "{shell}");
    }
    let said = run(lockkeeper(&["man"]));
    assert!(said.code == 0 && said.stdout.contains("kill\\-after"), "{}", said.stdout);
    assert!(said.stdout.contains("the lock was lost"), "exit codes are in it");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new();
    let _holder = place.hold("x");
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", &format!("set -o pipefail; {program} ls | true")]);
    shell.env("LOCKKEEPER_URL", place.url());
    let said = run(shell);
    assert_eq!(said.code, 0, "{said:?}");
}

#[test]
fn a_directory_that_is_not_ours_is_refused() {
    let place = Place::new();
    let file = place.file("plain-file");
    std::fs::write(&file, "").unwrap();
    let mut command = lockkeeper(&["ls"]);
    command.env("LOCKKEEPER_URL", format!("local:{}", file.display()));
    let said = run(command);
    assert!([77, 78].contains(&said.code), "{said:?}");
    assert!(said.stderr.contains("plain-file"), "{said:?}");
}
