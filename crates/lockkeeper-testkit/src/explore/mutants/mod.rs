//! Servers that are wrong in one way each, for the checker to catch.
//!
//! Most were real mistakes of prototypes. Wrong clients need no code of their
//! own: they are [`Rules`](super::Rules) other than the honest ones.

mod acquire;
mod end;
mod renew;

use std::mem;

use lockkeeper::engine::{Claim, Intent, TICKET};
use lockkeeper::model::{Answer, Effects, Held, Record, Refusal, Time};
use lockkeeper::{ClaimId, Token};

pub use acquire::*;
pub use end::*;
pub use renew::*;

fn own_ticket(record: &Record, claim: ClaimId) -> Option<usize> {
    record.queue.iter().position(|ticket| ticket.claim == claim)
}

/// Refreshes a ticket and nothing else.
fn refreshed(record: &mut Record, index: usize, now: Time) -> Answer {
    let ticket = &mut record.queue[index];
    ticket.until = now + TICKET;
    Answer::Queued { ticket: ticket.number, ahead: 0, look_at: None }
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
    let waiting = mem::take(&mut record.queue);
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
