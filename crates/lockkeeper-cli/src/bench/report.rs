//! What is shown: a table for people, one object for machines.
//!
//! Rates are cut off and times rounded up, on both sides alike, and counts
//! are exact: a figure is never better than what was measured.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::floor::{Side, Words};
use super::machine::Machine;
use super::meter::{Cost, Figures, Sample, median};
use super::plan::{Line, Plan};
use crate::output::{millis, span};

/// Everything that was measured.
pub(super) struct Report {
    pub(super) engine: String,
    pub(super) label: String,
    pub(super) server: Option<String>,
    pub(super) words: Words,
    pub(super) machine: Machine,
    pub(super) plan: Plan,
    pub(super) rows: Vec<Row>,
}

/// One line of the plan, measured.
pub(super) struct Row {
    line: Line,
    lockkeeper: Rounds,
    floor: Rounds,
}

#[derive(Default)]
struct Rounds {
    /// `None` for a round in which nothing was done.
    figures: Vec<Option<Figures>>,
    /// Of all rounds together; `None` once a round has none.
    cost: Option<Cost>,
}

impl Row {
    pub(super) fn new(line: Line) -> Self {
        Row { line, lockkeeper: Rounds::default(), floor: Rounds::default() }
    }

    /// Takes in a round of one side.
    pub(super) fn add(&mut self, side: Side, mut sample: Sample) {
        let rounds = match side {
            Side::Lockkeeper => &mut self.lockkeeper,
            Side::Floor => &mut self.floor,
        };
        rounds.cost = match (rounds.cost, sample.cost) {
            (Some(before), Some(now)) => Some(before.plus(now)),
            (None, first) if rounds.figures.is_empty() => first,
            _ => None,
        };
        rounds.figures.push(Figures::of(&mut sample));
    }

    /// The median over rounds of a figure's ratio; `None` without a floor.
    fn ratio(&self, figure: fn(&Figures) -> f64) -> Option<f64> {
        let rounds = self.lockkeeper.figures.iter().zip(&self.floor.figures);
        let ratio = |(ours, bare): (&Option<Figures>, &Option<Figures>)| {
            Some(figure(ours.as_ref()?) / figure(bare.as_ref()?))
        };
        Some(median(rounds.filter_map(ratio).collect())).filter(|ratio| ratio.is_finite())
    }

    /// The ratio of what the server counted.
    fn cost_ratio(&self, cost: impl Fn(&Cost) -> Option<f64>) -> Option<f64> {
        let (ours, bare) =
            (cost(self.lockkeeper.cost.as_ref()?)?, cost(self.floor.cost.as_ref()?)?);
        Some(ours / bare).filter(|ratio| ratio.is_finite())
    }
}

impl Rounds {
    fn medians(&self) -> Option<Figures> {
        let figures: Vec<Figures> = self.figures.iter().flatten().cloned().collect();
        (!figures.is_empty()).then(|| Figures::median_of(&figures))
    }
}

fn commands(cost: &Cost) -> Option<f64> {
    Some(cost.per_operation(cost.commands))
}

const HEAD: [&str; 9] = [
    "SCENARIO",
    "SIDE",
    "PER SECOND",
    "P50 µs",
    "P90 µs",
    "P99 µs",
    "MAX µs",
    "COMMANDS",
    "SERVER CPU µs",
];
/// Of the columns of the head, those with words; the others are numbers.
const WORDS: usize = 2;
const NOTHING: &str = "–";

impl Report {
    /// For people.
    pub(super) fn text(&self) -> String {
        let mut out = format!("lockkeeper {} on {}", env!("CARGO_PKG_VERSION"), self.label);
        if let Some(server) = &self.server {
            let _ = write!(out, ", {server}");
        }
        let (rounds, each) = (self.plan.rounds, span(self.plan.span));
        let turns = match rounds {
            1 => format!("one round of {each} each"),
            _ => format!("{rounds} rounds of {each} each, in turn; medians of rounds"),
        };
        let _ = writeln!(out, "\n{}; {turns}", self.machine.sentence());
        if self.machine.was_busy() == Some(true) {
            out.push_str(
                "the machine was busy before this began: trust the ratios, not the times\n",
            );
        }
        out.push('\n');
        let rows: Vec<Vec<String>> = self.rows.iter().flat_map(cells).collect();
        out.push_str(&aligned(&rows));
        let _ = write!(out, "\n\nfloor: {}", self.words.pair);
        if let Some(hand_over) = self.words.hand_over {
            let _ = write!(out, "; handover: {hand_over}");
        }
        for row in &self.rows {
            let cost = row.lockkeeper.cost.filter(|cost| cost.queueing > 0);
            if let (Line::HandOver { .. }, Some(cost)) = (row.line, cost) {
                let _ = write!(
                    out,
                    "\n{}: besides, {} commands to get in line and {} beats per hand-over",
                    row.line.title(),
                    count(cost.per_operation(cost.queueing)),
                    count(cost.per_operation(cost.beats)),
                );
            }
        }
        out
    }

    /// For machines.
    pub(super) fn json(&self) -> String {
        let rows: Vec<Value> = self.rows.iter().map(row_json).collect();
        json!({
            "engine": self.engine,
            "label": self.label,
            "server": self.server,
            "version": env!("CARGO_PKG_VERSION"),
            "machine": self.machine.json(),
            "rounds": self.plan.rounds,
            "round_ms": millis(self.plan.span),
            "floor": { "pair": self.words.pair, "hand_over": self.words.hand_over },
            "scenarios": rows,
        })
        .to_string()
    }
}

