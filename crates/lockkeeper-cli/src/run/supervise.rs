//! Looking after the command until nothing of it is left.

use std::time::Duration;

use lockkeeper::Cause;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::child::{Exit, Group};
use super::lost::{Due, Watch};
use super::signals::{FORWARDED, Signals};
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
    /// Whether somebody has sent TERM already.
    pub(super) termed: bool,
}

impl Supervisor<'_> {
    /// Runs until the whole group is gone.
    pub(super) async fn see_through(mut self) -> Ended {
        let mut left_at: Option<(Instant, bool)> = None;
        let mut had_terminal = false;
        loop {
            // Whatever came before we listened is found here as well.
            if let Some(signal) = self.group.reap() {
                self.on_stopped(signal).await;
            }
            if let Some(exit) = self.group.exit {
                had_terminal |= self.terminal.belongs_to(self.group.leader);
                if self.group.is_over() {
                    self.terminal.take_back_from(self.group.leader);
                    return Ended { exit, why: self.why, had_terminal };
                }
                self.mention_leftovers(left_at.get_or_insert((Instant::now(), false)));
            }
            let over = self.group.exit.is_some();
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

    fn on_signal(&mut self, signal: i32) {
        match signal {
            // Taken in at the top of the loop.
            libc::SIGCHLD => {}
            libc::SIGCONT => self.go_on(),
            libc::SIGTERM if self.termed => self.kill(),
            libc::SIGTERM => {
                self.termed = true;
                self.group.terminate();
            }
            libc::SIGTSTP => self.group.send(Signal::TSTP),
            signal if FORWARDED.contains(&signal) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    self.group.send(signal);
                }
            }
            _ => {}
        }
    }

    /// The command was stopped: by Ctrl-Z, or for touching a terminal it has not got.
    async fn on_stopped(&mut self, signal: i32) {
        let group = self.group.leader;
        match signal {
            libc::SIGTTIN | libc::SIGTTOU if self.terminal.is_ours() => {
                self.terminal.give_to(group);
                self.group.send(Signal::CONT);
            }
            libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => {
                self.terminal.take_back_from(group);
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
        self.group.terminate();
        self.kill_at = Some(Instant::now() + self.kill_after);
        self.why.get_or_insert(Why::Timeout);
    }

    fn kill(&mut self) {
        self.kill_at = None;
        self.group.send(Signal::KILL);
    }

    fn mention_leftovers(&self, (since, mentioned): &mut (Instant, bool)) {
        if !*mentioned && since.elapsed() >= PATIENCE {
            *mentioned = true;
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
