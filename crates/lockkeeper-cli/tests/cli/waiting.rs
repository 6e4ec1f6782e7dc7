//! Busy, waiting, skipping: and always who is in the way.

use std::time::Duration;

use rustix::process::Signal;

use crate::kit::{Frozen, Place, Running, run};

#[test]
fn busy_is_75_and_names_the_holder() {
    let place = Place::new();
    let words = ["run", "--note", "release 2.14", "--owner", "alice", "x", "sleep", "60"];
    let holder = Running::start(place.lockkeeper(&words));
    crate::kit::eventually("holder", || {
        (!place.status("x")["holders"].as_array().unwrap().is_empty()).then_some(())
    });
    for words in [&["run", "-n", "x", "true"][..], &["run", "--wait", "0", "x", "true"]] {
        let said = run(place.lockkeeper(words));
        assert_eq!(said.code, 75, "{said:?}");
        let pid = format!("(pid {})", holder.pid());
        for part in ["busy: \"x\" is held by alice@", &pid, "note: release 2.14"] {
            assert!(said.stderr.contains(part), "{part} in {said:?}");
        }
    }
    let said = run(place.lockkeeper(&["run", "-n", "-E", "9", "x", "true"]));
    assert_eq!(said.code, 9);
}

#[test]
fn a_wait_has_its_limit() {
    let place = Place::new();
    let _holder = place.hold("x");
    let said = run(place.lockkeeper(&["run", "--wait", "300ms", "x", "true"]));
    assert_eq!(said.code, 75, "{said:?}");
    assert!(said.took >= Duration::from_millis(300), "{said:?}");
    assert!(said.took < Duration::from_secs(2), "{said:?}");
    assert!(said.stderr.contains("gave up after"), "{said:?}");
}

#[test]
fn skip_is_quiet_success() {
    let place = Place::new();
    let holder = place.hold("x");
    let said = run(place.lockkeeper(&["run", "--skip", "x", "sh", "-c", "echo ran; exit 3"]));
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (0, "", ""));
    drop(holder);
    let said =
        run(place.lockkeeper(&["run", "--skip", "--wait", "10s", "x", "sh", "-c", "exit 3"]));
    assert_eq!(said.code, 3, "a free lock is not skipped");
}

#[test]
fn a_waiter_is_told_whom_it_waits_for_after_a_second() {
    let place = Place::new();
    let holder = place.hold("x");
    let waiter = Running::start(place.lockkeeper(&["run", "x", "echo", "mine"]));
    let took = waiter.until_stderr("waiting for \"x\": held by ");
    assert!(took >= Duration::from_millis(900), "{took:?}");
    assert!(took < Duration::from_millis(1800), "{took:?}");
    assert!(waiter.stderr().contains(&format!("(pid {})", holder.pid())));
    assert_eq!(waiter.stdout(), "");
    drop(holder);
    let said = waiter.end();
    assert_eq!((said.code, said.stdout.as_str()), (0, "mine\n"));
    assert!(said.stderr.contains("acquired \"x\" after"), "{said:?}");
}

#[test]
fn waiting_is_an_event_in_json_and_nothing_when_quiet() {
    let place = Place::new();
    let holder = place.hold("x");
    let loud = Running::start(place.lockkeeper(&["--json", "run", "x", "true"]));
    let quiet = Running::start(place.lockkeeper(&["--quiet", "run", "x", "true"]));
    loud.until_stderr("\"event\":\"waiting\"");
    drop(holder);
    assert_eq!(quiet.end().stderr, "");
    let events = loud.end().events();
    let waiting = &events[0];
    assert_eq!(waiting["event"], "waiting");
    assert!(waiting["holders"][0]["pid"].is_u64(), "{waiting}");
    assert!(waiting["holders"][0]["token"].is_string(), "{waiting}");
    assert!(waiting["waited_ms"].as_u64().unwrap() >= 900);
}

