//! Everything the command starts belongs to it.

use crate::kit::{Place, Running, eventually, is_alive, kill, run, until_dead};
use rustix::process::Signal;

#[test]
fn what_the_command_leaves_behind_keeps_the_lock() {
    let place = Place::new();
    let script = "(echo $$ > ignored; until [ -e go ]; do sleep 0.02; done; echo late > late) & \
                  echo $! > left.pid; exit 3";
    let mut wrapper = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", script]));
    let left = place.pid("left.pid");
    wrapper.until_stderr("processes it started have not");
    assert!(is_alive(left) && wrapper.is_running());
    assert_eq!(run(place.lockkeeper(&["run", "-n", "x", "true"])).code, 75);
    std::fs::write(place.file("go"), "").unwrap();
    assert_eq!(wrapper.end().code, 3, "the command's own code, when all is over");
    assert_eq!(place.line("late"), "late");
    assert_eq!(run(place.lockkeeper(&["run", "-n", "x", "true"])).code, 0);
}

#[test]
fn term_reaches_what_the_command_left_behind() {
    let place = Place::new();
    let script = "sleep 60 & echo $! > left.pid; exit 3";
    let wrapper = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", script]));
    let left = place.pid("left.pid");
    wrapper.until_stderr("processes it started have not");
    wrapper.signal(Signal::TERM);
    assert_eq!(wrapper.end().code, 3);
    assert!(!is_alive(left));
}

#[test]
fn a_command_ended_by_a_signal_takes_what_it_started_along() {
    let place = Place::new();
    // Shells without job control start background jobs that ignore INT.
    let script = "sleep 60 & echo $! > left.pid; kill -INT $$; wait";
    let said = run(place.lockkeeper(&["run", "x", "sh", "-c", script]));
    assert_eq!(said.code, 130, "{said:?}");
    assert!(!is_alive(place.pid("left.pid")));
}

#[test]
fn a_daemon_that_left_the_group_is_not_waited_for() {
    let place = Place::new();
    let script = "setsid sh -c 'echo $$ > daemon.pid; exec sleep 60' > /dev/null 2>&1 & \
                  until [ -s daemon.pid ]; do sleep 0.02; done";
    let said = run(place.lockkeeper(&["run", "x", "sh", "-c", script]));
    let daemon = place.pid("daemon.pid");
    let alive = is_alive(daemon);
    kill(daemon, Signal::KILL);
    assert!(said.code == 0 && alive, "{said:?}");
    until_dead(daemon);
}

#[test]
fn nothing_is_left_after_a_run() {
    let place = Place::new();
    let script = "echo $PPID > wrapper.pid; exit 0";
    assert_eq!(run(place.lockkeeper(&["run", "x", "sh", "-c", script])).code, 0);
    let wrapper = place.pid("wrapper.pid");
    // Neither the guardian nor anything else has the wrapper as its parent, or its name.
    eventually("an empty process list", || {
        let ours = |stat: String| stat.contains(&format!(" {wrapper} ")) && stat.contains("lockk");
        let stats = std::fs::read_dir("/proc").unwrap().flatten();
        let left = stats.filter_map(|dir| std::fs::read_to_string(dir.path().join("stat")).ok());
        (left.filter(|stat| ours(stat.clone())).count() == 0).then_some(())
    });
}
