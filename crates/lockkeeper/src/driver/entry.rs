//! One acquisition, from its message to the end of its claim.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use super::link::{Terms, Waiting};
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{Claim, Intent, Place};
use crate::error::{Error, Result};
use crate::hold::{Hold, Released, Shared};
use crate::token::Token;

pub(super) struct Entry {
    pub(super) claim: Arc<Claim>,
    pub(super) intent: Intent,
    pub(super) terms: Arc<Terms>,
    pub(super) phase: Phase,
    /// Where the guard goes; `None` once it is answered or nobody waits.
    pub(super) reply: Option<oneshot::Sender<Result<Option<Hold>>>>,
    pub(super) started: Moment,
    pub(super) deadline: Moment,
    /// By when the engine must have answered at all; never, once it has.
    pub(super) answer_by: Moment,
    /// Whether an acquire of this claim went unanswered: it may still arrive.
    pub(super) unsure: bool,
    /// How often in a row the engine did not answer, or the claim was gone.
    pub(super) setbacks: u32,
    /// What the engine last said instead of an answer.
    pub(super) trouble: Option<Error>,
    pub(super) waiting: Option<watch::Sender<Option<Waiting>>>,
    /// When to look whom it waits for.
    pub(super) look_at: Moment,
    /// When to say in the log that it still waits.
    pub(super) nag_at: Moment,
    /// What the alarm is set to for this entry.
    pub(super) wake: Moment,
}

pub(super) enum Phase {
    /// Behind others of this keeper.
    Local,
    /// An acquire is under way.
    Asking {
        /// A hand-over that overtook the answer: its ticket and token.
        early: Option<(u64, Option<Token>)>,
        /// News that overtook the answer, which may not know of it.
        nudged: bool,
    },
    /// To be asked again then: no answer, busy, or a new claim.
    Again { at: Moment },
    /// In the engine's queue.
    Queued {
        place: Place,
        due: bool,
        /// News that came while a beat was due or under way.
        nudged: bool,
    },
    /// Granted.
    Held(Tenure),
    /// Being given back.
    Ending(Ending),
}

/// The life of a grant.
pub(super) struct Tenure {
    pub(super) shared: Arc<Shared>,
    pub(super) granted_at: Moment,
    pub(super) renew_at: Moment,
    pub(super) shard: u32,
    /// Whether it stands in its shard's list of renewals, or in one under way.
    pub(super) due: bool,
    /// Whether the log has been told of the risk.
    pub(super) at_risk: bool,
    pub(super) max_hold_at: Moment,
    /// Who wants to know what the engine says to a renewal sent from now on.
    pub(super) verifies: Vec<oneshot::Sender<Result<()>>>,
    /// The same, for the renewal under way.
    pub(super) verifying: Vec<oneshot::Sender<Result<()>>>,
}

/// The end of a claim.
pub(super) struct Ending {
    /// The grant that is given back, if it was one.
    pub(super) shared: Option<Arc<Shared>>,
    /// Whether it was lost before it was given back.
    pub(super) lost: Option<Cause>,
    pub(super) replies: Vec<oneshot::Sender<Result<Released>>>,
    /// How long the name stays closed, counted to this moment.
    pub(super) linger_until: Moment,
    /// When nothing can be left to release.
    pub(super) give_up_at: Moment,
    /// When to try again; never, while a try is under way.
    pub(super) next_at: Moment,
    /// How many releases went unanswered.
    pub(super) unanswered: u32,
}

impl Entry {
    pub(super) fn shared(&self) -> Option<&Arc<Shared>> {
        match &self.phase {
            Phase::Held(tenure) => Some(&tenure.shared),
            Phase::Ending(ending) => ending.shared.as_ref(),
            _ => None,
        }
    }

    /// Whether it stands in its keeper's local queue.
    pub(super) fn is_waiting(&self) -> bool {
        !matches!(self.phase, Phase::Held(_) | Phase::Ending(_))
    }

    /// Whether its caller is gone, but not yet what it may have at the engine.
    pub(super) fn is_orphan(&self) -> bool {
        matches!(self.phase, Phase::Asking { .. }) && self.reply.is_none()
    }

    /// The earliest moment at which something is to be done for it.
    pub(super) fn next_wake(&self) -> Moment {
        let patience = || {
            let limits = self.deadline.min(self.answer_by);
            if self.reply.is_none() {
                Moment::NEVER
            } else {
                limits.min(self.look_at).min(self.nag_at)
            }
        };
        match &self.phase {
            Phase::Local | Phase::Asking { .. } => patience(),
            Phase::Again { at } => patience().min(*at),
            Phase::Queued { place, due, .. } => {
                patience().min(if *due { Moment::NEVER } else { place.renew_at })
            }
            Phase::Held(tenure) => tenure.next_wake(),
            Phase::Ending(ending) => ending.next_at,
        }
    }
}

impl Tenure {
    fn next_wake(&self) -> Moment {
        if self.shared.cause().is_some() {
            // The guard may have seen its end first: who asked is still to be told.
            let told = self.verifies.is_empty() && self.verifying.is_empty();
            return if told { Moment::NEVER } else { Moment::default() };
        }
        let risk = if self.at_risk { Moment::NEVER } else { self.shared.at_risk_at() };
        let renew = if self.due { Moment::NEVER } else { self.renew_at };
        self.shared.valid_until().min(self.max_hold_at).min(risk).min(renew)
    }
}
