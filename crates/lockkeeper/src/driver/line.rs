//! Those of one keeper who wait for one name, in order.

use std::collections::VecDeque;

use crate::engine::Intent;

/// A local queue. Those in front contend at the engine; the others behind
/// them have not been heard of there.
///
/// Lines get long, so what happens with every claim must not look at all of it.
#[derive(Default)]
pub(super) struct Line {
    queue: VecDeque<(u64, Intent)>,
    contending: usize,
    tries: usize,
}

impl Line {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn head(&self) -> Option<u64> {
        self.queue.front().map(|&(number, _)| number)
    }

    /// How many stand before this one.
    pub(super) fn before(&self, number: u64) -> usize {
        self.position(number).unwrap_or(self.queue.len())
    }

    pub(super) fn join(&mut self, number: u64, intent: Intent) {
        self.tries += usize::from(intent == Intent::Try);
        self.queue.push_back((number, intent));
    }

    /// Takes one out; says whether it stood here.
    pub(super) fn leave(&mut self, number: u64) -> bool {
        let Some(index) = self.position(number) else { return false };
        let Some((_, intent)) = self.queue.remove(index) else { return false };
        self.tries -= usize::from(intent == Intent::Try);
        self.contending -= usize::from(index < self.contending);
        true
    }

    /// The last who contends, and the first who does not.
    pub(super) fn frontier(&self) -> Option<(Option<u64>, u64)> {
        let &(next, _) = self.queue.get(self.contending)?;
        let last = self.contending.checked_sub(1).and_then(|index| self.queue.get(index));
        Some((last.map(|&(number, _)| number), next))
    }

    /// Lets the first who does not contend do so.
    pub(super) fn advance(&mut self) {
        self.contending += 1;
    }

    /// The tries that do not contend yet.
    pub(super) fn idle_tries(&self) -> Vec<u64> {
        if self.tries == 0 {
            return Vec::new();
        }
        let idle = self.queue.iter().skip(self.contending);
        idle.filter(|(_, intent)| *intent == Intent::Try).map(|&(number, _)| number).collect()
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.queue.iter().position(|&(other, _)| other == number)
    }
}
