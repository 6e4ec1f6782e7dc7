//! Until when a session is certainly alive.
//!
//! A session ends a time-out after its *leader* last heard of it. A member
//! that is no leader tells the leader in its answers to pings, which come
//! every half tick, whom it has heard of since the last one; requests that it
//! passes on do not count as signs of life. But it does both over one ordered
//! connection. So when a request that only the leader can answer, sent at `s`,
//! is answered, then all signs of life that the member had half a tick before
//! `s` have arrived: among them every request that was *answered* by then.
//! The latest of those was sent at `p`, so the leader heard of us after `p`,
//! and the session lasts until `p` plus the time-out.
//!
//! A new connection, to another member, is itself announced to the leader;
//! it is made after whatever was answered before it, so the rule holds across.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;

/// How many answered requests are remembered.
const MEMORY: usize = 256;

/// The requests of a session that were answered lately.
#[derive(Debug)]
pub(super) struct Pulse {
    timeout: Duration,
    tick: Duration,
    /// When each was sent, and answered; both only grow.
    beats: VecDeque<(Moment, Moment)>,
}

impl Pulse {
    /// Of a session that was asked for at `sent`.
    pub(super) fn new(sent: Moment, timeout: Duration, tick: Duration) -> Pulse {
        let beats = VecDeque::from([(sent, Moment::default())]);
        Pulse { timeout, tick, beats }
    }

    /// Notes that a request was answered now.
    pub(super) fn answered(&mut self, sent: Moment, now: Moment) {
        let Some(&(last, _)) = self.beats.back() else { return };
        // Close to the last one, it would tell nothing new.
        if sent < last + self.timeout / 64 {
            return;
        }
        if self.beats.len() >= MEMORY {
            self.beats.pop_front();
        }
        self.beats.push_back((sent, now));
    }

    /// When the last request that was answered had been sent.
    pub(super) fn last(&self) -> Moment {
        self.beats.back().map_or(Moment::default(), |&(sent, _)| sent)
    }

    /// Until when the session lasts, if the leader has answered what was sent at `sent`.
    pub(super) fn trusted(&self, sent: Moment) -> Moment {
        let told = sent - self.tick / 2;
        let proof = self.beats.iter().rev().find(|&&(_, answered)| answered <= told);
        // The remembered time is longer than a session, so somebody who finds
        // nothing has nothing to trust in.
        let proof = proof.map_or(Moment::default(), |&(sent, _)| sent);
        // A twentieth for clocks that run at different speeds.
        proof + (self.timeout - self.timeout / 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * (1_000_000 + millis))
    }

    #[test]
    fn only_what_was_answered_half_a_tick_before_counts() {
        let mut pulse = Pulse::new(at(0), Duration::from_secs(10), Duration::from_secs(2));
        assert_eq!(pulse.trusted(at(100)), at(9_500));
        pulse.answered(at(1_000), at(1_400));
        // Sent 900 ms after that answer: the member may not have told yet.
        assert_eq!(pulse.trusted(at(2_300)), at(9_500));
        assert_eq!(pulse.trusted(at(2_400)), at(10_500));
        // A slow answer counts from when it came, but for when it was sent.
        pulse.answered(at(2_000), at(5_000));
        assert_eq!(pulse.trusted(at(5_900)), at(10_500));
        assert_eq!(pulse.trusted(at(6_000)), at(11_500));
    }

    #[test]
    fn a_silent_session_is_trusted_no_longer() {
        let mut pulse = Pulse::new(at(0), Duration::from_secs(10), Duration::from_secs(2));
        pulse.answered(at(1_000), at(1_001));
        assert!(pulse.trusted(at(60_000)) < at(60_000));
    }

    #[test]
    fn many_requests_leave_few_beats_that_cover_a_session() {
        let mut pulse = Pulse::new(at(0), Duration::from_secs(10), Duration::from_secs(2));
        for millis in 0..60_000 {
            pulse.answered(at(millis), at(millis + 1));
        }
        assert!(pulse.beats.len() <= MEMORY);
        assert!(pulse.trusted(at(60_000)) > at(68_000), "{:?}", pulse.trusted(at(60_000)));
        assert!(pulse.trusted(at(51_000)) > at(59_000));
    }
}
