//! A lost lock ends the command before anybody else can have it.

use std::time::{Duration, Instant};

use lockkeeper_testkit::server::RedisServer;
use rustix::process::Signal;

use crate::kit::{Frozen, Place, Running, is_alive, lockkeeper, run, until_dead};

const FAMILY: &str = "sleep 60 & echo $! > grandchild.pid; echo $$ > child.pid; wait";
const STUBBORN: &str = "trap '' TERM; sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & \
                        echo $! > grandchild.pid; echo $$ > child.pid; while :; do sleep 0.05; done";

/// The next holder, which looks as its first act whether these are gone.
fn next_holder(place: &Place, pids: &[i32]) -> Running {
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let script = format!(
        "for p in {}; do grep -qs '^State:.[^ZX]' /proc/$p/status && echo $p lives; done; echo done",
        pids.join(" ")
    );
    let next = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", &script]));
    place.until_waiting("x", 1);
    next
}

#[test]
fn a_broken_lock_ends_the_tree_and_passes_on() {
    let place = Place::new();
    let holder = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", FAMILY]));
    let tree = [place.pid("child.pid"), place.pid("grandchild.pid")];
    let next = next_holder(&place, &tree);
    let said = run(place.lockkeeper(&["break", "x", "--reason", "stuck since noon", "--yes"]));
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stderr.contains(&format!("(pid {})", holder.pid())), "{said:?}");
    let broken = Instant::now();
    let said = holder.end();
    assert_eq!(said.code, 79, "{said:?}");
    assert!(
        said.stderr.contains("stuck since noon") && said.stderr.contains("sent TERM"),
        "{said:?}"
    );
    assert!(broken.elapsed() < Duration::from_secs(2), "{:?}", broken.elapsed());
    assert_eq!(next.end().stdout, "done\n", "the tree was gone first");
}

#[test]
fn a_broken_lock_whose_command_will_not_end_is_killed_before_it_passes_on() {
    let place = Place::new();
    let words = ["run", "--kill-after", "300ms", "x", "sh", "-c", STUBBORN];
    let holder = Running::start(place.lockkeeper(&words));
    let tree = [place.pid("child.pid"), place.pid("grandchild.pid")];
    let next = next_holder(&place, &tree);
    assert_eq!(run(place.lockkeeper(&["break", "x", "--reason", "r", "--yes"])).code, 0);
    let said = holder.end();
    assert_eq!(said.code, 79, "{said:?}");
    assert!(said.stderr.contains("sent KILL"), "{said:?}");
    assert_eq!(next.end().stdout, "done\n", "the tree was gone first");
}

#[test]
fn break_now_frees_at_once_and_says_what_that_risks() {
    let place = Place::new();
    let words =
        ["run", "--on-lost", "ignore", "x", "sh", "-c", "echo $$ > child.pid; exec sleep 60"];
    let mut holder = Running::start(place.lockkeeper(&words));
    let child = place.pid("child.pid");
    let said = run(place.lockkeeper(&["break", "x", "--reason", "r", "--yes", "--now"]));
    assert!(said.stderr.contains("two may work at once"), "{said:?}");
    assert_eq!(run(place.lockkeeper(&["run", "-n", "x", "true"])).code, 0);
    assert!(holder.is_running() && is_alive(child), "ignored, as asked");
    holder.until_stderr("runs on without it");
    holder.signal(Signal::TERM);
    assert_eq!(holder.end().code, 79, "lost is never success");
}

#[test]
fn a_lock_that_is_freed_at_once_leaves_no_grace() {
    let place = Place::new();
    let words = ["run", "--lease", "5m", "--kill-after", "1m", "x", "sh", "-c", STUBBORN];
    let holder = Running::start(place.lockkeeper(&words));
    let tree = [place.pid("child.pid"), place.pid("grandchild.pid")];
    let start = Instant::now();
    assert_eq!(run(place.lockkeeper(&["break", "x", "--reason", "r", "--yes", "--now"])).code, 0);
    for pid in tree {
        until_dead(pid);
    }
    // The grace would have lasted for a minute.
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    let said = holder.end();
    assert_eq!(said.code, 79, "{said:?}");
    assert!(said.stderr.contains("sent KILL"), "{said:?}");
}