fn cells(row: &Row) -> [Vec<String>; 3] {
    let ours = side_cells(row.line.title(), "lockkeeper", &row.lockkeeper);
    let bare = side_cells(String::new(), "floor", &row.floor);
    let times = |ratio: Option<f64>| ratio.map_or(NOTHING.to_owned(), |ratio| up(ratio, 100.0, 2));
    let rate = row.ratio(|figures| figures.per_second);
    let ratio = vec![
        String::new(),
        "ratio".to_owned(),
        rate.map_or(NOTHING.to_owned(), |ratio| format!("{:.2}", (ratio * 100.0).floor() / 100.0)),
        times(row.ratio(|figures| figures.p50)),
        times(row.ratio(|figures| figures.p90)),
        times(row.ratio(|figures| figures.p99)),
        String::new(),
        row.cost_ratio(commands).map_or(NOTHING.to_owned(), count),
        times(row.cost_ratio(Cost::cpu_per_operation)),
    ];
    [ours, bare, ratio]
}

fn side_cells(title: String, side: &str, rounds: &Rounds) -> Vec<String> {
    let mut cells = vec![title, side.to_owned()];
    match rounds.medians() {
        Some(figures) => {
            cells.push(format!("{:.0}", figures.per_second.floor()));
            let times = [figures.p50, figures.p90, figures.p99, figures.max];
            cells.extend(times.iter().map(|&time| up(time, 10.0, 1)));
        }
        None => cells.extend(vec![NOTHING.to_owned(); 5]),
    }
    let cost = rounds.cost.as_ref();
    cells.push(cost.and_then(commands).map_or(NOTHING.to_owned(), count));
    let cpu = cost.and_then(Cost::cpu_per_operation);
    cells.push(cpu.map_or(NOTHING.to_owned(), |cpu| up(cpu, 10.0, 1)));
    cells
}

/// A number with so many digits behind the point, rounded up.
fn up(number: f64, scale: f64, digits: usize) -> String {
    format!("{:.digits$}", (number * scale).ceil() / scale)
}

/// A count per operation: with two digits only if that is exact.
fn count(number: f64) -> String {
    let exact = (number * 100.0).fract() == 0.0;
    if exact { format!("{number:.2}") } else { up(number, 10_000.0, 4) }
}

/// Words to the left, numbers to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let head: Vec<String> = HEAD.iter().map(|&cell| cell.to_owned()).collect();
    let all = || std::iter::once(&head).chain(rows);
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column < WORDS {
                true => write!(line, "{cell:width$}  "),
                false => write!(line, "{cell:>width$}  "),
            };
        }
        line.trim_end().to_owned()
    };
    all().map(line).collect::<Vec<_>>().join("\n")
}

fn row_json(row: &Row) -> Value {
    let (tasks, waiters) = match row.line {
        Line::Solo => (Some(1), None),
        Line::Many { tasks } => (Some(tasks), None),
        Line::HandOver { waiters } => (None, Some(waiters)),
    };
    json!({
        "scenario": row.line.scenario(),
        "tasks": tasks,
        "waiters": waiters,
        "lockkeeper": side_json(&row.lockkeeper),
        "floor": side_json(&row.floor),
        "ratio": {
            "per_second": row.ratio(|figures| figures.per_second),
            "p50": row.ratio(|figures| figures.p50),
            "p90": row.ratio(|figures| figures.p90),
            "p99": row.ratio(|figures| figures.p99),
            "commands": row.cost_ratio(commands),
            "server_cpu": row.cost_ratio(Cost::cpu_per_operation),
        },
    })
}

fn side_json(rounds: &Rounds) -> Value {
    let Some(figures) = rounds.medians() else { return Value::Null };
    let cost = rounds.cost.as_ref();
    let per_operation = |count: fn(&Cost) -> u64| cost.map(|cost| cost.per_operation(count(cost)));
    json!({
        "operations": figures.operations,
        "per_second": figures.per_second,
        "p50_us": figures.p50,
        "p90_us": figures.p90,
        "p99_us": figures.p99,
        "max_us": figures.max,
        "commands_per_operation": per_operation(|cost| cost.commands),
        "queue_commands_per_operation": per_operation(|cost| cost.queueing),
        "beats_per_operation": per_operation(|cost| cost.beats),
        "server_cpu_us_per_operation": cost.and_then(Cost::cpu_per_operation),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn nothing_is_rounded_in_our_favour() {
        assert_eq!(up(1.2401, 100.0, 2), "1.25");
        assert_eq!(up(80.0, 10.0, 1), "80.0");
        assert_eq!(count(2.0), "2.00");
        assert_eq!(count(2.000_01), "2.0001");
        assert_eq!(count(1.5), "1.50");
    }

    #[test]
    fn what_nobody_counted_is_a_dash() {
        let sample =
            |nanos| Sample { spans: vec![nanos; 4], took: Duration::from_secs(1), cost: None };
        let mut row = Row::new(Line::Solo);
        row.add(Side::Lockkeeper, sample(3000));
        row.add(Side::Floor, sample(2000));
        let [ours, bare, ratio] = cells(&row);
        assert_eq!(ours[2..], ["4", "3.0", "3.0", "3.0", "3.0", NOTHING, NOTHING]);
        assert_eq!(bare[3], "2.0");
        assert_eq!(ratio[2..5], ["1.00", "1.50", "1.50"]);
        assert_eq!(row_json(&row)["lockkeeper"]["commands_per_operation"], Value::Null);
    }

    #[test]
    fn the_ratio_is_the_median_of_rounds() {
        let mut row = Row::new(Line::Solo);
        for (ours, bare) in [(10, 10), (90, 10), (20, 10)] {
            let sample =
                |span| Sample { spans: vec![span], took: Duration::from_secs(1), cost: None };
            row.add(Side::Lockkeeper, sample(ours));
            row.add(Side::Floor, sample(bare));
        }
        assert_eq!(row.ratio(|figures| figures.p50), Some(2.0));
    }
}
