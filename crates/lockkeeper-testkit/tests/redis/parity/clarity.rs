//! When both sides certainly see the same side of every instant.

use super::*;

/// How much longer than its operation an instant may be unclear.
pub(super) const BLUR: Duration = Duration::from_millis(3);

/// What was unclear, so that the sequence ends here.
pub(super) struct Unclear;

impl Sequence {
    /// Waits until no instant that matters is near.
    pub(super) async fn wait_for_clarity(&mut self) {
        loop {
            let now = wall();
            let blur = micros(self.apart + BLUR);
            let unclear =
                self.instants().filter(|&at| at + blur > now && at < now + 2 * blur).max();
            match unclear {
                Some(at) => {
                    let pause = Duration::from_micros((at + blur).saturating_sub(now) + 500);
                    tokio::time::sleep(pause).await;
                }
                None => return,
            }
        }
    }

    /// Ends the sequence if the operation since `now` may have met an instant.
    pub(super) fn clear(&mut self, now: Time) -> Result<(), Unclear> {
        let took = Time(wall()).since(now);
        self.apart = self.apart.max(took);
        let late = now.0 + micros(self.apart + BLUR);
        let met = self.instants().any(|at| at + micros(self.apart) > now.0 && at < late);
        // Instants that this very operation made lie further ahead.
        if met || took > Duration::from_millis(40) { Err(Unclear) } else { Ok(()) }
    }

    /// Every instant at which the model changes by itself.
    fn instants(&self) -> impl Iterator<Item = u64> + '_ {
        let record = &self.record;
        let held = record.holders.iter().flat_map(|held| {
            let delay = micros(held.lock_delay);
            [held.until.0, held.until.0 + delay]
        });
        held.chain(record.queue.iter().map(|ticket| ticket.until.0))
            .chain(record.watchers.iter().map(|watcher| watcher.until.0))
            .chain(record.finished.iter().map(|finished| finished.until.0))
            .chain(record.latch.iter().map(|latch| latch.until.0))
            .chain([record.closed_until.0])
    }
}
