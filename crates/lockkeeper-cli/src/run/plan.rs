//! What `run` is to do: the command line, checked.

use std::ffi::OsString;
use std::time::Duration;

use lockkeeper::engine::Mode;
use lockkeeper::{LockName, LockOptions};
use tokio::time::Instant;

use super::held::Wish;
use crate::args::{OnLost, RunArgs, Unavailable};
use crate::exit::Failure;
use crate::output::span;

/// From TERM to KILL, unless the lease is too short for it.
const KILL_AFTER: Duration = Duration::from_secs(10);

/// No command needs longer than this to die of KILL.
const MAX_MARGIN: Duration = Duration::from_millis(500);

/// How long a name stays closed if we are killed: the guardian's time to end
/// the command's group, on engines that notice a death at once.
const LAST_ACT: Duration = Duration::from_millis(50);

/// A run that makes sense.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) wish: Wish,
    pub(super) patient: bool,
    pub(super) skip: bool,
    pub(super) busy_code: u8,
    pub(super) if_unavailable: Unavailable,
    pub(super) timeout: Option<Duration>,
    pub(super) on_lost: OnLost,
    pub(super) kill_after: Duration,
    pub(super) command: Vec<OsString>,
}

impl Plan {
    pub(super) fn of(args: RunArgs) -> Result<Self, Failure> {
        let mode = mode(&args);
        let kill_after = kill_after(&args)?;
        let patient = !(args.no_wait || args.skip && args.wait.is_none());
        let (name, command) = split(args.words)?;
        let mut options =
            LockOptions::default().with_lease(args.lease).with_min_hold(args.min_hold);
        options.wait = args.wait;
        options.lock_delay = LAST_ACT;
        options.max_hold = args.max_hold;
        options.note = args.note;
        options.who = args.owner;
        options.validate()?;
        Ok(Plan {
            wish: Wish { name, mode, options },
            patient,
            skip: args.skip,
            busy_code: args.busy_exit_code,
            if_unavailable: args.if_unavailable,
            timeout: args.timeout,
            on_lost: args.on_lost,
            kill_after,
            command,
        })
    }

    /// When a lock granted now is at the end of `--max-hold`, less a margin to
    /// end the command in: the name is free at that very moment.
    pub(super) fn max_end(&self, granted_at: Instant) -> Option<Instant> {
        let max = self.wish.options.max_hold?;
        let margin = (Duration::from_millis(100) + max / 100).min(MAX_MARGIN).min(max / 2);
        Some(granted_at + max - margin)
    }
}

fn mode(args: &RunArgs) -> Mode {
    match (args.capacity, args.shared, args.exclusive) {
        (Some(of), ..) => Mode::Permits { count: args.permits.unwrap_or(1), of },
        (None, true, _) => Mode::Read,
        (None, _, true) => Mode::Write,
        _ => Mode::Exclusive,
    }
}

/// From TERM to KILL: must fit between two renewals and the lock's end.
fn kill_after(args: &RunArgs) -> Result<Duration, Failure> {
    let max_hold = args.max_hold.unwrap_or(Duration::MAX);
    let half = args.lease.min(max_hold) / 2;
    match args.kill_after {
        None => Ok(KILL_AFTER.min(half).min(max_hold / 4)),
        Some(after) if after <= half => Ok(after),
        Some(after) => {
            let text = format!(
                "--kill-after {} is more than half of the lease or --max-hold: {} at most",
                span(after),
                span(half)
            );
            Err(Failure::usage(text).hint("make --lease at least twice as long as --kill-after"))
        }
    }
}

/// The name, and the command without the `--` that may stand before it.
fn split(words: Vec<OsString>) -> Result<(String, Vec<OsString>), Failure> {
    let mut words = words.into_iter().peekable();
    let name = words.next().unwrap_or_default();
    let name =
        name.into_string().map_err(|name| Failure::usage(format!("{name:?} is not UTF-8")))?;
    LockName::new(&name)?;
    words.next_if(|word| word == "--");
    let command: Vec<OsString> = words.collect();
    if command.is_empty() {
        return Err(Failure::usage(format!("run {name:?}: there is no command to run"))
            .hint("lockkeeper run NAME CMD [ARGS]…"));
    }
    Ok((name, command))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn max_hold_leaves_time_to_end_the_command_in() {
        for (text, least) in [("100ms", 50), ("10s", 9_500), ("1h", 3_599_000)] {
            let words = ["lockkeeper", "run", "--max-hold", text, "x", "true"];
            let Command::Run(args) = Cli::parse_from(words).command else { panic!() };
            let (plan, now) = (Plan::of(*args).unwrap(), Instant::now());
            let (end, max) = (plan.max_end(now).unwrap(), plan.wish.options.max_hold.unwrap());
            assert!(end < now + max, "{text}: the name is free at that very moment");
            assert!(end >= now + Duration::from_millis(least), "{text}");
        }
    }
}