#[test]
fn first_come_first_served() {
    let place = Place::new();
    let holder = place.hold("x");
    let mut waiters = Vec::new();
    for number in 1..=4 {
        let script = format!("echo {number} >> order");
        waiters.push(Running::start(place.lockkeeper(&["run", "x", "sh", "-c", &script])));
        place.until_waiting("x", number);
    }
    drop(holder);
    for waiter in waiters {
        assert_eq!(waiter.end().code, 0);
    }
    let order = std::fs::read_to_string(place.file("order")).unwrap();
    assert_eq!(order, "1\n2\n3\n4\n");
}

#[test]
fn a_stop_while_waiting_is_honoured_at_once() {
    let place = Place::new();
    let _holder = place.hold("x");
    for (signal, number) in [
        (Signal::TERM, 15),
        (Signal::INT, 2),
        (Signal::HUP, 1),
        (Signal::QUIT, 3),
        (Signal::USR1, 10),
    ] {
        let waiter = Running::start(place.lockkeeper(&["run", "x", "true"]));
        place.until_waiting("x", 1);
        let sent = std::time::Instant::now();
        waiter.signal(signal);
        let said = waiter.end();
        assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
        assert_eq!(said.code, 128 + number);
        assert_eq!(place.status("x")["waiters"].as_array().unwrap().len(), 0, "its place is gone");
    }
}

#[test]
fn a_stop_while_the_engine_is_silent_is_honoured_at_once() {
    let place = Place::new();
    assert_eq!(run(place.lockkeeper(&["run", "x", "true"])).code, 0);
    let _frozen = Frozen::freeze(&place);
    let waiter = Running::start(place.lockkeeper(&["run", "x", "true"]));
    waiter.until_stderr("lockkeeper: waiting for");
    let sent = std::time::Instant::now();
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.end().code, 143);
    assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
}

#[test]
fn an_engine_that_does_not_answer_is_69_or_what_was_asked_for() {
    let place = Place::new();
    assert_eq!(run(place.lockkeeper(&["run", "x", "true"])).code, 0);
    let _frozen = Frozen::freeze(&place);
    let start = |policy| {
        let words = ["run", "--if-unavailable", policy, "x", "sh", "-c", "echo ran; exit 4"];
        Running::start(place.lockkeeper(&words))
    };
    let (fail, skip, go) = (start("fail"), start("skip"), start("run"));
    let said = fail.end();
    assert_eq!((said.code, said.stdout.as_str()), (69, ""), "{said:?}");
    assert!(said.took < Duration::from_secs(9), "{said:?}");
    let said = skip.end();
    assert_eq!((said.code, said.stdout.as_str()), (0, ""), "{said:?}");
    let said = go.end();
    assert_eq!((said.code, said.stdout.as_str()), (4, "ran\n"), "{said:?}");
    assert!(said.stderr.contains("WITHOUT the lock"), "{said:?}");
}

#[test]
fn readers_share_and_a_writer_waits() {
    let place = Place::new();
    let words = ["run", "--shared", "x", "sh", "-c", "echo $$ > reader.pid; exec sleep 60"];
    let _reader = Running::start(place.lockkeeper(&words));
    place.pid("reader.pid");
    assert_eq!(run(place.lockkeeper(&["run", "-n", "--shared", "x", "true"])).code, 0);
    assert_eq!(run(place.lockkeeper(&["run", "-n", "--exclusive", "x", "true"])).code, 75);
    // Without a flag, alone means writing where others read.
    assert_eq!(run(place.lockkeeper(&["run", "-n", "x", "true"])).code, 75);
}

#[test]
fn permits_are_counted() {
    let place = Place::new();
    let words = [
        "run",
        "--permits",
        "2",
        "--capacity",
        "3",
        "x",
        "sh",
        "-c",
        "echo 1 > got; exec sleep 60",
    ];
    let _holder = Running::start(place.lockkeeper(&words));
    place.line("got");
    assert_eq!(run(place.lockkeeper(&["run", "-n", "--capacity", "3", "x", "true"])).code, 0);
    let two = ["run", "-n", "--permits", "2", "--capacity", "3", "x", "true"];
    assert_eq!(run(place.lockkeeper(&two)).code, 75);
    let said = run(place.lockkeeper(&["run", "-n", "--capacity", "4", "x", "true"]));
    assert_eq!(said.code, 64, "{said:?}");
    assert!(said.stderr.contains("capacity of 3"), "{said:?}");
}
