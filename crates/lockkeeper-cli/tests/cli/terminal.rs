//! A real terminal: Ctrl-C, Ctrl-Z, `fg`, reading from it, colours.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::kit::{Place, eventually, heed_signals, state, until_dead};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// An interactive shell with job control on a terminal of its own.
struct Shell {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    child: Child,
    prompts: usize,
}

impl Shell {
    fn open(place: &Place) -> Self {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let end = || -> OwnedFd { rustix::fs::open(&name, flags, Mode::empty()).unwrap() };
        let mut shell = Command::new("setsid");
        heed_signals(&mut shell);
        let child = shell
            .args(["--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"])
            .env("PS1", "READY> ")
            .env("TERM", "xterm")
            .env("LOCKKEEPER_URL", place.url())
            .env_remove("NO_COLOR")
            .env("LK", PROGRAM)
            .current_dir(&place.dir)
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut from, into) = (File::from(main.try_clone().unwrap()), screen.clone());
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                into.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        let mut shell = Shell { keyboard: File::from(main), screen, child, prompts: 0 };
        shell.until_prompt();
        shell
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn until(&self, text: &str) {
        let start = std::time::Instant::now();
        while !self.screen().contains(text) {
            assert!(start.elapsed() < crate::kit::PATIENCE, "no {text:?} on {:?}", self.screen());
            thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Waits for one more prompt than there was.
    fn until_prompt(&mut self) {
        self.prompts += 1;
        let wanted = self.prompts;
        let start = std::time::Instant::now();
        while self.screen().matches("READY> ").count() < wanted {
            assert!(start.elapsed() < crate::kit::PATIENCE, "no prompt on {:?}", self.screen());
            thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Runs a line that ends by itself, and returns what it wrote.
    fn line(&mut self, line: &str) -> String {
        let before = self.screen().len();
        self.press(&format!("{line}\n"));
        self.until_prompt();
        self.screen()[before..].to_owned()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Hanging up ends the jobs; the shell itself is ours to reap.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ctrl_c_ends_the_command_and_frees_the_lock() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    shell.press("$LK run x sh -c 'sleep 60 & echo $! > kid.pid; echo $$ > child.pid; wait'\n");
    let (child, kid) = (place.pid("child.pid"), place.pid("kid.pid"));
    shell.press("\x03");
    shell.until_prompt();
    until_dead(child);
    until_dead(kid);
    assert!(shell.line("echo code=$?").contains("code=130"), "{}", shell.screen());
    assert!(shell.line("$LK run -n x echo fr''ee").contains("free"), "{}", shell.screen());
}

#[test]
fn ctrl_c_ends_the_shells_loop_too() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    let body = "$LK run x sh -c 'echo $$ > child.pid; exec sleep 60'; echo n''ext";
    shell.press(&format!("for i in 1 2 3; do {body}; done\n"));
    place.pid("child.pid");
    shell.press("\x03");
    shell.until_prompt();
    assert!(!shell.screen().contains("next"), "{}", shell.screen());
}

#[test]
fn ctrl_c_while_waiting_gives_up() {
    let place = Place::new();
    let _holder = place.hold("x");
    let mut shell = Shell::open(&place);
    shell.press("$LK run x true\n");
    shell.until("Ctrl-C gives up");
    shell.press("\x03");
    shell.until_prompt();
    assert!(shell.line("echo code=$?").contains("code=130"), "{}", shell.screen());
}

#[test]
fn ctrl_z_stops_and_fg_goes_on() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    shell.press("$LK run x sh -c 'echo $$ > child.pid; read line; echo got $line'\n");
    let child = place.pid("child.pid");
    shell.press("\x1a");
    shell.until_prompt();
    assert!(shell.screen().contains("Stopped"), "{}", shell.screen());
    assert!(shell.screen().contains("nobody renews"), "{}", shell.screen());
    eventually("stop", || (state(child) == Some('T')).then_some(()));
    // The terminal is the shell's again, and the lock is still held.
    assert!(shell.line("$LK run -n x true; echo code=$?").contains("code=75"));
    shell.press("fg\n");
    eventually("continuation", || (state(child) == Some('S')).then_some(()));
    shell.press("hello\n");
    shell.until("got hello");
    shell.until_prompt();
}

#[test]
fn a_job_stopped_past_its_lease_never_runs_again() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    // Built-in commands only: a shell that waits for its vfork cannot be stopped.
    let script = "trap \"\" TERM; echo $$ > child.pid; while :; do echo tick >> ticks; done";
    shell.press(&format!("$LK run --lease 1s x sh -c '{script}'\n"));
    let child = place.pid("child.pid");
    shell.press("\x1a");
    shell.until_prompt();
    eventually("stop", || (state(child) == Some('T')).then_some(()));
    assert!(shell.line("$LK run --wait 15s x true; echo code=$?").contains("code=0"));
    let ticks = std::fs::read_to_string(place.file("ticks")).unwrap();
    shell.press("fg\n");
    shell.until_prompt();
    until_dead(child);
    assert_eq!(std::fs::read_to_string(place.file("ticks")).unwrap(), ticks);
    assert!(shell.line("echo code=$?").contains("code=79"), "{}", shell.screen());
}

#[test]
fn a_background_job_can_come_to_the_foreground() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    shell.line("$LK run x sh -c 'echo $$ > child.pid; read line; echo got $line' &");
    let child = place.pid("child.pid");
    // It wants to read, but the terminal is the shell's: it stops, and so do we.
    eventually("stop", || (state(child) == Some('T')).then_some(()));
    shell.press("fg\n");
    eventually("continuation", || (state(child) == Some('S')).then_some(()));
    shell.press("hello\n");
    shell.until("got hello");
    shell.until_prompt();
}

#[test]
fn the_head_of_a_pipe_keeps_the_terminal() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    // It starts to read when the command has long had its chance to take the terminal.
    let head = "until [ -s child.pid ]; do sleep 0.02; done; exec head -n1";
    let command = "echo $$ > child.pid; read line; echo got $line";
    shell.press(&format!("sh -c '{head}' | $LK run x sh -c '{command}'\n"));
    place.pid("child.pid");
    shell.press("hello\n");
    shell.until("got hello");
    shell.until_prompt();
}