#[test]
fn an_engine_frozen_past_the_lease_ends_the_tree_before_the_lease() {
    let place = Place::new();
    let lease = Duration::from_secs(2);
    let words = ["run", "--lease", "2s", "--kill-after", "500ms", "x", "sh", "-c", STUBBORN];
    let holder = Running::start(place.lockkeeper(&words));
    let tree = [place.pid("child.pid"), place.pid("grandchild.pid")];
    let frozen = Frozen::freeze(&place);
    // Nothing can be renewed from here on, so nobody may be at work a lease later.
    let at_latest = Instant::now() + lease;
    holder.until_stderr("losing \"x\"");
    assert!(tree.iter().all(|&pid| is_alive(pid)), "TERM comes before KILL");
    for pid in tree {
        until_dead(pid);
    }
    // The clock of a busy test machine: we may be late to look, not they to die.
    let slack = Duration::from_millis(300);
    assert!(Instant::now() <= at_latest + slack, "late by {:?}", at_latest.elapsed());
    drop(frozen);
    let said = holder.end();
    assert_eq!(said.code, 79, "{said:?}");
    assert!(said.stderr.contains("sent TERM") && said.stderr.contains("sent KILL"), "{said:?}");
    assert_eq!(run(place.lockkeeper(&["run", "--wait", "5s", "x", "true"])).code, 0);
}

#[test]
fn a_short_freeze_is_ridden_out() {
    let place = Place::new();
    let script = "echo $$ > child.pid; until [ -e go ]; do sleep 0.02; done";
    let words = ["run", "--lease", "4s", "--kill-after", "200ms", "x", "sh", "-c", script];
    let holder = Running::start(place.lockkeeper(&words));
    place.pid("child.pid");
    let frozen = Frozen::freeze(&place);
    std::thread::sleep(Duration::from_millis(1500));
    drop(frozen);
    std::thread::sleep(Duration::from_millis(500));
    std::fs::write(place.file("go"), "").unwrap();
    let said = holder.end();
    assert_eq!((said.code, said.stderr.as_str()), (0, ""));
}

#[test]
fn a_wrapper_stopped_past_its_lease_kills_its_tree_first_thing() {
    let place = Place::new();
    let words = ["run", "--lease", "1s", "x", "sh", "-c", STUBBORN];
    let holder = Running::start(place.lockkeeper(&words));
    let tree = [place.pid("child.pid"), place.pid("grandchild.pid")];
    holder.signal(Signal::STOP);
    // The name passes on when the lease is over: that is what we wait for.
    assert_eq!(run(place.lockkeeper(&["run", "--wait", "15s", "x", "true"])).code, 0);
    holder.signal(Signal::CONT);
    let said = holder.end();
    assert_eq!(said.code, 79, "{said:?}");
    assert!(said.stderr.contains("sent KILL") && !said.stderr.contains("TERM"), "{said:?}");
    assert!(!tree.iter().any(|&pid| is_alive(pid)));
}

#[test]
fn max_hold_is_a_loss_with_time_to_wind_up() {
    let script = "trap 'echo wound up; exit 0' TERM; while :; do sleep 0.02; done";
    let words = ["run", "--max-hold", "1s", "--kill-after", "400ms", "x", "sh", "-c", script];
    let said = run(lockkeeper(&words));
    assert_eq!((said.code, said.stdout.as_str()), (79, "wound up\n"), "{said:?}");
    assert!(said.took < Duration::from_secs(1), "{said:?}");
    assert!(said.stderr.contains("max_hold"), "{said:?}");
    let words = ["run", "--max-hold", "700ms", "--on-lost", "kill", "x", "sh", "-c", script];
    let said = run(lockkeeper(&words));
    assert_eq!((said.code, said.stdout.as_str()), (79, ""), "{said:?}");
    assert!(said.took >= Duration::from_millis(500), "{said:?}");
}

#[test]
fn max_hold_never_lets_the_next_one_in_beside_the_tree() {
    let place = Place::new();
    let words = ["run", "--max-hold", "1s", "--kill-after", "100ms", "x", "sh", "-c", STUBBORN];
    let holder = Running::start(place.lockkeeper(&words));
    let tree = [place.pid("child.pid"), place.pid("grandchild.pid")];
    let next = next_holder(&place, &tree);
    assert_eq!(holder.end().code, 79);
    assert_eq!(next.end().stdout, "done\n", "the tree was gone first");
}

