//! The command and everything it starts: one process group, ended as a whole.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group};

use super::environment::Environment;
use super::terminal::Terminal;
use crate::exit::{self, Failure};
use crate::sys::{self, Guardian};

/// How the command itself ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// With this code.
    Code(u8),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// The code we pass on.
    pub(super) fn code(self) -> u8 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => exit::by_signal(signal),
        }
    }
}

/// The process group of the command.
#[derive(Debug)]
pub(super) struct Group {
    /// The command's process, and so the group's id.
    pub(super) leader: Pid,
    /// How the command ended, once it has.
    pub(super) exit: Option<Exit>,
    guardian: Option<Guardian>,
}

impl Group {
    /// Starts the command. Must be called on the main thread: the command
    /// dies with the thread that made it.
    pub(super) fn start(
        words: &[OsString],
        environment: &Environment,
        terminal: &Terminal,
    ) -> Result<Self, Failure> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).process_group(0);
        environment.put_into(&mut command);
        // Without a guardian, a kill -9 of ours would still end the command itself.
        let guardian = Guardian::post().ok();
        let tty = terminal.to_hand_over();
        sys::prepare(&mut command, guardian.as_ref(), tty, terminal.heed);
        // Orphans of the group become our children, so that we hear of their end.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let child = command.spawn().map_err(|error| refused(words, &error))?;
        let leader = Pid::from_child(&child);
        Ok(Group { leader, exit: None, guardian })
    }

    /// Sends a signal to the whole group.
    pub(super) fn send(&self, signal: Signal) {
        // A group that is gone needs no signal.
        let _ = kill_process_group(self.leader, signal);
    }

    /// Asks the whole group to end, even if it is stopped.
    pub(super) fn terminate(&self) {
        self.send(Signal::TERM);
        self.send(Signal::CONT);
    }

    /// Whether anything of the group is left.
    pub(super) fn is_over(&self) -> bool {
        let probe = rustix::process::test_kill_process_group(self.leader);
        self.exit.is_some() && probe == Err(Errno::SRCH)
    }

    /// Takes in what has ended, and returns the signal that stopped the command, if one did.
    pub(super) fn reap(&mut self) -> Option<i32> {
        let mut stopped = None;
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        // Errors: no children left, or interrupted; the next signal tells.
        while let Ok(Some((pid, status))) = rustix::process::wait(options) {
            if pid == self.leader {
                stopped = status.stopping_signal();
                self.exit = self.exit.or_else(|| ended(status));
            } else if self.guardian.as_ref().is_some_and(|guardian| guardian.pid() == pid) {
                // Somebody killed it; its drop must not hit a later process.
                std::mem::forget(self.guardian.take());
            }
        }
        stopped
    }
}

fn ended(status: WaitStatus) -> Option<Exit> {
    if let Some(code) = status.exit_status() {
        // The kernel keeps eight bits.
        return Some(Exit::Code((code & 0xff) as u8));
    }
    status.terminating_signal().map(Exit::Signal)
}

fn refused(words: &[OsString], error: &io::Error) -> Failure {
    let command = words[0].to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(
            exit::NOT_FOUND,
            "not_found",
            format!("run {command:?}: command not found"),
        ),
        _ => Failure::new(
            exit::NOT_EXECUTABLE,
            "not_executable",
            format!("run {command:?}: cannot be executed: {error}"),
        ),
    }
}
