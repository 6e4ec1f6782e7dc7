//! Wrong releases and breaks.

use lockkeeper::engine::{Found, Release, Revoke};
use lockkeeper::model::{Effects, Record, Row, Time};
use lockkeeper::{ClaimId, Token};

use super::own_ticket;
use crate::explore::Machine;

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
        record.release(claim, Release { unsure: false, ..how }, now, effects)
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
