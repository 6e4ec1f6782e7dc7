//! A lock within a lock, in one process tree.

use crate::kit::{Place, Running, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

#[test]
fn the_same_name_passes_through() {
    let place = Place::new();
    let print = "echo $LOCKKEEPER_LOCK $LOCKKEEPER_TOKEN $LOCKKEEPER_OWNER";
    let script = format!("{print}; {PROGRAM} run x {PROGRAM} run x sh -c '{print}; exit 4'");
    let said = run(place.lockkeeper(&["run", "x", "sh", "-c", &script]));
    assert_eq!(said.code, 4, "{said:?}");
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], lines[1], "the outer lock's own facts");
}

#[test]
fn it_passes_through_without_an_engine_in_the_environment() {
    let place = Place::new();
    let script = format!("{PROGRAM} run x echo through");
    let url = place.url();
    let mut command = place.lockkeeper(&["--engine", &url, "run", "x", "sh", "-c", &script]);
    command.env_remove("LOCKKEEPER_URL");
    assert_eq!(run(command).stdout, "through\n");
}

#[test]
fn another_name_is_another_lock() {
    let place = Place::new();
    let script = format!("{PROGRAM} run y sh -c 'echo $LOCKKEEPER_LOCK; echo $LOCKKEEPER_HELD'");
    let said = run(place.lockkeeper(&["run", "x", "sh", "-c", &script]));
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(lines[0], "y");
    assert_eq!(lines[1].split(' ').count(), 2, "both are held: {said:?}");
}

#[test]
fn an_exclusive_lock_covers_a_shared_one_but_not_the_reverse() {
    let place = Place::new();
    let inner = |flag: &str| format!("{PROGRAM} run {flag} x echo in");
    let said = run(place.lockkeeper(&["run", "-x", "x", "sh", "-c", &inner("--shared")]));
    assert_eq!((said.code, said.stdout.as_str()), (0, "in\n"), "{said:?}");
    let said = run(place.lockkeeper(&["run", "--shared", "x", "sh", "-c", &inner("--shared")]));
    assert_eq!((said.code, said.stdout.as_str()), (0, "in\n"), "{said:?}");
    let said = run(place.lockkeeper(&["run", "--shared", "x", "sh", "-c", &inner("-x")]));
    assert_eq!((said.code, said.stdout.as_str()), (64, ""), "{said:?}");
    assert!(said.stderr.contains("would wait for itself"), "{said:?}");
}

#[test]
fn an_environment_that_outlived_its_lock_is_not_believed() {
    let place = Place::new();
    let said = run(place.lockkeeper(&["run", "x", "printenv", "LOCKKEEPER_HELD"]));
    let held = said.stdout.trim().to_owned();
    let _holder = place.hold("x");
    let mut command = place.lockkeeper(&["run", "-n", "x", "true"]);
    command.env("LOCKKEEPER_HELD", held);
    assert_eq!(run(command).code, 75);
}

#[test]
fn an_outer_kill_reaches_the_innermost_command() {
    let place = Place::new();
    let script = format!("{PROGRAM} run y sh -c 'echo $$ > inner.pid; exec sleep 60'");
    let mut outer = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", &script]));
    let inner = place.pid("inner.pid");
    outer.signal(rustix::process::Signal::KILL);
    outer.status();
    crate::kit::until_dead(inner);
    assert_eq!(run(place.lockkeeper(&["run", "--wait", "5s", "y", "true"])).code, 0);
}

#[test]
fn a_lock_that_was_broken_covers_nothing() {
    let place = Place::new();
    let script = format!(
        "echo $$ > outer.pid; until [ -e go ]; do sleep 0.02; done; {PROGRAM} run -n x echo in"
    );
    let words = ["run", "--on-lost", "ignore", "x", "sh", "-c", &script];
    let outer = Running::start(place.lockkeeper(&words));
    place.pid("outer.pid");
    // In order: its holder keeps the name until it lets go, but may not rely on it.
    assert_eq!(run(place.lockkeeper(&["break", "x", "--reason", "r", "--yes"])).code, 0);
    std::fs::write(place.file("go"), "").unwrap();
    let said = outer.end();
    assert_eq!((said.code, said.stdout.as_str()), (79, ""), "{said:?}");
    assert!(said.stderr.contains("busy"), "{said:?}");
}
