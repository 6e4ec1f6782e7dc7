//! *handover*: one name that processes wait for, passed from one to the next.

use std::sync::Arc;
use std::time::Duration;

use super::floor::{Floor, Side};
use super::meter::{Cost, Sample, nanos};
use super::worker::{Answer, Counted, Grant, Order, now};
use super::workers::Workers;
use crate::exit::{self, Failure};

/// How long orders may take to reach everybody.
const HEAD_START: Duration = Duration::from_millis(60);
/// How much longer than told the last hand-overs may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everybody who waits for the name.
pub(super) struct HandOver {
    workers: Workers,
    floor: Arc<dyn Floor>,
    /// Whether the floor has a hand-over.
    has_floor: bool,
}

impl HandOver {
    /// Starts one process more than are to wait: somebody holds.
    pub(super) async fn start(
        floor: Arc<dyn Floor>,
        waiters: u32,
        name: &str,
    ) -> Result<Self, Failure> {
        let seats = waiters as usize + 1;
        let (url, ring) = (floor.url().to_owned(), ring_of(name));
        let order = |seat| Order::Open {
            url: url.clone(),
            name: name.to_owned(),
            ring: ring.clone(),
            seat,
            seats,
        };
        let mut workers = Workers::start(seats, floor.is_private(), order).await?;
        let answers = workers.answers(PATIENCE).await?;
        let has_floor = answers.iter().all(|answer| matches!(answer, Answer::Ready { ring: true }));
        Ok(HandOver { workers, floor, has_floor })
    }

    /// Measures one side once; `None` if it has no hand-over.
    pub(super) async fn sample(
        &mut self,
        side: Side,
        warm_up: Duration,
        span: Duration,
    ) -> Result<Option<Sample>, Failure> {
        if side == Side::Floor && !self.has_floor {
            return Ok(None);
        }
        let from = now() + nanos(HEAD_START);
        let start = from + nanos(warm_up);
        let until = start + nanos(span);
        let order = match side {
            Side::Lockkeeper => Order::Lock { from, until },
            Side::Floor => Order::Pass { from, until },
        };
        // Before and after, nobody is doing anything: the count is exact.
        let before = self.floor.counters(side).await?;
        self.workers.tell(&order)?;
        let answers = self.workers.answers(HEAD_START + warm_up + span + PATIENCE).await?;
        let after = self.floor.counters(side).await?;
        let counted = before.zip(after).map(|(before, after)| after.since(before));
        let window = Window { start, until };
        let (spans, cost) = match side {
            Side::Lockkeeper => locked(answers, window, counted, self.floor.counts_claims())?,
            Side::Floor => passed(answers, window, counted)?,
        };
        Ok(Some(Sample { spans, took: span, cost }))
    }
}

/// The ring of those who wait for a name.
pub(super) fn ring_of(name: &str) -> String {
    format!("{name}/ring")
}

/// What is measured: hand-overs that begin and end between these instants.
#[derive(Clone, Copy)]
struct Window {
    start: u64,
    until: u64,
}

impl Window {
    fn span(self, from: u64, to: u64) -> Option<u64> {
        (from >= self.start && to <= self.until).then(|| to.saturating_sub(from))
    }
}

type Counters = Option<(u64, Option<Duration>)>;

fn locked(
    answers: Vec<Answer>,
    window: Window,
    counters: Counters,
    counts_claims: bool,
) -> Result<(Vec<u64>, Option<Cost>), Failure> {
    let (mut grants, mut all) = (Vec::new(), Counted::default());
    for answer in answers {
        let Answer::Locked { grants: more, tally } = answer else { return Err(strange()) };
        grants.extend(more);
        all.acquires += tally.acquires;
        all.beats += tally.beats;
        all.renewals += tally.renewals;
        all.releases += tally.releases;
        all.handed_over += tally.handed_over;
    }
    let spans = hand_overs(&mut grants, window)?;
    let cost = counters.map(|(commands, cpu)| {
        let all_of_it = Cost { operations: all.handed_over, commands, cpu, ..Cost::default() };
        if !counts_claims {
            return all_of_it;
        }
        // Getting in line and staying there is counted apart; so is a release
        // that found nobody in line.
        let idle = all.releases.saturating_sub(all.handed_over);
        Cost {
            commands: commands.saturating_sub(all.acquires + all.beats + idle),
            queueing: all.acquires,
            beats: all.beats,
            ..all_of_it
        }
    });
    Ok((spans, cost.filter(|cost| cost.operations > 0)))
}

/// How long each took: from the release to the guard of one who was waiting.
fn hand_overs(grants: &mut [Grant], window: Window) -> Result<Vec<u64>, Failure> {
    grants.sort_unstable_by_key(|grant| grant.token);
    let mut spans = Vec::with_capacity(grants.len());
    for pair in grants.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        // A benchmark of a lock that does not lock is worth nothing.
        if after.token == before.token || after.got < before.released {
            let text = "bench: the lock was handed out twice: please report this";
            return Err(Failure::new(exit::FAILED, "unexpected", text));
        }
        if after.asked < before.released {
            spans.extend(window.span(before.released, after.got));
        }
    }
    Ok(spans)
}

fn passed(
    answers: Vec<Answer>,
    window: Window,
    counters: Counters,
) -> Result<(Vec<u64>, Option<Cost>), Failure> {
    let (mut spans, mut operations) = (Vec::new(), 0);
    for answer in answers {
        let Answer::Passed { batons } = answer else { return Err(strange()) };
        operations += batons.len() as u64;
        spans.extend(batons.iter().filter_map(|&(sent, got)| window.span(sent, got)));
    }
    let cost =
        counters.map(|(commands, cpu)| Cost { operations, commands, cpu, ..Cost::default() });
    Ok((spans, cost))
}

fn strange() -> Failure {
    Failure::new(exit::FAILED, "bench", "bench: a waiter answered something else")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(token: u64, asked: u64, got: u64, released: u64) -> Grant {
        Grant { token, asked, got, released }
    }

    #[test]
    fn a_hand_over_is_from_a_release_to_one_who_waited() {
        let window = Window { start: 10, until: 100 };
        let mut grants = [
            grant(3, 25, 40, 45), // waited for 2
            grant(1, 0, 5, 8),
            grant(2, 6, 20, 30),    // waited, but from before the window
            grant(4, 50, 60, 65),   // found nobody
            grant(5, 55, 101, 102), // ends after the window
        ];
        assert_eq!(hand_overs(&mut grants, window).unwrap(), [10]);
    }

    #[test]
    fn a_lock_that_does_not_lock_is_not_measured() {
        let window = Window { start: 0, until: 100 };
        for wrong in [grant(1, 0, 20, 30), grant(2, 0, 4, 30)] {
            assert!(hand_overs(&mut [grant(1, 0, 5, 8), wrong], window).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn beats_and_getting_in_line_are_counted_apart() {
        let tally = Counted { acquires: 5, beats: 2, renewals: 4, releases: 5, handed_over: 4 };
        let answers = vec![Answer::Locked { grants: vec![], tally }];
        // 5 acquires, 5 releases, 4 confirmations, 2 beats.
        let window = Window { start: 0, until: 1 };
        let (_, cost) = locked(answers.clone(), window, Some((16, None)), true).unwrap();
        let cost = cost.unwrap();
        assert_eq!((cost.operations, cost.commands, cost.beats), (4, 8, 2));
        let (_, cost) = locked(answers, window, Some((16, None)), false).unwrap();
        assert_eq!(cost.unwrap().commands, 16, "where a claim is no command, all is counted");
    }
}
