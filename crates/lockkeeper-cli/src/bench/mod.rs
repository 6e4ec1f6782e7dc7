//! `bench`: what locks cost here, beside the bare floor of the engine.
//!
//! Both sides take turns, round by round, on the same machine, server and
//! client library: the ratio is the useful part.

mod floor;
mod handover;
mod machine;
mod meter;
mod pairs;
mod plan;
mod report;
mod worker;
mod workers;

use std::sync::Arc;

use lockkeeper::Keeper;

use self::floor::{Floor, Side};
use self::handover::HandOver;
use self::machine::Machine;
use self::pairs::Pairs;
use self::plan::{Line, Plan};
use self::report::{Report, Row};
use crate::Outcome;
use crate::args::{BenchArgs, Common};
use crate::exit::{self, Failure};
use crate::keeper;
use crate::output::Output;
use crate::run::signals::Signals;

pub(crate) use self::worker::{WORKER, worker};

/// The start of every name that is used.
const PREFIX: &str = "lockkeeper-bench";

/// Measures, and shows what came of it.
pub(crate) async fn bench(common: &Common, args: BenchArgs, output: &Output) -> Outcome {
    let plan = Plan::of(&args)?;
    let mut signals = Signals::listen()?;
    let opened = tokio::select! {
        opened = Bench::open(&plan, common, output) => opened,
        signal = signals.next() => return Ok(exit::by_signal(signal)),
    };
    let bench = opened?;
    let measured = tokio::select! {
        report = bench.measure() => report,
        // Dropping the work ends its processes and gives back its locks.
        signal = signals.next() => Err(Failure::silent(exit::by_signal(signal))),
    };
    output.erase();
    let cleaned = bench.clean_up().await;
    let report = measured?;
    cleaned?;
    output.data(&if output.json { report.json() } else { report.text() })?;
    Ok(0)
}

/// One run.
struct Bench<'a> {
    plan: &'a Plan,
    output: &'a Output,
    keeper: Keeper,
    floor: Arc<dyn Floor>,
    /// Where people asked to measure.
    label: Arc<str>,
    /// The start of the names of this run.
    prefix: String,
}

impl<'a> Bench<'a> {
    async fn open(plan: &'a Plan, common: &Common, output: &'a Output) -> Result<Self, Failure> {
        keeper::warn_of_secret(common, output);
        let asked = keeper::open(common, output).await?;
        let label = asked.info().label.clone();
        let floor = floor::open(asked.info(), &common.engine, false).await?;
        keeper::close(&asked).await;
        let keeper = Keeper::connect(floor.url()).await.map_err(Failure::connecting)?;
        let prefix = format!("{PREFIX}/{}", keeper.id());
        Ok(Bench { plan, output, keeper, floor, label, prefix })
    }

    async fn measure(&self) -> Result<Report, Failure> {
        let mut machine = Machine::look();
        let server = self.floor.server().await?;
        let mut rows = Vec::new();
        for &line in &self.plan.lines {
            rows.push(match line {
                Line::Solo | Line::Many { .. } => self.pairs(line).await?,
                Line::HandOver { waiters } => self.hand_over(line, waiters).await?,
            });
        }
        machine.look_again();
        Ok(Report {
            engine: self.keeper.info().engine.to_string(),
            label: self.label.to_string(),
            server,
            words: self.floor.words(),
            machine,
            plan: self.plan.clone(),
            rows,
        })
    }

    async fn pairs(&self, line: Line) -> Result<Row, Failure> {
        let (keeper, floor, names) = (self.keeper.clone(), self.floor.clone(), self.names(line));
        let pairs = Pairs { keeper, floor, names };
        let Plan { warm_up, span, rounds, .. } = *self.plan;
        let mut row = Row::new(line);
        for round in 1..=rounds {
            for side in [Side::Lockkeeper, Side::Floor] {
                self.tell(line, round, side);
                row.add(side, pairs.sample(side, warm_up, span).await?);
            }
        }
        Ok(row)
    }

    async fn hand_over(&self, line: Line, waiters: u32) -> Result<Row, Failure> {
        self.progress(&format!("{}: starting processes", line.title()));
        let name = self.names(line).swap_remove(0);
        let mut hand_over = HandOver::start(self.floor.clone(), waiters, &name).await?;
        let Plan { warm_up, span, rounds, .. } = *self.plan;
        let mut row = Row::new(line);
        for round in 1..=rounds {
            for side in [Side::Lockkeeper, Side::Floor] {
                self.tell(line, round, side);
                if let Some(sample) = hand_over.sample(side, warm_up, span).await? {
                    row.add(side, sample);
                }
            }
        }
        Ok(row)
    }

    /// The names of a line.
    fn names(&self, line: Line) -> Vec<String> {
        let (prefix, scenario) = (&self.prefix, line.scenario());
        match line {
            Line::Solo => vec![format!("{prefix}/{scenario}")],
            Line::Many { tasks } => {
                (0..tasks).map(|task| format!("{prefix}/{scenario}/{task}")).collect()
            }
            Line::HandOver { waiters } => vec![format!("{prefix}/{scenario}/{waiters}")],
        }
    }

    /// Leaves nothing behind.
    async fn clean_up(&self) -> Result<(), Failure> {
        keeper::close(&self.keeper).await;
        let names: Vec<String> =
            self.plan.lines.iter().flat_map(|&line| self.names(line)).collect();
        self.floor.clean(&names).await
    }

    fn tell(&self, line: Line, round: u32, side: Side) {
        let side = match side {
            Side::Lockkeeper => "lockkeeper",
            Side::Floor => "floor",
        };
        self.progress(&format!("{}: round {round} of {}, {side}", line.title(), self.plan.rounds));
    }

    /// Only where the next line can replace it: nobody wants it in a log.
    fn progress(&self, text: &str) {
        if self.output.lively {
            self.output.progress(text);
        }
    }
}
