//! Exit codes, arguments, stdin, environment.

use std::time::Duration;

use crate::kit::{Place, lockkeeper, run, run_with_stdin};

#[test]
fn the_commands_own_code_is_passed_on() {
    for code in 0..=255 {
        let exit = format!("exit {code}");
        assert_eq!(run(lockkeeper(&["run", "x", "sh", "-c", &exit])).code, code);
    }
}

#[test]
fn a_signal_is_128_and_its_number() {
    for signal in [1, 2, 3, 6, 9, 10, 11, 12, 13, 14, 15] {
        let script = format!("ulimit -c 0; kill -{signal} $$");
        let said = run(lockkeeper(&["run", "x", "sh", "-c", &script]));
        assert_eq!(said.code, 128 + signal, "{said:?}");
        assert_eq!(said.stderr, "");
    }
}

#[test]
fn a_command_that_cannot_run_is_126_or_127() {
    let said = run(lockkeeper(&["run", "x", "no-such-command"]));
    assert_eq!(said.code, 127);
    assert_eq!(said.stderr, "lockkeeper: run \"no-such-command\": command not found\n");
    let said = run(lockkeeper(&["run", "x", "/etc/passwd"]));
    assert_eq!(said.code, 126, "{said:?}");
    assert!(said.stderr.contains("cannot be executed"), "{said:?}");
}

#[test]
fn a_command_that_cannot_run_leaves_no_lock() {
    let place = Place::new();
    assert_eq!(run(place.lockkeeper(&["run", "x", "no-such-command"])).code, 127);
    assert_eq!(run(place.lockkeeper(&["run", "-n", "x", "true"])).code, 0);
}

#[test]
fn the_commands_flags_are_never_eaten() {
    let flags = ["-c", "-d", "-v", "--version", "--wait", "--json", "-n", "--", "--help"];
    for lead in [&["run", "x"][..], &["run", "x", "--"], &["run", "-w", "5", "--", "x"]] {
        let words: Vec<&str> = [lead, &["printf", "%s\\n"], &flags].concat();
        let said = run(lockkeeper(&words));
        assert_eq!(said.stdout.lines().collect::<Vec<_>>(), flags, "{words:?} {said:?}");
    }
    // Even the first word after the name is the command's, however it looks.
    let said = run(lockkeeper(&["run", "x", "--version"]));
    assert_eq!(said.code, 127, "{said:?}");
}

#[test]
fn stdin_reaches_the_command() {
    let said = run_with_stdin(lockkeeper(&["run", "x", "cat"]), "one\ntwo\n");
    assert_eq!((said.code, said.stdout.as_str()), (0, "one\ntwo\n"));
}

#[test]
fn the_command_learns_about_its_lock() {
    let place = Place::new();
    let mut command = place.lockkeeper(&["run", "a b", "env"]);
    // What is inherited must not hide what is true now.
    command.env("LOCKKEEPER_LOCK", "old").env("LOCKKEEPER_TOKEN", "old");
    let said = run(command);
    let value = |name: &str| {
        let lead = format!("{name}=");
        let found = said.stdout.lines().find_map(|line| line.strip_prefix(&lead));
        found.unwrap_or_else(|| panic!("{name} in {said:?}")).to_owned()
    };
    assert_eq!(value("LOCKKEEPER_LOCK"), "a b");
    assert!(value("LOCKKEEPER_TOKEN").parse::<u64>().unwrap() > 0);
    assert_eq!(value("LOCKKEEPER_OWNER").split('-').count(), 3);
    assert!(value("LOCKKEEPER_ENGINE").starts_with("local:/"));
    assert_eq!(value("LOCKKEEPER_URL"), place.url());
    assert!(value("LOCKKEEPER_HELD").contains(":a%20b:"));
}