#[test]
fn a_name_that_is_taken_over_after_term_ends_the_grace() {
    let server = RedisServer::start();
    let place = Place::new();
    let on = |words: &[&str]| {
        let mut command = place.lockkeeper(words);
        command.env("LOCKKEEPER_URL", server.url());
        command
    };
    // Half of max-hold is for winding up, and the lease is longer than both.
    let words = "run --lease 40s --max-hold 10s --kill-after 5s x sh -c";
    let words: Vec<&str> = words.split(' ').chain([STUBBORN]).collect();
    let holder = Running::start(on(&words));
    let tree = [place.pid("child.pid"), place.pid("grandchild.pid")];
    holder.until_stderr("sent TERM");
    assert!(tree.iter().all(|&pid| is_alive(pid)), "{}", holder.stderr());
    // The server loses its data, and somebody else gets the name.
    server.cli(&["FLUSHALL"]);
    let next = Running::start(on(&["run", "x", "sh", "-c", "echo $$ > next.pid; exec sleep 60"]));
    place.pid("next.pid");
    // A connection that is made anew renews at once, and learns of it.
    let taken = Instant::now();
    server.cli(&["CLIENT", "KILL", "SKIPME", "yes"]);
    let said = holder.end();
    let took = taken.elapsed();
    assert_eq!(said.code, 79, "{said:?}");
    assert!(said.stderr.contains("sent KILL"), "{said:?}");
    assert!(took < Duration::from_millis(2500), "ended {took:?} after it was taken over");
    drop(next);
}

#[test]
fn a_loss_is_an_event_in_json() {
    let place = Place::new();
    let words = ["--json", "run", "x", "sh", "-c", "echo $$ > child.pid; exec sleep 60"];
    let holder = Running::start(place.lockkeeper(&words));
    place.pid("child.pid");
    let said = run(place.lockkeeper(&["--json", "break", "x", "--reason", "why not", "--yes"]));
    let broken: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(broken["broken"][0]["pid"], holder.pid());
    let said = holder.end();
    let events = said.events();
    let lost = events.iter().find(|event| event["event"] == "lost").unwrap();
    assert_eq!((&lost["cause"], &lost["reason"]), (&"broken".into(), &"why not".into()));
    let last = events.last().unwrap();
    assert_eq!((&last["outcome"], &last["exit_code"]), (&"lost".into(), &79.into()));
    assert_eq!(last["command_signal"], 15);
}

#[test]
fn a_stopped_command_hears_of_its_loss() {
    let place = Place::new();
    let script =
        "trap 'echo wound up > end; exit' TERM; echo $$ > child.pid; while :; do sleep 0.02; done";
    let words = ["run", "--kill-after", "10s", "x", "sh", "-c", script];
    let holder = Running::start(place.lockkeeper(&words));
    let child = place.pid("child.pid");
    crate::kit::kill(child, Signal::STOP);
    crate::kit::eventually("stopped command", || {
        (crate::kit::state(child) == Some('T')).then_some(())
    });
    assert_eq!(run(place.lockkeeper(&["break", "x", "--reason", "r", "--yes"])).code, 0);
    assert_eq!(place.line("end"), "wound up");
    assert_eq!(holder.end().code, 79);
}

#[test]
fn a_loss_that_is_found_at_the_release_is_told() {
    let place = Place::new();
    let script = "echo $$ > child.pid; until [ -e go ]; do sleep 0.02; done";
    let holder = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", script]));
    let child = place.pid("child.pid");
    // Broken and over while nobody looks after it.
    holder.signal(Signal::STOP);
    crate::kit::eventually("stopped wrapper", || {
        (crate::kit::state(holder.pid()) == Some('T')).then_some(())
    });
    assert_eq!(run(place.lockkeeper(&["break", "x", "--reason", "r", "--yes", "--now"])).code, 0);
    std::fs::write(place.file("go"), "").unwrap();
    crate::kit::until_dead(child);
    holder.signal(Signal::CONT);
    let said = holder.end();
    assert_eq!(said.code, 79, "{said:?}");
    assert!(said.stderr.contains("lost \"x\""), "{said:?}");
}
