//! What is explored: who wants what, by which rules, within which bounds.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::engine::{About, Claim, Intent, Mode, TICKET};
use lockkeeper::model::Time;
use lockkeeper::{ClaimId, KeeperId, LockName};

use super::law::{Breach, Law};
use super::machine::{Honest, Machine};

/// How long a ticket lives, in seconds: the step of time in a world.
pub(super) const TICKET_SECS: u64 = TICKET.as_secs();

/// The model's time at a world's second.
pub(super) fn at(second: u64) -> Time {
    Time::default() + Duration::from_secs(second)
}

/// One thing a client may want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// In which way it wants to hold.
    pub mode: Mode,
    /// What a busy acquire may leave behind.
    pub intent: Intent,
    /// Seconds the name stays closed if it fails as a holder.
    pub lock_delay: u64,
    /// Seconds the name stays closed after its release.
    pub linger: u64,
    /// The lowest token it accepts.
    pub floor: u64,
}

impl Wish {
    /// A wish to wait in line.
    pub const fn queue(mode: Mode) -> Self {
        Wish { mode, intent: Intent::Queue, lock_delay: 0, linger: 0, floor: 0 }
    }

    /// A wish to hold at once or not at all.
    pub const fn attempt(mode: Mode) -> Self {
        Wish { intent: Intent::Try, ..Wish::queue(mode) }
    }
}

/// From when a client counts the validity of a pushed hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// From the sending of the latest request answered "queued": the design.
    Answered,
    /// From the arrival of the push: wrong.
    Arrival,
    /// From the sending of the latest request, answered or not: wrong.
    Sent,
}

/// What a client does with what it hears.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// From when a pushed hand-over is valid.
    pub validity: Validity,
    /// Whether a push must name the ticket of the last "queued" answer.
    pub match_ticket: bool,
    /// Whether a step down counts only with the token of the write it is from.
    pub match_write: bool,
    /// Whether a release with an unanswered request behind it says so.
    pub unsure: bool,
}

impl Rules {
    /// The rules of the design.
    pub const HONEST: Rules =
        Rules { validity: Validity::Answered, match_ticket: true, match_write: true, unsure: true };
}

/// What keeps the world finite.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many claims each client may mint.
    pub turns: u32,
    /// How many acquires may be sent again, over all clients.
    pub resends: u8,
    /// How many grants may be revoked.
    pub revokes: u8,
    /// How many messages may be under way before nobody sends any more.
    pub flight: usize,
    /// How many renewals of one claim may be under way.
    pub renews: usize,
    /// After how many seconds a message is lost for good.
    pub age: u64,
    /// How many may wait.
    pub waiters: u32,
}

/// A whole configuration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What the server does.
    pub machine: &'static dyn Machine,
    /// What the clients do.
    pub rules: Rules,
    /// What each client may want.
    pub wishes: Vec<Vec<Wish>>,
    /// Seconds a grant lives unrenewed.
    pub lease: u64,
    /// Whether writers step down to readers.
    pub downgrade: bool,
    /// Whether the server also settles on its own, by a timer.
    pub timer: bool,
    /// What keeps it finite.
    pub limits: Limits,
    /// From one in how many states the future is looked at (no stuck ticket,
    /// nothing left behind), which costs as much as some thirty steps.
    pub sample: u64,
    /// The one law to look at; all of them if `None`.
    pub only: Option<Law>,
    about: Arc<About>,
    name: LockName,
}

impl Setup {
    /// An honest world whose clients want what is listed for each.
    pub fn new(wishes: Vec<Vec<Wish>>) -> Self {
        Setup {
            machine: &Honest,
            rules: Rules::HONEST,
            wishes,
            lease: 3,
            downgrade: false,
            timer: false,
            limits: Limits {
                turns: 1,
                resends: 1,
                revokes: 0,
                flight: 4,
                renews: 1,
                age: 3,
                waiters: 100,
            },
            sample: 64,
            only: None,
            about: Arc::default(),
            name: LockName::new("n").expect("a plain name"),
        }
    }

    /// The same world on another server.
    pub fn on(mut self, machine: &'static dyn Machine) -> Self {
        self.machine = machine;
        self
    }

    /// The same world with clients of other rules.
    pub fn by(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// The same world, looked at for one law only.
    pub fn only(mut self, law: Law) -> Self {
        self.only = Some(law);
        self
    }

    /// The id of a client's claim: `number` says whose it is.
    pub(super) fn id(client: usize, turn: u32) -> ClaimId {
        let keeper = KeeperId::from_number(client as u128 + 1);
        ClaimId { keeper, number: client as u64, turn }
    }

    /// The claim as a request carries it.
    pub(super) fn claim(&self, id: ClaimId, wish: &Wish, under: Option<ClaimId>) -> Claim {
        Claim {
            id,
            name: self.name.clone(),
            mode: wish.mode,
            lease: Duration::from_secs(self.lease),
            // No margin and no drift: beliefs end at the last honest instant,
            // where a mistake of one microsecond shows.
            margin: Duration::ZERO,
            lock_delay: Duration::from_secs(wish.lock_delay),
            max_waiters: self.limits.waiters,
            under,
            about: self.about.clone(),
        }
    }

    /// Demands that a law holds here.
    pub(super) fn demand(
        &self,
        law: Law,
        holds: bool,
        why: impl FnOnce() -> String,
    ) -> Result<(), Breach> {
        if holds || self.only.is_some_and(|only| only != law) {
            return Ok(());
        }
        Err(Breach { law, why: why() })
    }
}
