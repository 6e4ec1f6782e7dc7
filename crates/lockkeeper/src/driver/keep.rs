//! Keep-alive: grants and places, earliest deadline first, in batches.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::oneshot;

use super::acquire::backoff;
use super::entry::{Phase, Tenure};
use super::{ANSWER_LIMIT, Driver};
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{Belief, Keep, Standing, TICKET};
use crate::error::{Error, ErrorKind, Result};
use crate::token::{ClaimId, Token};

/// How many claims one renewal carries at most.
const BATCH: usize = 512;

/// The beats at which a keeper renews what can wait for one: claims that are
/// renewed together share requests. Every keeper has beats of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rhythm(pub(super) Moment);

impl Rhythm {
    /// A little shorter than the beat of tickets.
    const STEP: Duration = Duration::from_millis(600);

    /// The last beat that is not after `at`, so that all are due at once;
    /// what is due soon stays where it is.
    pub(super) fn at_or_before(self, at: Moment, now: Moment) -> Moment {
        if at == Moment::NEVER || at.since(now) < Self::STEP / 2 {
            return at;
        }
        let beats = at.since(self.0).as_nanos() / Self::STEP.as_nanos();
        let beat = self.0 + Self::STEP * u32::try_from(beats).unwrap_or(0);
        if beat.since(now) < Self::STEP / 12 { at } else { beat }
    }
}

/// What is renewed together: one renewal under way at a time.
#[derive(Default)]
pub(super) struct Shard {
    /// Those whose renewal is due, the one that ends first in front.
    due: BTreeSet<(Moment, u64)>,
    under_way: bool,
    /// How often in a row nobody answered.
    failures: u32,
    /// Not before then, after a failure.
    pause_until: Moment,
}

impl Shard {
    pub(super) fn add(&mut self, deadline: Moment, number: u64) {
        self.due.insert((deadline, number));
    }

    pub(super) fn len(&self) -> usize {
        self.due.len()
    }

    /// When its next renewal can go out.
    pub(super) fn next_try(&self) -> Moment {
        if self.under_way || self.due.is_empty() { Moment::NEVER } else { self.pause_until }
    }
}

