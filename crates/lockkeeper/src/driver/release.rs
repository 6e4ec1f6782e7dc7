//! Giving back, until it is answered or nothing can be left.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::acquire::backoff;
use super::entry::{Ending, Entry, Phase};
use super::{ANSWER_LIMIT, Driver};
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{Claim, Found, Intent, Release, TICKET};
use crate::error::{Error, Result, invalid};
use crate::hold::Released;
use crate::token::ClaimId;

type Reply = oneshot::Sender<Result<Released>>;

impl Driver {
    pub(super) fn on_release(&mut self, claim: ClaimId, reply: Option<Reply>) {
        let entry = self.entries.get(&claim.number).filter(|entry| entry.claim.id == claim);
        // A reply that is dropped makes the guard look at its own state.
        if entry.is_some() {
            self.end(claim.number, reply);
        }
    }

    /// Starts the end of an entry, whatever it has at the engine.
    pub(super) fn end(&mut self, number: u64, reply: Option<Reply>) {
        let now = self.clock.now();
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if let Phase::Ending(ending) = &mut entry.phase {
            ending.replies.extend(reply);
            return;
        }
        let mut ending = Ending {
            shared: None,
            lost: None,
            replies: Vec::from_iter(reply),
            linger_until: now,
            // An unanswered acquire may still be granted a full lease.
            give_up_at: now + entry.claim.lease.max(ANSWER_LIMIT),
            next_at: now,
            unanswered: 0,
        };
        match &entry.phase {
            Phase::Held(tenure) => {
                ending.lost = tenure.shared.cause().cloned();
                ending.give_up_at = tenure.shared.valid_until() + entry.claim.margin;
                ending.linger_until = tenure.granted_at + entry.terms.min_hold;
                // Nobody may go on believing in a grant that is given back.
                if ending.lost.is_none() {
                    tenure.shared.lose(Cause::EngineGone);
                }
                ending.shared = Some(tenure.shared.clone());
            }
            Phase::Queued { place, .. } if !entry.unsure => {
                ending.give_up_at = place.until + TICKET / 2;
            }
            _ => {}
        }
        let waits_for = entry.is_waiting().then(|| entry.claim.name.clone());
        entry.reply = None;
        entry.phase = Phase::Ending(ending);
        self.ending += 1;
        if let Some(name) = waits_for {
            self.drop_from_queue(number, &name);
        }
        self.try_release(number, now);
    }

    /// Ends a claim that no acquisition stands for any more.
    pub(super) fn clean_up(&mut self, claim: Arc<Claim>) {
        let now = self.clock.now();
        // Counted from the far end, so that it never meets an acquisition's.
        let number = u64::MAX - self.ghosts;
        self.ghosts += 1;
        let Some(terms) = self.entries.get(&claim.id.number).map(|entry| entry.terms.clone())
        else {
            return;
        };
        let ghost = Entry {
            claim,
            intent: Intent::Queue,
            terms,
            phase: Phase::Asking { early: None, nudged: false },
            reply: None,
            started: now,
            deadline: Moment::NEVER,
            answer_by: Moment::NEVER,
            unsure: true,
            setbacks: 0,
            trouble: None,
            waiting: None,
            look_at: Moment::NEVER,
            nag_at: Moment::NEVER,
            wake: Moment::NEVER,
        };
        self.entries.insert(number, ghost);
        self.end(number, None);
    }

    pub(super) fn try_release(&mut self, number: u64, now: Moment) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let unsure = entry.unsure;
        let Phase::Ending(ending) = &mut entry.phase else { return };
        if ending.next_at > now {
            return self.schedule(number);
        }
        ending.next_at = Moment::NEVER;
        let how = Release { linger: ending.linger_until.since(now), unsure };
        let claim = entry.claim.clone();
        self.start_release(number, claim, how);
        self.schedule(number);
    }

    pub(super) fn on_released(&mut self, number: u64, result: Result<Found>) {
        let now = self.clock.now();
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let Phase::Ending(ending) = &mut entry.phase else { return };
        match result {
            Ok(found) => self.finish(number, Ok(found)),
            Err(error) if now >= ending.give_up_at => self.finish(number, Err(error)),
            Err(error) => {
                ending.unanswered += 1;
                ending.next_at = (now + backoff(ending.unanswered)).min(ending.give_up_at);
                tracing::debug!(name = %entry.claim.name, %error, "not released; trying again");
                self.schedule(number);
            }
        }
    }

    fn finish(&mut self, number: u64, result: Result<Found>) {
        let Some(entry) = self.forget(number) else { return };
        self.ending -= 1;
        let Phase::Ending(ending) = entry.phase else { return };
        tracing::debug!(name = %entry.claim.name, ?result, "release");
        let outcome = match (result, ending.lost) {
            (_, Some(cause)) => Ok(Released::AlreadyLost(cause)),
            (Ok(Found::Held), None) => Ok(Released::Released),
            // An earlier release may have been the one that found it.
            (Ok(_), None) if ending.unanswered > 0 => Ok(Released::Released),
            (Ok(_), None) => Ok(Released::AlreadyLost(Cause::TakenOver)),
            (Err(error), None) => Err(error.on(&self.info.label)),
        };
        for reply in ending.replies {
            let _ = reply.send(outcome.clone());
        }
    }

    /// Ends an entry because its keeper closes.
    pub(super) fn close_entry(&mut self, number: u64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if entry.is_waiting() {
            let closed = || -> Error { invalid("the keeper is closed") };
            self.answer(number, Err(closed()));
            self.give_up(number);
        } else {
            self.lose(number, Cause::EngineGone);
            self.end(number, None);
        }
    }
}
