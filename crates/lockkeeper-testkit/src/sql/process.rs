//! A server's processes: started, stopped where they stand, ended by their ids.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server's first process, and so whatever it started.
#[derive(Debug)]
pub(super) struct Process(Child);

impl Process {
    /// Starts it, with what it says going to `folder/log`.
    ///
    /// # Panics
    /// When the program is not there.
    pub(super) fn start(command: &mut Command, folder: &Path) -> Self {
        let log = fs::File::options().create(true).append(true).open(folder.join("log"));
        let log = log.expect("a log file");
        let spawned = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn();
        match spawned {
            Ok(child) => Process(child),
            Err(error) => panic!("{command:?}: {error} (scripts/setup installs it)"),
        }
    }

    /// Whether it has not ended.
    pub(super) fn is_up(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Sends a signal to it and to what it started.
    pub(super) fn signal_all(&self, signal: libc::c_int) {
        if signal == libc::SIGSTOP {
            self.stop();
        }
        let children = self.children();
        send(self.0.id(), signal);
        children.into_iter().for_each(|child| send(child, signal));
    }

    /// Stops it alone: it must not start another while we look.
    fn stop(&self) {
        send(self.0.id(), libc::SIGSTOP);
        let start = Instant::now();
        while !matches!(state(self.0.id()), Some('T' | 'Z') | None)
            && start.elapsed() < Duration::from_secs(1)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it and what it started at once, as a crash would.
    pub(super) fn kill(&mut self) {
        self.stop();
        let children = self.children();
        self.signal_all(libc::SIGKILL);
        let _ = self.0.wait();
        // A process that still has the data open keeps the next server away.
        let start = Instant::now();
        while children.iter().any(|child| is_alive(*child))
            && start.elapsed() < Duration::from_secs(5)
        {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Asks it to end with `signal`, and kills it if it does not soon.
    pub(super) fn end(&mut self, signal: libc::c_int) {
        self.signal_all(libc::SIGCONT);
        send(self.0.id(), signal);
        let start = Instant::now();
        while self.is_up() {
            if start.elapsed() > Duration::from_secs(10) {
                return self.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn children(&self) -> Vec<u32> {
        let id = self.0.id();
        let list = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        list.unwrap_or_default().split_whitespace().filter_map(|id| id.parse().ok()).collect()
    }
}

fn send(id: u32, signal: libc::c_int) {
    let id = libc::pid_t::try_from(id).expect("a process id");
    // SAFETY: kill has no memory to corrupt; the id is that of our own child,
    // not reaped yet, or of a child that it had a moment ago.
    unsafe { libc::kill(id, signal) };
}

fn is_alive(id: u32) -> bool {
    // A zombie has closed everything; it waits only for its parent.
    state(id).is_some_and(|state| state != 'Z')
}

/// The letter of a process's state, if it is there.
fn state(id: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}