impl Driver {
    /// Looks at what time has done to an entry.
    pub(super) fn on_wake(&mut self, number: u64, now: Moment) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.wake = Moment::NEVER;
        match &entry.phase {
            Phase::Held(_) => self.on_tenure(number, now),
            Phase::Ending(_) => self.try_release(number, now),
            _ => self.on_patience(number, now),
        }
    }

    fn on_tenure(&mut self, number: u64, now: Moment) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let name = entry.claim.name.clone();
        let Phase::Held(tenure) = &mut entry.phase else { return };
        if let Some(cause) = tenure.shared.cause().cloned() {
            return self.lose(number, cause);
        }
        if tenure.max_hold_at <= now {
            self.lose(number, Cause::HeldTooLong);
            self.end(number, None);
            return;
        }
        if tenure.shared.valid_until() <= now {
            return self.lose(number, Cause::Expired);
        }
        if tenure.shared.at_risk_at() <= now && !tenure.at_risk {
            tenure.at_risk = true;
            tenure.shared.tell();
            tracing::warn!(%name, valid_for = ?tenure.shared.valid_until().since(now), "at risk");
        }
        if tenure.renew_at <= now && !tenure.due {
            tenure.due = true;
            let (shard, deadline) = (tenure.shard, tenure.shared.valid_until());
            self.shards.entry(shard).or_default().add(deadline, number);
        }
        self.schedule(number);
    }

    /// Sends what is due, one batch per shard.
    pub(super) fn renew_due(&mut self, now: Moment) {
        let ready = |(&id, shard): (&u32, &Shard)| (shard.next_try() <= now).then_some(id);
        let shards: Vec<u32> = self.shards.iter().filter_map(ready).collect();
        for id in shards {
            let (batch, limit) = self.batch(id);
            if !batch.is_empty() {
                if let Some(shard) = self.shards.get_mut(&id) {
                    shard.under_way = true;
                }
                self.start_renew(id, batch, limit);
            }
        }
    }

    /// Takes the most urgent claims of a shard, and how long they can wait
    /// for an answer before another try is better.
    fn batch(&mut self, id: u32) -> (Vec<Keep>, Duration) {
        let mut batch = Vec::new();
        let mut limit = ANSWER_LIMIT;
        let Some(shard) = self.shards.get_mut(&id) else { return (batch, limit) };
        // An engine that took longer the last time is given longer: it may be
        // slow, and a beat that is always cut short would cost every grant
        // that shares its batch.
        let patience = 1 << shard.failures.min(3);
        while batch.len() < BATCH
            && let Some((_, number)) = shard.due.pop_first()
        {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            let belief = match &mut entry.phase {
                Phase::Queued { place, .. } => {
                    limit = limit.min(TICKET / 2 * patience);
                    Belief::Queued { ticket: place.ticket }
                }
                Phase::Held(tenure) if tenure.shared.cause().is_none() => {
                    limit = limit.min(entry.claim.lease / 2 * patience);
                    tenure.verifying.append(&mut tenure.verifies);
                    Belief::Held { token: tenure.shared.token }
                }
                _ => continue,
            };
            batch.push(Keep { claim: entry.claim.clone(), belief, floor: Token::ZERO });
        }
        (batch, limit)
    }

    pub(super) fn on_renewed(
        &mut self,
        shard: u32,
        claims: Vec<(ClaimId, Belief)>,
        results: Result<Vec<Result<Standing>>>,
    ) {
        let now = self.clock.now();
        let results = match results {
            Ok(results) if results.len() == claims.len() => results,
            Ok(_) => vec![
                Err(Error::new(ErrorKind::Unexpected, "wrong number of answers"));
                claims.len()
            ],
            Err(error) => vec![Err(error); claims.len()],
        };
        if let Some(shard) = self.shards.get_mut(&shard) {
            shard.under_way = false;
            if results.iter().all(Result::is_err) {
                shard.failures += 1;
                shard.pause_until = now + backoff(shard.failures);
            } else {
                shard.failures = 0;
                shard.pause_until = Moment::default();
            }
        }
        for ((claim, belief), result) in claims.into_iter().zip(results) {
            let Some(entry) = self.entries.get_mut(&claim.number) else { continue };
            if entry.claim.id != claim {
                continue;
            }
            // A beat that left before the hand-over was pushed may still say
            // "queued": true when it was answered, and no longer.
            if let (Phase::Held(tenure), Belief::Queued { .. }, Ok(Standing::Queued(_))) =
                (&mut entry.phase, belief, &result)
            {
                tenure.due = false;
                self.schedule(claim.number);
                continue;
            }
            match result {
                Ok(standing) => self.on_kept(claim.number, standing),
                Err(error) => self.on_not_kept(claim.number, error, now),
            }
        }
    }

    /// Acts on what the engine says a kept claim is.
    pub(super) fn on_kept(&mut self, number: u64, standing: Standing) {
        let (now, rhythm) = (self.clock.now(), self.rhythm);
        let Some(entry) = self.entries.get_mut(&number) else { return };
        match &mut entry.phase {
            Phase::Held(tenure) => match standing {
                Standing::Held(grant) => {
                    tenure.due = false;
                    if !tenure.shared.extend(grant.valid_until, now) {
                        return self.lose(number, Cause::Expired);
                    }
                    if std::mem::take(&mut tenure.at_risk) {
                        tracing::info!(name = %entry.claim.name, "held again");
                    }
                    tenure.renew_at = rhythm.at_or_before(grant.renew_at, now);
                    tenure.shard = grant.shard;
                    for verify in tenure.verifying.drain(..) {
                        let _ = verify.send(Ok(()));
                    }
                    // Asked for while this renewal was under way.
                    if !tenure.verifies.is_empty() {
                        tenure.renew_at = now;
                    }
                    self.schedule(number);
                }
                Standing::Gone(cause) => self.lose(number, cause),
                Standing::Queued(_) | Standing::Busy => self.lose(number, Cause::TakenOver),
            },
            Phase::Queued { due, .. } => {
                *due = false;
                self.last_answer = now;
                self.take(number, standing);
            }
            _ => {}
        }
    }

    fn on_not_kept(&mut self, number: u64, error: Error, now: Moment) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        tracing::debug!(name = %entry.claim.name, %error, "not renewed; trying again");
        match &mut entry.phase {
            Phase::Held(tenure) => {
                tenure.due = false;
                tenure.renew_at = now;
                for verify in tenure.verifying.drain(..) {
                    let _ = verify.send(Err(error.clone()));
                }
            }
            Phase::Queued { place, due, nudged } => {
                (*due, *nudged) = (false, false);
                place.renew_at = now;
            }
            _ => return,
        }
        self.schedule(number);
    }

    /// Ends a grant for good. The guard's release, or the lease, does the rest:
    /// its user may still be winding up, and the name must not pass on before.
    pub(super) fn lose(&mut self, number: u64, cause: Cause) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let Phase::Held(tenure) = &mut entry.phase else { return };
        if tenure.shared.lose(cause) {
            let cause = tenure.shared.cause();
            tracing::warn!(name = %entry.claim.name, token = ?tenure.shared.token, ?cause, "lost");
        }
        let cause = tenure.shared.cause().cloned().unwrap_or(Cause::Expired);
        for verify in tenure.verifying.drain(..).chain(tenure.verifies.drain(..)) {
            let _ = verify.send(Err(Error::lost(cause.clone())));
        }
        self.schedule(number);
    }

    pub(super) fn on_verify(&mut self, claim: ClaimId, reply: oneshot::Sender<Result<()>>) {
        let now = self.clock.now();
        let entry = self.entries.get_mut(&claim.number).filter(|entry| entry.claim.id == claim);
        // A reply that is dropped makes the guard look at its own state.
        let Some(entry) = entry else { return };
        let Phase::Held(tenure) = &mut entry.phase else { return };
        if let Some(cause) = tenure.shared.cause() {
            let _ = reply.send(Err(Error::lost(cause.clone())));
            return;
        }
        tenure.verifies.push(reply);
        tenure.renew_at = now;
        self.schedule(claim.number);
    }

    /// A connection went down: its guards are at risk. It came back: renew now.
    pub(super) fn on_link(&mut self, id: u32, up: bool) {
        let now = self.clock.now();
        let of_shard = |tenure: &Tenure| tenure.shard == id;
        if up && let Some(shard) = self.shards.get_mut(&id) {
            (shard.failures, shard.pause_until) = (0, Moment::default());
        }
        let mut touched = Vec::new();
        for (&number, entry) in &mut self.entries {
            match &mut entry.phase {
                Phase::Held(tenure) if of_shard(tenure) && up => tenure.renew_at = now,
                Phase::Held(tenure) if of_shard(tenure) => tenure.shared.set_link_down(),
                Phase::Queued { place, .. } if up && place.shard == id => place.renew_at = now,
                Phase::Again { at } if up => *at = now,
                _ => continue,
            }
            touched.push(number);
        }
        for number in touched {
            self.schedule(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_fall_into_one_rhythm_and_are_never_later() {
        let rhythm = Rhythm(Moment::from_nanos(7_000_000_123));
        let at = |millis| rhythm.0 + Duration::from_millis(millis);
        let starts = (0..600).step_by(7);
        for (start, every) in starts.flat_map(|at| [650, 1_000, 10_000].map(|every| (at, every))) {
            let (mut now, mut off) = (at(start), 0);
            for _ in 0..50 {
                let renew_at = now + Duration::from_millis(every);
                let beat = rhythm.at_or_before(renew_at, now + Duration::from_millis(20));
                assert!(beat > now && beat <= renew_at, "from {start} every {every} ms");
                let on_beat =
                    beat.since(rhythm.0).as_nanos().is_multiple_of(Rhythm::STEP.as_nanos());
                off += u32::from(!on_beat);
                now = beat;
            }
            // Off the beat at most once, on the way into it.
            assert!(off <= 1, "from {start} every {every} ms: off the beat {off} times");
        }
        // What is due before the next beat is looked at in time.
        assert_eq!(rhythm.at_or_before(at(400), at(150)), at(400));
        assert_eq!(rhythm.at_or_before(Moment::NEVER, at(100)), Moment::NEVER);
    }
}
