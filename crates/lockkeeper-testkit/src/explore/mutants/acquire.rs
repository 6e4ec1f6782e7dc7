//! Wrong acquires.

use lockkeeper::Token;
use lockkeeper::engine::{Claim, Intent, Mode};
use lockkeeper::model::{Answer, Effects, Record, Refusal, Time};

use super::{own_ticket, past_the_queue};
use crate::explore::Machine;

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
        let single = Claim { mode: Mode::Permits { count: 1, of }, ..claim.clone() };
        let answer = record.acquire(&single, intent, floor, now, effects);
        for held in record.holders.iter_mut().filter(|held| held.claim == claim.id) {
            held.mode = claim.mode;
        }
        answer
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
