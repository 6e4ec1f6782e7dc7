//! Servers that are wrong in one way each, for the checker to catch.
//!
//! Most were real mistakes of prototypes. Wrong clients need no code of their
//! own: they are [`Rules`](super::Rules) other than the honest ones.

use std::collections::VecDeque;

use lockkeeper::engine::{Belief, Claim, Found, Intent, Mode, Release, Revoke, TICKET};
use lockkeeper::model::{Answer, Effects, Held, Record, Refusal, Row, Ticket, Time};
use lockkeeper::{ClaimId, Token};

use super::machine::Machine;

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
        let over = record
            .finished
            .iter()
            .any(|finished| finished.claim == claim.id);
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
            (Answer::Gone(_), Belief::Queued { .. }) => record
                .acquire(claim, Intent::Queue, floor, now, effects)
                .unwrap_or(answer),
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

/// Renewing sets the lease, even to less than it was.
///
/// Only a server that counts a lease from what the request says would do so;
/// here, a confirmed hand-over gets just another ticket time.
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
        if let Some(held) = record
            .holders
            .iter_mut()
            .find(|held| held.claim == claim.id)
        {
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

/// A release that is unsure leaves no memory of its claim.
#[derive(Debug)]
pub struct ReleaseForgets;

impl Machine for ReleaseForgets {
    fn release(
        &self,
        record: &mut Record,
        claim: ClaimId,
        how: Release,
        now: Time,
        effects: &mut Effects,
    ) -> Found {
        record.release(
            claim,
            Release {
                unsure: false,
                ..how
            },
            now,
            effects,
        )
    }
}

/// A release ends whichever grant there is.
#[derive(Debug)]
pub struct ReleaseByName;

impl Machine for ReleaseByName {
    fn release(
        &self,
        record: &mut Record,
        claim: ClaimId,
        how: Release,
        now: Time,
        effects: &mut Effects,
    ) -> Found {
        record.settle(now, effects);
        let own = record.holders.iter().any(|held| held.claim == claim);
        if !own && own_ticket(record, claim).is_none() && !record.holders.is_empty() {
            record.holders.remove(0);
        }
        record.release(claim, how, now, effects)
    }
}

/// A release that leaves the name unused forgets its last token too.
#[derive(Debug)]
pub struct ReleaseResetsToken;

impl Machine for ReleaseResetsToken {
    fn release(
        &self,
        record: &mut Record,
        claim: ClaimId,
        how: Release,
        now: Time,
        effects: &mut Effects,
    ) -> Found {
        let found = record.release(claim, how, now, effects);
        if record.holders.is_empty() && record.queue.is_empty() {
            record.counter = Token::ZERO;
        }
        found
    }
}

/// Whoever finds a lease over takes the name, whoever waits.
#[derive(Debug)]
pub struct AcquireJumpsQueue;

impl Machine for AcquireJumpsQueue {
    fn acquire(
        &self,
        record: &mut Record,
        claim: &Claim,
        intent: Intent,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Answer, Refusal> {
        let over = record.holders.iter().any(|held| held.until <= now);
        match over && own_ticket(record, claim.id).is_none() {
            true => past_the_queue(record, claim, intent, floor, now, effects),
            false => record.acquire(claim, intent, floor, now, effects),
        }
    }
}

/// An attempt does not look at the queue.
#[derive(Debug)]
pub struct TryOvertakes;

impl Machine for TryOvertakes {
    fn acquire(
        &self,
        record: &mut Record,
        claim: &Claim,
        intent: Intent,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Answer, Refusal> {
        match intent {
            Intent::Try => past_the_queue(record, claim, intent, floor, now, effects),
            _ => record.acquire(claim, intent, floor, now, effects),
        }
    }
}

/// A failed attempt stays in line.
#[derive(Debug)]
pub struct TryStays;

impl Machine for TryStays {
    fn acquire(
        &self,
        record: &mut Record,
        claim: &Claim,
        intent: Intent,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Answer, Refusal> {
        let answer = record.acquire(claim, Intent::Queue, floor, now, effects)?;
        Ok(match answer {
            Answer::Queued { .. } if intent == Intent::Try => Answer::Busy,
            answer => answer,
        })
    }
}

/// Readers join readers, past a writer that waits.
#[derive(Debug)]
pub struct ReadersPassWriters;

impl Machine for ReadersPassWriters {
    fn acquire(
        &self,
        record: &mut Record,
        claim: &Claim,
        intent: Intent,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Answer, Refusal> {
        let reading = record.holders.iter().any(|held| held.mode == Mode::Read);
        match claim.mode == Mode::Read && reading && own_ticket(record, claim.id).is_none() {
            true => past_the_queue(record, claim, intent, floor, now, effects),
            false => record.acquire(claim, intent, floor, now, effects),
        }
    }
}

/// Several permits at once are counted as one while there is room for one.
#[derive(Debug)]
pub struct PermitsCountedOnce;

impl Machine for PermitsCountedOnce {
    fn acquire(
        &self,
        record: &mut Record,
        claim: &Claim,
        intent: Intent,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Answer, Refusal> {
        let Mode::Permits { of, .. } = claim.mode else {
            return record.acquire(claim, intent, floor, now, effects);
        };
        let single = Claim {
            mode: Mode::Permits { count: 1, of },
            ..claim.clone()
        };
        let answer = record.acquire(&single, intent, floor, now, effects);
        for held in record
            .holders
            .iter_mut()
            .filter(|held| held.claim == claim.id)
        {
            held.mode = claim.mode;
        }
        answer
    }
}

/// A break compares the claim, but not the token of the grant it means.
#[derive(Debug)]
pub struct BreakIgnoresToken;

impl Machine for BreakIgnoresToken {
    fn revoke(
        &self,
        record: &mut Record,
        victim: ClaimId,
        token: Option<Token>,
        how: Revoke,
        now: Time,
        effects: &mut Effects,
    ) -> Found {
        record.settle(now, effects);
        let known = record.holders.iter().find(|held| held.claim == victim);
        let token = known.map_or(token, |held| held.token);
        record.revoke(victim, token, how, "", now, effects)
    }
}

/// An orderly break frees the name at once, without waiting for the owner.
#[derive(Debug)]
pub struct BreakIsHasty;

impl Machine for BreakIsHasty {
    fn revoke(
        &self,
        record: &mut Record,
        victim: ClaimId,
        token: Option<Token>,
        _how: Revoke,
        now: Time,
        effects: &mut Effects,
    ) -> Found {
        record.revoke(victim, token, Revoke::Now, "", now, effects)
    }
}

/// A name that must stay closed is granted all the same.
#[derive(Debug)]
pub struct NeverClosed;

impl Machine for NeverClosed {
    fn acquire(
        &self,
        record: &mut Record,
        claim: &Claim,
        intent: Intent,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Answer, Refusal> {
        record.settle(now, effects);
        record.closed_until = Time::default();
        record.acquire(claim, intent, floor, now, effects)
    }
}

/// A release passes the name to nobody: the next one who asks does.
#[derive(Debug)]
pub struct ReleaseWakesNobody;

impl Machine for ReleaseWakesNobody {
    fn release(
        &self,
        record: &mut Record,
        claim: ClaimId,
        how: Release,
        now: Time,
        effects: &mut Effects,
    ) -> Found {
        if own_ticket(record, claim).is_some() {
            return record.release(claim, how, now, effects);
        }
        record.settle(now, effects);
        let waiting = std::mem::take(&mut record.queue);
        let found = record.release(claim, how, now, effects);
        record.queue = waiting;
        found
    }
}

/// A release does not tell that its claim must be remembered.
#[derive(Debug)]
pub struct ReleaseTellsLess;

impl Machine for ReleaseTellsLess {
    fn release(
        &self,
        record: &mut Record,
        claim: ClaimId,
        how: Release,
        now: Time,
        effects: &mut Effects,
    ) -> Found {
        let found = record.release(claim, how, now, effects);
        effects.rows.retain(|row| *row != Row::Finished(claim));
        found
    }
}

fn own_ticket(record: &Record, claim: ClaimId) -> Option<usize> {
    record.queue.iter().position(|ticket| ticket.claim == claim)
}

/// Refreshes a ticket and nothing else.
fn refreshed(record: &mut Record, index: usize, now: Time) -> Answer {
    let ticket = &mut record.queue[index];
    ticket.until = now + TICKET;
    Answer::Queued {
        ticket: ticket.number,
        ahead: 0,
        look_at: None,
    }
}

/// Asks as if nobody waited; whoever waits keeps waiting.
fn past_the_queue(
    record: &mut Record,
    claim: &Claim,
    intent: Intent,
    floor: Token,
    now: Time,
    effects: &mut Effects,
) -> Result<Answer, Refusal> {
    let waiting: VecDeque<Ticket> = std::mem::take(&mut record.queue);
    let answer = record.acquire(claim, intent, floor, now, effects);
    for ticket in waiting.into_iter().rev() {
        record.queue.push_front(ticket);
    }
    answer
}

fn held(claim: &Claim, token: Option<Token>, now: Time) -> Held {
    Held {
        claim: claim.id,
        mode: claim.mode,
        token,
        until: now + claim.lease,
        since: now,
        lock_delay: claim.lock_delay,
        revoked: None,
        about: claim.about.clone(),
    }
}
