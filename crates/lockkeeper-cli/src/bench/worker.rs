//! A waiter of *handover*: a process of its own, spoken to in lines.
//!
//! It is this program again, with one secret word instead of a command; what
//! it is to do, the engine's URL included, comes through its stdin, which no
//! process list shows. When that ends, so does the process.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use lockkeeper::Keeper;
use lockkeeper::bench::Tally;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::floor::{self, Ring};
use crate::exit::{self, Failure};

/// The word that makes a worker of this program.
pub(crate) const WORKER: &str = "bench-worker";

/// What a worker is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// The first: open the engine, sit down in the ring.
    Open { url: String, name: String, ring: String, seat: usize, seats: usize },
    /// Lock and release from one instant to another.
    Lock { from: u64, until: u64 },
    /// Pass the baton of the ring on from one instant to another.
    Pass { from: u64, until: u64 },
}

/// What a worker answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is there; `false` if this engine's floor has no hand-over.
    Ready { ring: bool },
    /// Every grant it had, and what its keeper asked of the engine for them.
    Locked { grants: Vec<Grant>, tally: Counted },
    /// When each baton was sent to it, and when it came.
    Passed { batons: Vec<(u64, u64)> },
    /// It cannot go on.
    Failed { code: u8, kind: String, message: String },
}

/// One grant: its token, and instants in nanoseconds on the clock that all
/// processes of a machine share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grant {
    pub(super) token: u64,
    pub(super) asked: u64,
    pub(super) got: u64,
    pub(super) released: u64,
}

/// What a keeper asked of its engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) acquires: u64,
    pub(super) beats: u64,
    pub(super) renewals: u64,
    pub(super) releases: u64,
    pub(super) handed_over: u64,
}

impl Counted {
    fn between(before: Tally, after: Tally) -> Self {
        Counted {
            acquires: after.acquires - before.acquires,
            beats: after.beats - before.beats,
            renewals: after.renewals - before.renewals,
            releases: after.releases - before.releases,
            handed_over: after.handed_over - before.handed_over,
        }
    }
}

/// The whole life of a worker that is a process.
pub(crate) fn worker() -> ExitCode {
    match serve(std::io::stdin(), std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("lockkeeper: {failure}");
            ExitCode::from(failure.code)
        }
    }
}

/// Does what it is told until it is told no more.
pub(super) fn serve(
    input: impl Read + Send + 'static,
    mut output: impl Write,
) -> Result<(), Failure> {
    let mut orders = listen(input);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let opened = match orders.recv().await {
            Some(Order::Open { url, name, ring, seat, seats }) => {
                Waiter::open(&url, name, &ring, seat, seats).await
            }
            _ => Err(Failure::usage(format!("{WORKER} is a part of `lockkeeper bench`"))),
        };
        let mut waiter = match opened {
            Ok(waiter) => waiter,
            Err(failure) => return tell(&mut output, &refusal(failure)),
        };
        tell(&mut output, &Answer::Ready { ring: waiter.ring.is_some() })?;
        let outcome = waiter.follow(&mut orders, &mut output).await;
        crate::keeper::close(&waiter.keeper).await;
        outcome
    })
}

/// Reads orders in the background, so that their end is heard at any time.
fn listen(input: impl Read + Send + 'static) -> UnboundedReceiver<Order> {
    let (sender, orders) = unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(input).lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else { return };
            if sender.send(order).is_err() {
                return;
            }
        }
    });
    orders
}

