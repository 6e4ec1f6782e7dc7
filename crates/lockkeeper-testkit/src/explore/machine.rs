//! The server's side: the model, behind a trait that wrong variants override.

use std::fmt;

use lockkeeper::engine::{Belief, Cell, CellOp, Claim, Found, Intent, Release, Revoke};
use lockkeeper::model::{Answer, Effects, Record, Refusal, Time};
use lockkeeper::{ClaimId, Token};

/// What a server does with a name's record.
///
/// The default of every method is the model itself, so [`Honest`] is empty and
/// a wrong variant is just its one wrong step.
pub trait Machine: fmt::Debug + Sync {
    /// See [`Record::acquire`].
    ///
    /// # Errors
    /// What the model refuses.
    fn acquire(
        &self,
        record: &mut Record,
        claim: &Claim,
        intent: Intent,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Answer, Refusal> {
        record.acquire(claim, intent, floor, now, effects)
    }

    /// See [`Record::renew`].
    fn renew(
        &self,
        record: &mut Record,
        claim: &Claim,
        belief: Belief,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Answer {
        record.renew(claim, belief, floor, now, effects)
    }

    /// See [`Record::release`].
    fn release(
        &self,
        record: &mut Record,
        claim: ClaimId,
        how: Release,
        now: Time,
        effects: &mut Effects,
    ) -> Found {
        record.release(claim, how, now, effects)
    }

    /// See [`Record::revoke`].
    fn revoke(
        &self,
        record: &mut Record,
        victim: ClaimId,
        token: Option<Token>,
        how: Revoke,
        now: Time,
        effects: &mut Effects,
    ) -> Found {
        record.revoke(victim, token, how, "", now, effects)
    }

    /// See [`Record::settle`].
    fn settle(&self, record: &mut Record, now: Time, effects: &mut Effects) {
        record.settle(now, effects);
    }

    /// Changes a semaphore's capacity; see [`Record::cell`].
    ///
    /// # Errors
    /// What the model refuses.
    fn set_capacity(
        &self,
        record: &mut Record,
        to: u32,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Cell, Refusal> {
        record.cell(&CellOp::SetCapacity { to }, now, effects)
    }
}

/// The model as it is.
#[derive(Debug)]
pub struct Honest;

impl Machine for Honest {}
