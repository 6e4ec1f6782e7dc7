//! Every state of a bounded world, once.

use std::collections::{HashSet, VecDeque};
use std::fmt::{self, Write};
use std::hash::{BuildHasherDefault, Hasher};

use super::action::Action;
use super::future;
use super::law::Breach;
use super::setup::Setup;
use super::world::{Scratch, World};

/// In which order states are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The nearest first: finds the shortest way to a breach.
    Broad,
    /// The newest first: needs little memory to see everything.
    Deep,
}

/// What a search or a walk saw.
#[derive(Debug, Default)]
pub struct Report {
    /// How many different states were reached, where that was counted.
    pub states: u64,
    /// How many steps were taken and checked.
    pub steps: u64,
    /// How many futures were looked at.
    pub futures: u64,
    /// Whether nothing was left to see.
    pub exhausted: bool,
    /// The first breach, and the way to it.
    pub breach: Option<(Breach, Vec<String>)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { states, steps, futures, exhausted, breach } = self;
        let end = if *exhausted { "all there are" } else { "and there are more" };
        if *states > 0 {
            write!(f, "{states} states ({end}), ")?;
        }
        write!(f, "{steps} steps, {futures} futures")?;
        let Some((breach, way)) = breach else {
            return Ok(());
        };
        write!(f, "\n{breach}\nafter {} steps:", way.len())?;
        for line in way {
            f.write_char('\n')?;
            f.write_str(line)?;
        }
        Ok(())
    }
}

/// Visits the states of a world until a law is broken, all are seen, or
/// `most` have been.
pub fn search(setup: &Setup, order: Order, most: u64) -> Report {
    let mut report = Report::default();
    let mut scratch = Scratch::default();
    let mut seen = Seen::default();
    // Where each state came from, for the way to a breach.
    let mut origin: Vec<(u32, Action)> = vec![(0, Action::Tick)];
    let mut open = VecDeque::from([(0_u32, World::new(setup))]);
    seen.insert(World::new(setup).fingerprint());
    let mut actions = Vec::new();
    loop {
        let next = match order {
            Order::Broad => open.pop_front(),
            Order::Deep => open.pop_back(),
        };
        let Some((index, world)) = next else {
            report.exhausted = true;
            break;
        };
        world.actions(setup, &mut actions);
        for action in &actions {
            let mut after = world.clone();
            report.steps += 1;
            let mut outcome = after.act(setup, *action, &mut scratch);
            let print = after.fingerprint();
            if outcome.is_ok() && !seen.insert(print) {
                continue;
            }
            if outcome.is_ok() && print.is_multiple_of(setup.sample) {
                report.futures += 1;
                outcome = future::check(setup, &after);
            }
            origin.push((index, *action));
            let child = u32::try_from(origin.len() - 1).unwrap_or(u32::MAX);
            if let Err(breach) = outcome {
                report.states = seen.len() as u64;
                report.breach = Some((breach, retrace(setup, &origin, child)));
                return report;
            }
            open.push_back((child, after));
        }
        if seen.len() as u64 >= most {
            break;
        }
    }
    report.states = seen.len() as u64;
    report
}

/// The way to a state, in words.
fn retrace(setup: &Setup, origin: &[(u32, Action)], last: u32) -> Vec<String> {
    let mut actions = Vec::new();
    let mut index = last;
    while index != 0 {
        let (from, action) = origin[index as usize];
        actions.push(action);
        index = from;
    }
    actions.reverse();
    describe(setup, &actions)
}

/// Lets actions happen once more and says what each did.
pub(super) fn describe(setup: &Setup, actions: &[Action]) -> Vec<String> {
    let mut world = World::new(setup);
    let mut scratch = Scratch::default();
    let mut lines = Vec::new();
    for action in actions {
        let message = match action {
            Action::Deliver(index) | Action::Repeat(index) | Action::Lose(index) => {
                world.flight.get(usize::from(*index)).copied()
            }
            _ => None,
        };
        let line = match message {
            Some(message) => format!(
                "{action:?}: {}-{} {:?}",
                message.claim.number, message.claim.turn, message.body
            ),
            None => format!("{action:?}"),
        };
        lines.push(format!("at {:>2} {line}", world.now));
        if let Err(breach) = world.act(setup, *action, &mut scratch) {
            lines.push(breach.to_string());
        }
    }
    lines
}

/// Fingerprints are mixed already, so they need no hashing.
type Seen = HashSet<u64, BuildHasherDefault<AsIs>>;

#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}