fn tell(output: &mut impl Write, answer: &Answer) -> Result<(), Failure> {
    let line = serde_json::to_string(answer).map_err(std::io::Error::from)?;
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

fn refusal(failure: Failure) -> Answer {
    let Failure { code, kind, message, .. } = failure;
    Answer::Failed { code, kind: kind.to_owned(), message }
}

struct Waiter {
    keeper: Keeper,
    name: String,
    ring: Option<Box<dyn Ring>>,
    seat: usize,
    seats: usize,
}

impl Waiter {
    async fn open(
        url: &str,
        name: String,
        ring: &str,
        seat: usize,
        seats: usize,
    ) -> Result<Self, Failure> {
        let keeper = Keeper::connect(url).await.map_err(Failure::connecting)?;
        let floor = floor::open(keeper.info(), url, true).await?;
        let ring = floor.sit(ring, seat).await?;
        Ok(Waiter { keeper, name, ring, seat, seats })
    }

    async fn follow(
        &mut self,
        orders: &mut UnboundedReceiver<Order>,
        output: &mut impl Write,
    ) -> Result<(), Failure> {
        while let Some(order) = orders.recv().await {
            let answer = tokio::select! {
                answer = self.carry_out(order) => answer.unwrap_or_else(refusal),
                // No order follows before an answer: this is the end.
                _ = orders.recv() => return Ok(()),
            };
            tell(output, &answer)?;
        }
        Ok(())
    }

    async fn carry_out(&mut self, order: Order) -> Result<Answer, Failure> {
        match order {
            Order::Lock { from, until } => self.lock(from, until).await,
            Order::Pass { from, until } => self.pass(from, until).await,
            Order::Open { .. } => Err(Failure::new(exit::FAILED, "bench", "opened twice")),
        }
    }

    /// Locks and releases. Whoever still waits at the end is served, so that
    /// every hand-over is a whole one.
    async fn lock(&self, from: u64, until: u64) -> Result<Answer, Failure> {
        let before = self.keeper.tally().await?;
        let mutex = self.keeper.mutex(&self.name);
        let mut grants = Vec::new();
        sleep_until(from).await;
        loop {
            let asked = now();
            if asked >= until {
                break;
            }
            let guard = mutex.lock().await?;
            let got = now();
            let token = guard.token().get();
            let released = now();
            let _ = guard.release().await?;
            grants.push(Grant { token, asked, got, released });
        }
        let tally = Counted::between(before, self.keeper.tally().await?);
        Ok(Answer::Locked { grants, tally })
    }

    /// Passes the baton on; the first seat brings it along. After the end it
    /// makes one more lap, and stops at the seat before the one that ended it.
    async fn pass(&mut self, from: u64, until: u64) -> Result<Answer, Failure> {
        let (next, seats, seat) = ((self.seat + 1) % self.seats, self.seats, self.seat);
        let none = || Failure::new(exit::FAILED, "bench", "there is no ring");
        let ring = self.ring.as_mut().ok_or_else(none)?;
        let mut batons = Vec::new();
        sleep_until(from).await;
        if seat == 0 {
            ring.pass(next, &baton(None)).await?;
        }
        loop {
            let text = ring.receive().await?;
            let got = now();
            let (left, sent) = read_baton(&text)?;
            batons.push((sent, got));
            let left = match left {
                Some(0) => break,
                Some(left) => Some(left - 1),
                None if got >= until => Some(seats - 2),
                None => None,
            };
            ring.pass(next, &baton(left)).await?;
            if left.is_some() {
                break;
            }
        }
        Ok(Answer::Passed { batons })
    }
}

/// What goes round: how many seats it has left to go, and when it was sent.
fn baton(left: Option<usize>) -> String {
    let left = left.map_or_else(|| "-".to_owned(), |left| left.to_string());
    format!("{left} {}", now())
}

fn read_baton(text: &str) -> Result<(Option<usize>, u64), Failure> {
    let read = || {
        let (left, sent) = text.split_once(' ')?;
        let left = if left == "-" { None } else { Some(left.parse().ok()?) };
        Some((left, sent.parse().ok()?))
    };
    read().ok_or_else(|| Failure::new(exit::FAILED, "bench", format!("a strange baton: {text:?}")))
}

/// Nanoseconds on the clock that all processes of a machine share.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is negative on this clock.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

async fn sleep_until(instant: u64) {
    tokio::time::sleep(Duration::from_nanos(instant.saturating_sub(now()))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batons_read_back() {
        assert_eq!(read_baton(&baton(Some(7))).unwrap().0, Some(7));
        let before = now();
        let (left, sent) = read_baton(&baton(None)).unwrap();
        assert!(left.is_none() && (before..=now()).contains(&sent));
        for strange in ["", "-", "x 1", "1 x"] {
            assert!(read_baton(strange).is_err(), "{strange:?}");
        }
    }

    #[test]
    fn whoever_starts_one_by_hand_is_told() {
        for input in ["", "hello\n", "{\"Lock\":{\"from\":0,\"until\":0}}\n"] {
            let mut output = Vec::new();
            serve(input.as_bytes(), &mut output).unwrap();
            let said = String::from_utf8(output).unwrap();
            assert!(said.contains("a part of `lockkeeper bench`"), "{said}");
        }
    }
}