#[test]
fn a_lock_without_a_token_hides_the_outer_one() {
    let mut command = lockkeeper(&["run", "--shared", "x", "env"]);
    command.env("LOCKKEEPER_TOKEN", "17");
    let said = run(command);
    assert!(!said.stdout.contains("LOCKKEEPER_TOKEN"), "{said:?}");
}

#[test]
fn tokens_grow_from_run_to_run() {
    let place = Place::new();
    let token = || -> u64 {
        let said = run(place.lockkeeper(&["run", "x", "printenv", "LOCKKEEPER_TOKEN"]));
        said.stdout.trim().parse().unwrap()
    };
    let (first, second) = (token(), token());
    assert!(first < second);
}

#[test]
fn wrong_words_are_64() {
    let long = "n".repeat(513);
    let cases: &[&[&str]] = &[
        &[],
        &["nonsense"],
        &["run"],
        &["run", "x"],
        &["run", "x", "--"],
        &["run", "", "true"],
        &["run", &long, "true"],
        &["run", "--bogus", "x", "true"],
        &["run", "-n", "-w", "5", "x", "true"],
        &["run", "--wait", "soon", "x", "true"],
        &["run", "--permits", "2", "x", "true"],
        &["run", "--permits", "3", "--capacity", "2", "x", "true"],
        &["run", "--shared", "--capacity", "2", "x", "true"],
        &["run", "--lease", "1ms", "x", "true"],
        &["run", "--kill-after", "16s", "x", "true"],
        &["run", "--lease", "4s", "--kill-after", "3s", "x", "true"],
        &["run", "--on-lost", "maybe", "x", "true"],
        &["fence", "x"],
        &["fence", "x", "--token", "many"],
        &["check", "x"],
        &["break", "x"],
        &["latch", "x", "set", "0"],
        &["watch", "x", "--interval", "1ms"],
    ];
    for words in cases {
        let said = run(lockkeeper(words));
        assert_eq!(said.code, 64, "{words:?} {said:?}");
        assert!(!said.stderr.is_empty() && said.stdout.is_empty(), "{words:?} {said:?}");
    }
}

#[test]
fn help_and_version_are_answers() {
    let said = run(lockkeeper(&["--version"]));
    assert_eq!((said.code, said.stdout.starts_with("lockkeeper 0.")), (0, true), "{said:?}");
    for words in [&["--help"][..], &["run", "--help"]] {
        let said = run(lockkeeper(words));
        assert_eq!(said.code, 0);
        assert!(said.stdout.contains("Exit codes:"), "{said:?}");
    }
}

#[test]
fn a_url_that_makes_no_sense_is_78_and_shows_no_secret() {
    for url in ["nonsense:x", "redis+nothing://me:hunter2@host/0?password=hunter2", "hunter2@x"] {
        for words in [&["-vv", "ls"][..], &["run", "x", "true"], &["--json", "run", "x", "true"]] {
            let mut command = lockkeeper(words);
            command.env("LOCKKEEPER_URL", url);
            let said = run(command);
            assert_eq!(said.code, 78, "{said:?}");
            assert!(!format!("{said:?}").contains("hunter2"), "{said:?}");
        }
    }
    let said =
        run(lockkeeper(&["--engine", "redis+nothing://me:hunter2@host", "run", "x", "true"]));
    assert!(!format!("{said:?}").contains("hunter2"), "{said:?}");
    assert!(said.stderr.contains("use LOCKKEEPER_URL"), "{said:?}");
    let help = run(lockkeeper(&["--engine", "redis://me:hunter2@host", "run", "--help"]));
    assert!(!help.stdout.contains("hunter2"));
}

#[test]
fn help_does_not_show_the_environments_url() {
    let mut command = lockkeeper(&["run", "--help"]);
    command.env("LOCKKEEPER_URL", "redis://me:hunter2@host");
    assert!(!run(command).stdout.contains("hunter2"));
}

