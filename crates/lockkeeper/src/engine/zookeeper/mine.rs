//! What this keeper has at the ensemble: its claims, their nodes, and which
//! of them are finished. Plain data behind one lock; no I/O.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use zookeeper_client::WatchedEvent;

use super::session::{Session, lock};
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{Claim, Found, REMEMBER, TICKET};
use crate::token::{ClaimId, Token};

/// Fires when a node that we hold by is changed or deleted.
pub(super) type Bell = Shared<BoxFuture<'static, WatchedEvent>>;

/// Tells what a claim had, when all of it is taken away; `None` if it ended
/// with its session.
pub(super) type Burial = Shared<BoxFuture<'static, Option<Found>>>;

/// A node of ours, told apart from any later one by when it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) path: String,
    pub(super) czxid: i64,
}

/// What a claim has.
#[derive(Clone, Debug)]
pub(super) enum Spot {
    /// A request to make its node is under way, or was lost.
    Asking,
    /// A place in the queue.
    Queued { node: Node, ahead: u32 },
    /// A grant: the nodes it holds by.
    Held { nodes: Vec<Node>, token: Option<Token> },
}

impl Spot {
    /// The number of the ticket of a place.
    pub(super) fn ticket(node: &Node) -> u64 {
        node.czxid.unsigned_abs()
    }
}

/// A claim of this keeper that is not finished.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) claim: Arc<Claim>,
    pub(super) session: Arc<Session>,
    pub(super) spot: Spot,
    /// When the keeper last asked for it.
    pub(super) touched: Moment,
    /// The place it was granted from, until the keeper has confirmed the grant.
    pub(super) unconfirmed: Option<u64>,
    /// Why it may not be renewed any more.
    pub(super) revoked: Option<Arc<str>>,
    /// Rings when a node it holds by changes.
    pub(super) bell: Option<Bell>,
    /// On which connection its nodes were last verified.
    pub(super) verified: u64,
    /// The task that waits for its turn.
    pub(super) waiting: Option<AbortHandle>,
}

impl Entry {
    /// When it is given up, unless its keeper asks for it again before.
    ///
    /// The session lives on as long as the process does, so a keeper that
    /// has stopped to ask is noticed by nobody else.
    pub(super) fn until(&self) -> Moment {
        let life = match self.spot {
            // As long as a call can take, and the pause before the next one.
            Spot::Asking => TICKET * 4,
            Spot::Held { .. } if self.unconfirmed.is_none() => self.claim.lease,
            Spot::Queued { .. } | Spot::Held { .. } => TICKET,
        };
        self.touched + life
    }

    /// Whether its nodes have to be looked at before it is renewed.
    pub(super) fn needs_a_look(&self) -> bool {
        let rang = |bell: &Bell| bell.clone().now_or_never().is_some();
        // What was handed over was seen just then.
        let unseen = self.bell.is_none() && self.unconfirmed.is_none();
        unseen || self.bell.as_ref().is_some_and(rang) || self.verified != self.session.epoch()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.abort();
        }
    }
}

#[derive(Debug)]
struct Finished {
    until: Moment,
    cause: Cause,
}

/// All claims of a keeper.
#[derive(Debug, Default)]
pub(super) struct Mine {
    state: Mutex<State>,
    /// Rings when there is something to look after, or never will be again.
    pub(super) arrival: Notify,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<ClaimId, Entry>,
    finished: HashMap<ClaimId, Finished>,
    /// Ends of claims that took longer than their release could wait.
    burials: HashMap<ClaimId, Burial>,
}

/// What is known of a claim that is asked for.
pub(super) enum Known {
    /// Nothing: it has been noted now.
    Fresh,
    /// Its node may have been made.
    Perhaps,
    /// It has a place or a grant.
    Settled,
    /// It is over.
    Finished(Cause),
}

impl Mine {
    /// Notes that a claim is asked for.
    pub(super) fn begin(&self, claim: &Claim, session: &Arc<Session>, now: Moment) -> Known {
        let mut state = lock(&self.state);
        if let Some(finished) = state.finished.get(&claim.id) {
            return Known::Finished(finished.cause.clone());
        }
        if let Some(entry) = state.entries.get_mut(&claim.id) {
            entry.touched = now;
            return match entry.spot {
                Spot::Held { .. } => Known::Settled,
                Spot::Queued { .. } if entry.waiting.is_some() => Known::Settled,
                Spot::Asking | Spot::Queued { .. } => Known::Perhaps,
            };
        }
        state.finished.retain(|_, finished| finished.until > now);
        let entry = Entry {
            claim: Arc::new(claim.clone()),
            session: session.clone(),
            spot: Spot::Asking,
            touched: now,
            unconfirmed: None,
            revoked: None,
            bell: None,
            verified: session.epoch(),
            waiting: None,
        };
        state.entries.insert(claim.id, entry);
        self.arrival.notify_one();
        Known::Fresh
    }

    /// Looks at, or changes, a claim that is not finished.
    pub(super) fn with<T>(&self, id: ClaimId, work: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        lock(&self.state).entries.get_mut(&id).map(work)
    }

    /// Whether no node of a claim is known.
    pub(super) fn is_asking(&self, id: ClaimId) -> bool {
        self.with(id, |entry| matches!(entry.spot, Spot::Asking)).unwrap_or(true)
    }

    /// Takes a claim out.
    pub(super) fn take(&self, id: ClaimId) -> Option<Entry> {
        lock(&self.state).entries.remove(&id)
    }

    /// Takes a claim out for good: it is never granted again.
    pub(super) fn finish(&self, id: ClaimId, cause: Cause, now: Moment) -> Option<Entry> {
        let mut state = lock(&self.state);
        let until = now + REMEMBER;
        // The first cause is the true one.
        state.finished.entry(id).or_insert(Finished { until, cause }).until = until;
        state.entries.remove(&id)
    }

    /// Remembers an end that goes on, for whoever asks again.
    pub(super) fn keep_burial(&self, id: ClaimId, burial: Burial) {
        let mut state = lock(&self.state);
        if state.burials.len() >= 1024 {
            state.burials.retain(|_, burial| burial.clone().now_or_never().is_none());
        }
        state.burials.insert(id, burial);
    }

    /// The end of a claim that went on when it was last asked for.
    pub(super) fn take_burial(&self, id: ClaimId) -> Option<Burial> {
        lock(&self.state).burials.remove(&id)
    }

    /// Why a claim is finished, if that is remembered.
    pub(super) fn cause(&self, id: ClaimId) -> Option<Cause> {
        lock(&self.state).finished.get(&id).map(|finished| finished.cause.clone())
    }

    /// The claims of a session.
    pub(super) fn of_session(&self, generation: u32) -> Vec<ClaimId> {
        let state = lock(&self.state);
        let of = |(id, entry): (&ClaimId, &Entry)| {
            (entry.session.generation == generation).then_some(*id)
        };
        state.entries.iter().filter_map(of).collect()
    }

    /// The claims whose keeper has stopped asking, and when to look again.
    pub(super) fn silent(&self, now: Moment) -> (Vec<ClaimId>, Moment) {
        let state = lock(&self.state);
        let mut next = Moment::NEVER;
        let mut silent = Vec::new();
        for (id, entry) in &state.entries {
            match entry.until() {
                until if until <= now => silent.push(*id),
                until => next = next.min(until),
            }
        }
        (silent, next)
    }
}
