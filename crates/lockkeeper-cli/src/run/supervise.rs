//! Looking after the command until nothing of it is left.

use std::time::Duration;

use lockkeeper::Cause;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::child::{Exit, Group};
use super::lost::{Due, Watch};
use super::signals::Signals;
use super::terminal::Terminal;
use crate::output::{Output, millis, span};

/// How often we look for the last of a group whose command has ended; only a
/// safety net, because orphans become our children.
const LOOK: Duration = Duration::from_millis(100);
/// After this long, people are told that we wait for what the command left.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why a command was ended by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Its lock was lost, or was about to be.
    Lost,
    /// Its run limit was reached.
    Timeout,
}

/// How it all ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// How the command itself ended.
    pub(super) exit: Exit,
    /// Why we ended it, if we did.
    pub(super) why: Option<Why>,
    /// Whether it had the terminal when it ended.
    pub(super) had_terminal: bool,
}

/// Everything that can happen to a running command.
pub(super) struct Supervisor<'a> {
    pub(super) group: Group,
    pub(super) signals: &'a mut Signals,
    pub(super) terminal: &'a Terminal,
    pub(super) output: &'a Output,
    /// The lock to watch, if there is one of our own.
    pub(super) watch: Option<Watch<'a>>,
    pub(super) kill_after: Duration,
    pub(super) timeout_at: Option<Instant>,
    pub(super) name: &'a str,
    pub(super) why: Option<Why>,
    pub(super) kill_at: Option<Instant>,
    /// Whether somebody has sent us TERM already.
    pub(super) termed: bool,
    /// Whether somebody has asked us to stop.
    pub(super) stopping: bool,
}

/// What is known once the command itself has ended.
struct Rest {
    since: Instant,
    had_terminal: bool,
    mentioned: bool,
}

impl Supervisor<'_> {
    /// Runs until the whole group is gone.
    pub(super) async fn see_through(mut self) -> Ended {
        let mut rest: Option<Rest> = None;
        loop {
            // Whatever came before we listened is found here as well.
            if let Some(signal) = self.group.reap() {
                self.on_stopped(signal);
            }
            if let Some(exit) = self.group.exit {
                let rest = rest.get_or_insert_with(|| self.on_exit(exit));
                if self.group.is_over() {
                    return Ended { exit, why: self.why, had_terminal: rest.had_terminal };
                }
                self.mention(rest);
            }
            let over = rest.is_some();
            tokio::select! {
                biased;
                signal = self.signals.next() => self.on_signal(signal),
                due = next_due(&mut self.watch) => self.on_due(due),
                () = at(self.timeout_at) => self.on_timeout(),
                () = at(self.kill_at) => self.kill(),
                () = sleep(LOOK), if over => {}
            }
        }
    }

    /// The command itself has ended. What it left keeps the lock until it ends
    /// too, unless a signal ended the command: then it was all meant to end.
    fn on_exit(&mut self, exit: Exit) -> Rest {
        let had_terminal = self.terminal.belongs_to(self.group.leader);
        self.terminal.take_back_from(self.group.leader);
        if matches!(exit, Exit::Signal(_)) || self.stopping {
            self.stop();
        }
        Rest { since: Instant::now(), had_terminal, mentioned: false }
    }

    fn on_signal(&mut self, signal: i32) {
        match signal {
            // Taken in at the top of the loop.
            libc::SIGCHLD => {}
            libc::SIGCONT => self.go_on(),
            libc::SIGTSTP => self.group.send(Signal::TSTP),
            libc::SIGTERM if self.termed => self.kill(),
            libc::SIGUSR1 | libc::SIGUSR2 => self.pass_on(signal),
            // Leftovers of a command may ignore INT; what is meant is the end.
            _ if self.group.exit.is_some() => self.stop(),
            signal => {
                self.stopping = true;
                self.termed |= signal == libc::SIGTERM;
                self.pass_on(signal);
            }
        }
    }

    fn pass_on(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.group.send(signal);
        }
        if signal == libc::SIGTERM {
            self.group.send(Signal::CONT);
        }
    }

    /// Asks what is left to end, and makes sure that it does.
    fn stop(&mut self) {
        self.group.terminate();
        self.kill_at.get_or_insert(Instant::now() + self.kill_after);
    }

    /// The command was stopped: by Ctrl-Z, or for touching a terminal it has not got.
    fn on_stopped(&mut self, signal: i32) {
        let group = self.group.leader;
        match signal {
            libc::SIGTTIN | libc::SIGTTOU if self.terminal.is_ours() => {
                self.terminal.give_to(group);
                self.group.send(Signal::CONT);
            }
            libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => {
                // The shell that sees us stop takes the terminal.
                self.warn_of_stop();
                crate::sys::stop_ourselves();
                // Continued, perhaps after hours: the lock first.
                self.go_on();
            }
            // Somebody stopped the command alone; the lock is kept.
            _ => {}
        }
    }

    /// We were continued: so is the command, if its lock is still good.
    fn go_on(&mut self) {
        if let Some(due @ Due::Kill { .. }) = self.watch.as_mut().and_then(Watch::judge) {
            return self.on_due(due);
        }
        if self.terminal.is_ours() && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            self.terminal.give_to(self.group.leader);
        }
        self.group.send(Signal::CONT);
    }

    fn warn_of_stop(&self) {
        if let Some(watch) = &self.watch {
            let (name, left) = (self.name, span(watch.left()));
            self.output.say(&format!(
                "stopped: nobody renews {name:?} now; it is lost, and the command ended, unless continued within {left}"
            ));
        }
    }

    fn on_due(&mut self, due: Due) {
        let name = self.name;
        match due {
            Due::Term { cause, early, kill_in } => {
                self.group.terminate();
                let (verb, left) = (if early { "losing" } else { "lost" }, span(kill_in));
                let text = format!("{verb} {name:?}: {cause}; sent TERM, KILL in {left}");
                self.report(&cause, &text, "term");
            }
            Due::Kill { cause } => {
                self.kill();
                self.report(&cause, &format!("lost {name:?}: {cause}; sent KILL"), "kill");
            }
            Due::Tell { cause } => {
                let text = format!("lost {name:?}: {cause}; the command runs on without it");
                self.report(&cause, &text, "ignore");
            }
        }
        self.why = Some(Why::Lost);
    }

    fn report(&self, cause: &Cause, text: &str, action: &str) {
        let reason = match cause {
            Cause::Broken { reason } => Some(reason),
            _ => None,
        };
        let fields = json!({
            "name": self.name, "cause": cause.as_str(), "reason": reason, "action": action,
        });
        self.output.event("lost", fields);
        self.output.say(text);
    }

    fn on_timeout(&mut self) {
        self.timeout_at = None;
        let fields = json!({ "name": self.name, "kill_after_ms": millis(self.kill_after) });
        self.output.event("timeout", fields);
        self.output.say("the run limit is reached; sent TERM");
        self.stop();
        self.why.get_or_insert(Why::Timeout);
    }

    fn kill(&mut self) {
        self.kill_at = None;
        self.group.send(Signal::KILL);
    }

    fn mention(&self, rest: &mut Rest) {
        if !rest.mentioned && rest.since.elapsed() >= PATIENCE {
            rest.mentioned = true;
            self.output.say(
                "the command has ended, but processes it started have not; the lock is kept for them",
            );
        }
    }
}

async fn next_due(watch: &mut Option<Watch<'_>>) -> Due {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
