//! The latch: a count that opens at zero and wakes everyone.

use std::time::Duration;

use super::{Effects, Latch, Record, Row, Time};
use crate::engine::CountId;

impl Record {
    /// Forgets a latch whose time is over; its waiters learn that it is gone.
    pub(super) fn expire_latch(&mut self, now: Time, effects: &mut Effects) {
        if self.latch.as_ref().is_some_and(|latch| latch.until <= now) {
            self.remove_latch(effects);
        }
    }

    /// Sets the latch, unless it is closed: a count-down in progress is never reset.
    pub(super) fn set_latch(
        &mut self,
        count: u32,
        keep: Duration,
        by: &CountId,
        now: Time,
        effects: &mut Effects,
    ) {
        let keeps = |latch: &Latch| latch.remaining > 0 || latch.set == *by;
        if self.latch.as_ref().is_some_and(keeps) {
            return;
        }
        let until = now + keep;
        let (counted, set) = (Vec::new(), by.clone());
        self.latch = Some(Latch { remaining: count, counted, set, keep, until });
        changed(effects);
    }

    /// Counts `by` once, however often it is sent.
    pub(super) fn count_down(&mut self, by: &CountId, now: Time, effects: &mut Effects) {
        let Some(latch) = &mut self.latch else { return };
        if latch.remaining == 0 || latch.counted.contains(by) {
            return;
        }
        latch.remaining -= 1;
        latch.counted.push(by.clone());
        latch.until = now + latch.keep;
        changed(effects);
    }

    /// Removes the latch, open or closed. The name may then be used for anything.
    pub(super) fn remove_latch(&mut self, effects: &mut Effects) {
        if self.latch.take().is_some() {
            self.kind = None;
            changed(effects);
        }
    }
}

fn changed(effects: &mut Effects) {
    effects.rows.push(Row::Name);
    effects.cell_changed = true;
}