#[test]
fn the_run_limit_is_124() {
    let said = run(lockkeeper(&["run", "--timeout", "200ms", "x", "sleep", "60"]));
    assert_eq!(said.code, 124, "{said:?}");
    // A command that ignores TERM gets KILL.
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    let words = ["run", "--timeout", "0.2", "--kill-after", "0.2", "x", "sh", "-c", script];
    let said = run(lockkeeper(&words));
    assert_eq!(said.code, 124, "{said:?}");
    assert!(said.took >= Duration::from_millis(400), "{said:?}");
    // One that is done in time has its own code.
    assert_eq!(run(lockkeeper(&["run", "--timeout", "20s", "x", "sh", "-c", "exit 3"])).code, 3);
}

#[test]
fn min_hold_keeps_the_name_closed() {
    // An engine that forgets with its process needs us to stay.
    let said = run(lockkeeper(&["run", "--min-hold", "700ms", "x", "true"]));
    assert!(said.code == 0 && said.took >= Duration::from_millis(700), "{said:?}");
    // One that does not lets us go, and stays closed.
    let place = Place::new();
    let said = run(place.lockkeeper(&["run", "--min-hold", "20s", "x", "true"]));
    assert!(said.code == 0 && said.took < Duration::from_secs(10), "{said:?}");
    let said = run(place.lockkeeper(&["run", "-n", "x", "true"]));
    assert_eq!(said.code, 75, "{said:?}");
    assert!(place.status("x")["closed_for_ms"].as_u64().unwrap() > 1000);
}

#[test]
fn json_events_tell_a_run_apart_from_its_command() {
    let said = run(lockkeeper(&["--json", "run", "x", "sh", "-c", "exit 75"]));
    assert_eq!(said.code, 75);
    let events = said.events();
    assert_eq!(events[0]["event"], "acquired");
    assert_eq!(events[0]["token"], "1");
    assert!(events[0]["waited_ms"].is_u64() && events[0]["owner"].is_string());
    let last = events.last().unwrap();
    assert_eq!((&last["event"], &last["outcome"]), (&"finished".into(), &"exited".into()));
    assert_eq!((&last["exit_code"], &last["command_exit_code"]), (&75.into(), &75.into()));
    assert!(last["command_signal"].is_null());
}

#[test]
fn a_url_that_may_hold_a_secret_does_not_reach_the_command() {
    let place = Place::new();
    // A directory with an @ looks like a login.
    let url = format!("local:{}/me:hunter2@host", place.dir.display());
    let mut command = lockkeeper(&["--engine", &url, "run", "x", "env"]);
    command.env_remove("LOCKKEEPER_URL");
    let said = run(command);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(!said.stdout.contains("LOCKKEEPER_URL"), "{said:?}");
}

#[test]
fn a_silent_server_is_named_without_its_secret() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let mut command = lockkeeper(&["run", "x", "true"]);
    command.env("LOCKKEEPER_URL", format!("redis://me:hunter2@127.0.0.1:{port}?connect=2s"));
    let said = run(command);
    assert_eq!(said.code, 69, "{said:?}");
    assert!(said.stderr.contains("waiting for an answer from redis://127.0.0.1:"), "{said:?}");
    assert!(!said.stderr.contains("hunter2"), "{said:?}");
}

#[test]
fn only_an_engine_that_is_away_is_unavailable() {
    for policy in ["skip", "run"] {
        let mut command = lockkeeper(&["run", "--if-unavailable", policy, "x", "echo", "ran"]);
        command.env("LOCKKEEPER_URL", "nonsense:");
        let said = run(command);
        assert_eq!((said.code, said.stdout.as_str()), (78, ""), "{said:?}");
    }
}

#[test]
fn quiet_does_not_hide_errors() {
    for words in [&["-q", "ls"][..], &["-q", "run", "x", "true"]] {
        let mut command = lockkeeper(words);
        command.env("LOCKKEEPER_URL", "nonsense:");
        let said = run(command);
        assert_eq!(said.code, 78, "{said:?}");
        assert!(said.stderr.contains("names no engine"), "{said:?}");
    }
}
