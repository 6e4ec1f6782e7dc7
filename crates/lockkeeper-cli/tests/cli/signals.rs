//! Signals to the wrapper: passed on, and never the lock free while the command runs.

use std::time::Duration;

use rustix::process::Signal;

use crate::kit::{Place, Running, eventually, is_alive, run, until_dead};

/// A command with a child in the background; both write their process ids.
const FAMILY: &str = "sleep 60 & echo $! > grandchild.pid; echo $$ > child.pid; wait";

#[test]
fn signals_are_passed_on() {
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let place = Place::new();
        let script = format!(
            "trap 'echo {name} > caught; exit 9' {name}; echo $$ > child.pid; while :; do sleep 0.05; done"
        );
        let wrapper = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", &script]));
        place.pid("child.pid");
        wrapper.signal(signal);
        assert_eq!(wrapper.end().code, 9);
        assert_eq!(place.line("caught"), name);
    }
}

#[test]
fn term_ends_the_whole_group_and_then_the_wrapper() {
    let place = Place::new();
    let wrapper = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", FAMILY]));
    let (child, grandchild) = (place.pid("child.pid"), place.pid("grandchild.pid"));
    wrapper.signal(Signal::TERM);
    assert_eq!(wrapper.end().code, 143);
    assert!(!is_alive(child) && !is_alive(grandchild));
    assert_eq!(run(place.lockkeeper(&["run", "-n", "x", "true"])).code, 0);
}

#[test]
fn the_lock_is_not_free_while_the_command_winds_up() {
    let place = Place::new();
    let script = "trap 'echo 1 > caught; until [ -e go ]; do sleep 0.02; done; exit 5' TERM; \
                  echo $$ > child.pid; while :; do sleep 0.05; done";
    let mut wrapper = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", script]));
    place.pid("child.pid");
    wrapper.signal(Signal::TERM);
    place.line("caught");
    assert_eq!(run(place.lockkeeper(&["run", "-n", "x", "true"])).code, 75);
    assert!(wrapper.is_running());
    std::fs::write(place.file("go"), "").unwrap();
    assert_eq!(wrapper.end().code, 5);
    assert_eq!(run(place.lockkeeper(&["run", "-n", "x", "true"])).code, 0);
}

#[test]
fn a_second_term_kills() {
    let place = Place::new();
    let script = "trap 'echo 1 > caught' TERM; echo $$ > child.pid; while :; do sleep 0.05; done";
    let wrapper = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", script]));
    place.pid("child.pid");
    wrapper.signal(Signal::TERM);
    place.line("caught");
    wrapper.signal(Signal::TERM);
    assert_eq!(wrapper.end().code, 137);
}

#[test]
fn a_stopped_command_can_be_ended() {
    let place = Place::new();
    let wrapper = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", FAMILY]));
    let child = place.pid("child.pid");
    crate::kit::kill(child, Signal::STOP);
    eventually("stop", || (crate::kit::state(child) == Some('T')).then_some(()));
    wrapper.signal(Signal::TERM);
    assert_eq!(wrapper.end().code, 143);
}

#[test]
fn kill_9_of_the_wrapper_takes_the_whole_group_down() {
    let place = Place::new();
    // A command that ignores what can be ignored, with a child of its own.
    let script = format!("trap '' TERM HUP INT; {FAMILY}");
    let mut wrapper = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", &script]));
    let (child, grandchild) = (place.pid("child.pid"), place.pid("grandchild.pid"));
    // The next one looks, as its very first act, whether they are gone.
    let look = format!(
        "for p in {child} {grandchild}; do grep -qs '^State:.[^ZX]' /proc/$p/status && echo $p lives; done; echo done"
    );
    let next = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", &look]));
    place.until_waiting("x", 1);
    wrapper.signal(Signal::KILL);
    wrapper.status();
    let killed = std::time::Instant::now();
    until_dead(child);
    until_dead(grandchild);
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    let said = next.end();
    assert_eq!(said.stdout, "done\n", "nobody of the killed one's group ran beside the next");
}

#[test]
fn kill_9_of_the_wrapper_ends_the_command_even_without_its_guardian() {
    let place = Place::new();
    let script = "trap '' TERM HUP INT; echo $$ > child.pid; while :; do sleep 0.05; done";
    let mut wrapper = Running::start(place.lockkeeper(&["run", "x", "sh", "-c", script]));
    let child = place.pid("child.pid");
    let children = format!("/proc/{0}/task/{0}/children", wrapper.pid());
    let guardian = eventually("guardian", || {
        let children = std::fs::read_to_string(&children).unwrap();
        let mut pids = children.split_whitespace().map(|pid| pid.parse::<i32>().unwrap());
        pids.find(|&pid| pid != child)
    });
    crate::kit::kill(guardian, Signal::KILL);
    until_dead(guardian);
    wrapper.signal(Signal::KILL);
    wrapper.status();
    until_dead(child);
}

#[test]
fn what_was_ignored_stays_ignored() {
    let place = Place::new();
    // `nohup`: the wrapper must neither die of HUP nor undo the wish for its command.
    let script = "echo $$ > child.pid; until [ -e go ]; do sleep 0.02; done; kill -HUP $$; exit 6";
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let mut command = place.lockkeeper(&[]);
    command = {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("trap '' HUP; exec {program} run x sh -c '{script}'")]);
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.current_dir(&place.dir);
        shell
    };
    let wrapper = Running::start(command);
    place.pid("child.pid");
    wrapper.signal(Signal::HUP);
    std::fs::write(place.file("go"), "").unwrap();
    assert_eq!(wrapper.end().code, 6);
}

#[test]
fn kill_9_of_the_wrappers_whole_group_takes_the_commands_group_down() {
    use std::os::unix::process::CommandExt;

    let place = Place::new();
    let script = "sleep 60 & echo $! > kid.pid; echo $$ > child.pid; wait";
    let mut command = place.lockkeeper(&["run", "x", "sh", "-c", script]);
    command.process_group(0);
    let mut wrapper = Running::start(command);
    let (child, kid) = (place.pid("child.pid"), place.pid("kid.pid"));
    let group = rustix::process::Pid::from_raw(wrapper.pid()).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    wrapper.status();
    until_dead(child);
    until_dead(kid);
}