#[test]
fn the_command_is_in_the_foreground_from_the_start() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    let seen = shell.line("$LK run x sh -c 'echo state=$(ps -o stat= -p $$)'");
    let state = seen.rsplit("state=").next().unwrap().lines().next().unwrap();
    assert!(state.contains('+'), "{seen}");
}

#[test]
fn a_command_behind_a_pipe_can_still_ask_on_the_terminal() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    let script = "echo $$ > child.pid; read line < /dev/tty; echo got $line";
    shell.press(&format!("true | $LK run x sh -c '{script}'\n"));
    place.pid("child.pid");
    shell.press("hello\n");
    shell.until("got hello");
    shell.until_prompt();
}

#[test]
fn the_terminal_comes_back_to_a_script() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    // A script has no job control to help itself with.
    for command in ["true", "no-such-command"] {
        shell.press(&format!(
            "sh -c '$LK run x {command}; echo over > over; read line; echo got $line'\n"
        ));
        place.line("over");
        std::fs::remove_file(place.file("over")).unwrap();
        shell.press(&format!("{command}\n"));
        shell.until(&format!("got {command}"));
        shell.until_prompt();
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    assert!(shell.line("$LK run x no-such-command").contains("\x1b[1;31m"));
    let plain = shell.line("NO_COLOR=1 $LK run x no-such-command");
    assert!(plain.contains("not found") && !plain.contains('\x1b'), "{plain:?}");
}

#[test]
fn break_asks_on_a_terminal() {
    let place = Place::new();
    let mut holder = place.hold("x");
    let mut shell = Shell::open(&place);
    shell.press("$LK break x --reason r\n");
    shell.until("[y/N]");
    shell.press("n\n");
    shell.until_prompt();
    assert!(holder.is_running());
    shell.press("$LK break x --reason r; echo code=$?\n");
    eventually("question", || (shell.screen().matches("[y/N]").count() == 2).then_some(()));
    shell.press("y\n");
    shell.until("code=0");
    assert_eq!(holder.end().code, 79);
}

#[test]
fn bench_says_how_far_it_is_and_takes_it_back() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    let said = shell.line("$LK bench solo --rounds 2 --seconds 0.1; echo done");
    assert!(said.contains("\r\u{1b}[Klockkeeper: solo: round 2 of 2, floor"), "{said:?}");
    let table = said.rfind("lockkeeper 0").unwrap();
    assert!(said[..table].ends_with("\r\u{1b}[K"), "the line is taken back: {said:?}");
    shell.press("$LK bench solo --seconds 60\n");
    shell.until("round 1 of 3");
    shell.press("\x03");
    shell.until_prompt();
    assert!(shell.line("echo code $?").contains("code 130"));
}

#[test]
fn the_command_heeds_what_we_ignore() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    let said = shell.line("$LK run x grep SigIgn /proc/self/status");
    let mask = said.split("SigIgn:").nth(1).unwrap().split_whitespace().next().unwrap();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    assert_eq!(mask & (1 << (libc::SIGTTOU - 1)), 0, "{said}");
}

#[test]
fn ctrl_c_reaches_the_rest_of_our_pipe() {
    let place = Place::new();
    let mut shell = Shell::open(&place);
    let reader = "sh -c 'trap \"echo heard > heard; exit\" INT; echo ready > reader; while :; do sleep 0.05; done'";
    shell.press(&format!("$LK run x sh -c 'echo $$ > child.pid; exec sleep 60' | {reader}\n"));
    place.pid("child.pid");
    place.line("reader");
    shell.press("\x03");
    assert_eq!(place.line("heard"), "heard");
    shell.until_prompt();
}
