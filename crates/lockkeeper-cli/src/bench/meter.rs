//! How long things take: every one of them is kept, nothing is put in buckets.

use std::time::{Duration, Instant};

/// A task stops after so many, so that no engine is too fast for the memory.
const MOST: usize = 4_000_000;

/// The stopwatch of one task that does the same thing again and again.
#[derive(Debug)]
pub(super) struct Meter {
    until: Instant,
    last: Instant,
    most: usize,
    /// Nanoseconds of each.
    pub(super) spans: Vec<u64>,
}

impl Meter {
    /// Starts now; `tasks` share the memory.
    pub(super) fn start(until: Instant, tasks: usize) -> Self {
        let most = (MOST / tasks.max(1)).max(1);
        Meter { until, last: Instant::now(), most, spans: Vec::new() }
    }

    /// Whether to do it once more.
    pub(super) fn runs(&self) -> bool {
        self.last < self.until && self.spans.len() < self.most
    }

    /// It is done once more.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        self.spans.push(nanos(now - self.last));
        self.last = now;
    }
}

/// What was measured of one side in one round.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Nanoseconds of each operation.
    pub(super) spans: Vec<u64>,
    /// From the start of the first to the end of the last.
    pub(super) took: Duration,
    /// What the server counted meanwhile, if it counts.
    pub(super) cost: Option<Cost>,
}

/// What a number of operations cost the server, as it says itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    /// How many operations this is about; may be more than were timed.
    pub(super) operations: u64,
    /// Commands sent for the operations themselves.
    pub(super) commands: u64,
    /// Commands sent to get in line, and to stay there: in hand-overs only.
    pub(super) queueing: u64,
    pub(super) beats: u64,
    /// Processor time of the server for all of it, where it is known.
    pub(super) cpu: Option<Duration>,
}

/// The figures of one round, or the medians of several.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) operations: u64,
    pub(super) per_second: f64,
    /// Microseconds.
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Figures {
    /// `None` if nothing was done.
    pub(super) fn of(sample: &mut Sample) -> Option<Self> {
        sample.spans.sort_unstable();
        let (spans, last) = (&sample.spans, sample.spans.last()?);
        // The smallest that at least this part of them does not exceed.
        let at = |percent: usize| {
            let rank = (spans.len() * percent).div_ceil(100).max(1);
            micros(spans[rank - 1])
        };
        Some(Figures {
            operations: spans.len() as u64,
            per_second: spans.len() as f64 / sample.took.as_secs_f64(),
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: micros(*last),
        })
    }

    /// Medians of rounds; of the longest the longest, and of counts the sum.
    pub(super) fn median_of(rounds: &[Figures]) -> Self {
        let of = |figure: fn(&Figures) -> f64| median(rounds.iter().map(figure).collect());
        Figures {
            operations: rounds.iter().map(|round| round.operations).sum(),
            per_second: of(|round| round.per_second),
            p50: of(|round| round.p50),
            p90: of(|round| round.p90),
            p99: of(|round| round.p99),
            max: rounds.iter().map(|round| round.max).fold(0.0, f64::max),
        }
    }
}

impl Cost {
    pub(super) fn plus(self, other: Cost) -> Cost {
        Cost {
            operations: self.operations + other.operations,
            commands: self.commands + other.commands,
            queueing: self.queueing + other.queueing,
            beats: self.beats + other.beats,
            cpu: self.cpu.zip(other.cpu).map(|(one, two)| one + two),
        }
    }

    pub(super) fn per_operation(&self, count: u64) -> f64 {
        count as f64 / self.operations as f64
    }

    /// Microseconds of the server per operation.
    pub(super) fn cpu_per_operation(&self) -> Option<f64> {
        self.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / self.operations as f64)
    }
}

/// The middle one, or the mean of the two in the middle.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut sample = Sample {
            spans: (1..=100).rev().map(|n| n * 1000).collect(),
            took: Duration::from_millis(500),
            cost: None,
        };
        let figures = Figures::of(&mut sample).unwrap();
        assert_eq!((figures.p50, figures.p90, figures.p99, figures.max), (50.0, 90.0, 99.0, 100.0));
        assert_eq!((figures.operations, figures.per_second), (100, 200.0));
        let mut one = Sample { spans: vec![7], ..sample };
        assert_eq!(Figures::of(&mut one).unwrap().p50, 0.007);
        one.spans.clear();
        assert_eq!(Figures::of(&mut one), None);
    }

    #[test]
    fn rounds_count_by_their_median() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 2.0]), 3.0);
        let round = |p50, max| Figures { operations: 2, p50, max, ..Figures::default() };
        let all = Figures::median_of(&[round(1.0, 5.0), round(9.0, 7.0), round(2.0, 6.0)]);
        assert_eq!((all.operations, all.p50, all.max), (6, 2.0, 7.0));
    }

    #[test]
    fn a_meter_ends_in_time_and_in_size() {
        let far = Instant::now() + Duration::from_secs(60);
        let mut meter = Meter::start(far, MOST);
        assert!(meter.runs());
        meter.tick();
        assert!(!meter.runs(), "its share of the memory is used up");
        assert!(!Meter::start(Instant::now() - Duration::from_millis(1), 1).runs());
    }
}
