//! What is asked of `bench`, once it makes sense.

use std::time::Duration;

use crate::args::{BenchArgs, Scenario};
use crate::exit::Failure;

const MOST_SECONDS: f64 = 60.0;
const LEAST_SECONDS: f64 = 0.05;
const MOST_ROUNDS: u32 = 100;
const MOST_TASKS: u32 = 10_000;
const MOST_WAITERS: u32 = 1_000;
const MOST_LINES: usize = 10;

/// What to measure, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) lines: Vec<Line>,
    /// Of each side in each round.
    pub(super) span: Duration,
    /// Before each span, unmeasured.
    pub(super) warm_up: Duration,
    pub(super) rounds: u32,
}

/// A line of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Solo,
    Many { tasks: u32 },
    HandOver { waiters: u32 },
}

impl Plan {
    pub(super) fn of(args: &BenchArgs) -> Result<Self, Failure> {
        let wants = |scenario| args.scenario.is_empty() || args.scenario.contains(&scenario);
        between("--rounds", args.rounds, MOST_ROUNDS)?;
        if !(LEAST_SECONDS..=MOST_SECONDS).contains(&args.seconds) {
            return Err(Failure::usage(format!(
                "--seconds {} makes no sense: {LEAST_SECONDS} to {MOST_SECONDS}",
                args.seconds
            )));
        }
        let tasks = args.tasks.unwrap_or(256);
        between("--tasks", tasks, MOST_TASKS)?;
        let default = [2, 10, 100];
        let waiters = if args.waiters.is_empty() { &default[..] } else { &args.waiters };
        for &count in waiters {
            between("--waiters", count, MOST_WAITERS)?;
        }
        if waiters.len() > MOST_LINES {
            let text = format!("--waiters takes {MOST_LINES} numbers at most");
            return Err(Failure::usage(text));
        }
        if args.tasks.is_some() && !wants(Scenario::Many) {
            return Err(Failure::usage("--tasks is for the scenario many, which is not asked for"));
        }
        if !args.waiters.is_empty() && !wants(Scenario::Handover) {
            let text = "--waiters is for the scenario handover, which is not asked for";
            return Err(Failure::usage(text));
        }
        let mut lines = Vec::new();
        if wants(Scenario::Solo) {
            lines.push(Line::Solo);
        }
        if wants(Scenario::Many) {
            lines.push(Line::Many { tasks });
        }
        if wants(Scenario::Handover) {
            lines.extend(waiters.iter().map(|&waiters| Line::HandOver { waiters }));
        }
        let span = Duration::from_secs_f64(args.seconds);
        let warm_up = (span / 5).clamp(Duration::from_millis(20), Duration::from_millis(300));
        Ok(Plan { lines, span, warm_up, rounds: args.rounds })
    }
}

impl Line {
    /// The word on the command line and in JSON.
    pub(super) fn scenario(self) -> &'static str {
        match self {
            Line::Solo => "solo",
            Line::Many { .. } => "many",
            Line::HandOver { .. } => "handover",
        }
    }

    /// What people read.
    pub(super) fn title(self) -> String {
        match self {
            Line::Solo => "solo".to_owned(),
            Line::Many { tasks } => format!("many {tasks}"),
            Line::HandOver { waiters } => format!("handover {waiters}"),
        }
    }
}

fn between(option: &str, number: u32, most: u32) -> Result<(), Failure> {
    if (1..=most).contains(&number) {
        return Ok(());
    }
    Err(Failure::usage(format!("{option} {number} makes no sense: 1 to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> BenchArgs {
        BenchArgs { scenario: vec![], seconds: 1.0, rounds: 3, tasks: None, waiters: vec![] }
    }

    #[test]
    fn everything_is_measured_unless_told_otherwise() {
        let plan = Plan::of(&args()).unwrap();
        let titles: Vec<String> = plan.lines.iter().map(|line| line.title()).collect();
        assert_eq!(titles, ["solo", "many 256", "handover 2", "handover 10", "handover 100"]);
        let some = BenchArgs { scenario: vec![Scenario::Solo, Scenario::Solo], ..args() };
        assert_eq!(Plan::of(&some).unwrap().lines, [Line::Solo]);
    }

    #[test]
    fn nonsense_is_refused_with_a_sentence() {
        for (bad, words) in [
            (BenchArgs { rounds: 0, ..args() }, "--rounds 0"),
            (BenchArgs { rounds: 101, ..args() }, "1 to 100"),
            (BenchArgs { seconds: 0.0, ..args() }, "--seconds 0"),
            (BenchArgs { seconds: -1.0, ..args() }, "--seconds -1"),
            (BenchArgs { seconds: f64::NAN, ..args() }, "--seconds NaN"),
            (BenchArgs { seconds: 1e9, ..args() }, "0.05 to 60"),
            (BenchArgs { tasks: Some(0), ..args() }, "--tasks 0"),
            (BenchArgs { waiters: vec![2, 0], ..args() }, "--waiters 0"),
            (BenchArgs { waiters: vec![1; 11], ..args() }, "10 numbers"),
            (BenchArgs { tasks: Some(2), scenario: vec![Scenario::Solo], ..args() }, "many"),
            (BenchArgs { waiters: vec![2], scenario: vec![Scenario::Many], ..args() }, "handover"),
        ] {
            let failure = Plan::of(&bad).unwrap_err();
            assert_eq!(failure.code, 64);
            assert!(failure.message.contains(words), "{failure}");
        }
    }
}
