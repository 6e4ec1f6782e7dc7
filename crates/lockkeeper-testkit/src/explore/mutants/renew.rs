//! Wrong renewals.

use lockkeeper::Token;
use lockkeeper::engine::{Belief, Claim, Intent, TICKET};
use lockkeeper::model::{Answer, Effects, Record, Time};

use super::{held, own_ticket, refreshed};
use crate::explore::Machine;

/// Renewing a grant that is over brings it back if nobody else has the name.
#[derive(Debug)]
pub struct RenewRevives;

impl Machine for RenewRevives {
    fn renew(
        &self,
        record: &mut Record,
        claim: &Claim,
        belief: Belief,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Answer {
        let answer = record.renew(claim, belief, floor, now, effects);
        let over = record.finished.iter().any(|finished| finished.claim == claim.id);
        match (&answer, belief) {
            (Answer::Gone(_), Belief::Held { token }) if record.holders.is_empty() && !over => {
                record.holders.push(held(claim, token, now));
                Answer::Held { token }
            }
            _ => answer,
        }
    }
}

/// Renewing compares the claim, but not the token.
#[derive(Debug)]
pub struct RenewIgnoresToken;

impl Machine for RenewIgnoresToken {
    fn renew(
        &self,
        record: &mut Record,
        claim: &Claim,
        belief: Belief,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Answer {
        record.settle(now, effects);
        let known = record.holders.iter().find(|held| held.claim == claim.id);
        let belief = known.map_or(belief, |held| Belief::Held { token: held.token });
        record.renew(claim, belief, floor, now, effects)
    }
}

/// Renewing a ticket that is over gives a new one.
#[derive(Debug)]
pub struct RenewCreatesTickets;

impl Machine for RenewCreatesTickets {
    fn renew(
        &self,
        record: &mut Record,
        claim: &Claim,
        belief: Belief,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Answer {
        let answer = record.renew(claim, belief, floor, now, effects);
        match (&answer, belief) {
            (Answer::Gone(_), Belief::Queued { .. }) => {
                record.acquire(claim, Intent::Queue, floor, now, effects).unwrap_or(answer)
            }
            _ => answer,
        }
    }
}

/// Renewing with the wrong token ends the grant it found.
#[derive(Debug)]
pub struct RenewDeletes;

impl Machine for RenewDeletes {
    fn renew(
        &self,
        record: &mut Record,
        claim: &Claim,
        belief: Belief,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Answer {
        let answer = record.renew(claim, belief, floor, now, effects);
        if matches!(answer, Answer::Gone(_)) {
            record.holders.retain(|held| held.claim != claim.id);
        }
        answer
    }
}

/// Renewing sets the lease, even to less than it was: here, to a ticket time.
#[derive(Debug)]
pub struct RenewShortens;

impl Machine for RenewShortens {
    fn renew(
        &self,
        record: &mut Record,
        claim: &Claim,
        belief: Belief,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Answer {
        let answer = record.renew(claim, belief, floor, now, effects);
        if let Some(held) = record.holders.iter_mut().find(|held| held.claim == claim.id) {
            held.until = now + TICKET;
        }
        answer
    }
}

/// A waiter's renewal refreshes its ticket, but does not look whether the
/// holder's lease is over: if all others are silent, nobody does.
#[derive(Debug)]
pub struct RenewServesNobody;

impl Machine for RenewServesNobody {
    fn renew(
        &self,
        record: &mut Record,
        claim: &Claim,
        belief: Belief,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Answer {
        match own_ticket(record, claim.id) {
            Some(index) => refreshed(record, index, now),
            None => record.renew(claim, belief, floor, now, effects),
        }
    }
}

/// A dead ticket at the head is not dropped, and nobody passes it.
#[derive(Debug)]
pub struct DeadTicketBlocks;

impl Machine for DeadTicketBlocks {
    fn renew(
        &self,
        record: &mut Record,
        claim: &Claim,
        belief: Belief,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Answer {
        let dead = record.queue.front().is_some_and(|head| head.until <= now);
        match own_ticket(record, claim.id) {
            Some(index) if dead && index > 0 => refreshed(record, index, now),
            _ => record.renew(claim, belief, floor, now, effects),
        }
    }
}
