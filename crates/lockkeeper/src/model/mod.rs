//! What acquire, renew, release, expire and break *mean*.
//!
//! A pure state machine for one name: no I/O, and time is passed in. Record
//! engines run it as it is; native engines (scripts, recipes) are checked
//! against it operation by operation.
//!
//! Every step first settles what time has done (leases over, tickets dead,
//! the queue served), then does its own work, and tells in [`Effects`] which
//! rows it touched and whom to push to.

mod claims;
mod latch;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{
    About, Cell, CellOp, Claim, CountId, Event, Grant, Kind, Mode, Place, Standing, Status,
};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::name::LockName;
use crate::token::{ClaimId, Token};

/// An instant on the engine's own clock, in microseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Time(pub u64);

impl Time {
    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Durations beyond half a million years saturate.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, span: Duration) -> Time {
        Time(self.0.saturating_add(micros(span)))
    }
}

/// A name's whole state: what a record engine stores.
///
/// The fields are public because engines map them to rows; only this module
/// changes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// What the name is used for; `None` until its first use.
    pub kind: Option<Kind>,
    /// A semaphore's capacity.
    pub capacity: u32,
    /// The last token granted.
    pub counter: Token,
    /// The last ticket given out.
    pub last_ticket: u64,
    /// Who holds, ordered by claim.
    pub holders: Vec<Held>,
    /// Who waits, ordered by ticket.
    pub queue: VecDeque<Ticket>,
    /// Who wants a nudge without having a place, in order.
    pub watchers: VecDeque<Watcher>,
    /// Claims that are over but may still have requests under way.
    pub finished: Vec<Finished>,
    /// Nobody is granted anything before this.
    pub closed_until: Time,
    /// A latch's state.
    pub latch: Option<Latch>,
    /// A fence's highest token.
    pub fence: Option<Token>,
    /// When it was last used.
    pub used: Time,
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Held {
    /// Whose grant it is.
    pub claim: ClaimId,
    /// In which way it holds.
    pub mode: Mode,
    /// The token, if the mode has one.
    pub token: Option<Token>,
    /// When the lease is over.
    pub until: Time,
    /// When it was granted.
    pub since: Time,
    /// How long the name stays closed if this holder fails.
    pub lock_delay: Duration,
    /// Why it may not be renewed any more.
    pub revoked: Option<Arc<str>>,
    /// Whom to show.
    pub about: Arc<About>,
}

/// A place in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// Its number: the order of arrival.
    pub number: u64,
    /// Whose place it is.
    pub claim: ClaimId,
    /// In which way it wants to hold.
    pub mode: Mode,
    /// When it is dead unless refreshed.
    pub until: Time,
    /// When it was given out.
    pub since: Time,
    /// How long the name stays closed if this claim fails as a holder.
    pub lock_delay: Duration,
    /// Whom to show.
    pub about: Arc<About>,
}

/// A wish to be nudged when the name is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Watcher {
    /// Whose wish it is.
    pub claim: ClaimId,
    /// When it is dead unless refreshed.
    pub until: Time,
}

/// A claim that is never granted again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Finished {
    /// Which one.
    pub claim: ClaimId,
    /// When no request of it can be under way any more.
    pub until: Time,
    /// What to answer it.
    pub cause: Cause,
}

/// A count that opens at zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Latch {
    /// How many count-downs are missing.
    pub remaining: u32,
    /// Who has counted down, in order.
    pub counted: Vec<CountId>,
    /// Who set it.
    pub set: CountId,
    /// How long it is kept after its last change.
    pub keep: Duration,
    /// When it is forgotten.
    pub until: Time,
}

/// A row that a step touched: written anew if it is still in the record, else deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// The name's own row: kind, capacity, counter, last ticket, closed until, latch, fence.
    Name,
    /// The grant of this claim.
    Holder(ClaimId),
    /// The ticket of this claim.
    Ticket(ClaimId),
    /// The watch of this claim.
    Watcher(ClaimId),
    /// The memory of this claim.
    Finished(ClaimId),
}

/// What a step did beside answering. Cleared and used again by the caller.
#[derive(Debug, Default)]
pub struct Effects {
    /// The rows it touched; a row may appear twice.
    pub rows: Vec<Row>,
    /// What to push, and to whom: the keeper of the claim named.
    pub pushes: Vec<Event>,
    /// Whether a latch or another number changed, so that its watchers are told.
    pub cell_changed: bool,
}

impl Effects {
    /// Forgets everything, keeping the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.pushes.clear();
        self.cell_changed = false;
    }
}

/// What a claim is now, on the engine's clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It holds.
    Held {
        /// Its token, if its mode has one.
        token: Option<Token>,
    },
    /// It waits.
    Queued {
        /// Its ticket.
        ticket: u64,
        /// How many tickets are ahead.
        ahead: u32,
        /// When it would be worth asking again even without a push: the end
        /// of a lease or of a closed time that this claim is first in line for.
        look_at: Option<Time>,
    },
    /// It has nothing.
    Busy,
    /// It is finished.
    Gone(Cause),
}

impl Answer {
    /// What it means on the keeper's clock, for a claim that was asked about
    /// at `sent` and answered at `now`.
    pub fn standing(self, claim: &Claim, sent: Moment, now: Time, shard: u32) -> Standing {
        match self {
            Answer::Held { token } => Standing::Held(Grant::leased(claim, sent, token, shard)),
            Answer::Queued { ticket, ahead, look_at } => {
                let mut place = Place::ticketed(claim, sent, ticket, ahead, shard);
                if let Some(look_at) = look_at {
                    let soon = look_at.since(now).max(Duration::from_millis(1));
                    place.renew_at = place.renew_at.min(sent + soon);
                }
                Standing::Queued(place)
            }
            Answer::Busy => Standing::Busy,
            Answer::Gone(cause) => Standing::Gone(cause),
        }
    }
}

/// Why a step was refused, with nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The name has another kind.
    WrongKind {
        /// The kind it has.
        stored: Kind,
    },
    /// The semaphore has another capacity.
    WrongCapacity {
        /// The capacity it has.
        stored: u32,
    },
    /// More permits than there are.
    TooLarge {
        /// The semaphore's capacity.
        capacity: u32,
    },
    /// The queue is full.
    QueueFull {
        /// How many may wait.
        limit: u32,
    },
    /// The claim to step down from does not hold.
    NotHeldAbove,
    /// The token counter has reached its end.
    NoTokensLeft,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::WrongKind { stored } => {
                write!(f, "the name is in use as a {stored}; use another name for another kind")
            }
            Refusal::WrongCapacity { stored } => write!(
                f,
                "the semaphore has a capacity of {stored}; ask for that, or change it explicitly"
            ),
            Refusal::TooLarge { capacity } => {
                write!(
                    f,
                    "more permits than the capacity of {capacity}; they could never be granted"
                )
            }
            Refusal::QueueFull { limit } => {
                write!(f, "{limit} are waiting already, which is the limit (max_waiters)")
            }
            Refusal::NotHeldAbove => f.write_str("the write lock to step down from is not held"),
            Refusal::NoTokensLeft => f.write_str("the name has used up its tokens"),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal {
            Refusal::QueueFull { .. } => Error::new(ErrorKind::TooMany, refusal.to_string()),
            Refusal::NotHeldAbove => Error::lost(Cause::Expired),
            Refusal::NoTokensLeft => Error::new(ErrorKind::Unsupported, refusal.to_string()),
            _ => invalid(refusal.to_string()),
        }
    }
}

impl Record {
    /// How long an idle name is remembered at least: its kind, capacity and counter.
    pub const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

    /// Whether the name can be forgotten, once the caller has made sure that
    /// its next token is above [`counter`](Self::counter).
    pub fn is_forgettable(&self, now: Time) -> bool {
        self.fence.is_none() && self.is_idle(now) && now.since(self.used) >= Self::RETENTION
    }

    /// Whether nobody holds, waits or is remembered, and no latch is kept.
    pub fn is_idle(&self, now: Time) -> bool {
        // A lock-delay counts from the end of the lease, noticed or not.
        self.holders.iter().all(|held| held.until + held.lock_delay <= now)
            && self.queue.iter().all(|ticket| ticket.until <= now)
            && self.finished.iter().all(|finished| finished.until <= now)
            && self.closed_until <= now
            && self.latch.as_ref().is_none_or(|latch| latch.until <= now)
    }

    /// Works on the numbers that are no claims.
    pub fn cell(&mut self, op: &CellOp, now: Time, effects: &mut Effects) -> Result<Cell, Refusal> {
        self.settle(now, effects);
        let absent = match op.kind() {
            Kind::Latch => self.latch.is_none(),
            Kind::Semaphore => self.kind.is_none(),
            _ => self.fence.is_none(),
        };
        let reads =
            matches!(op, CellOp::Look { .. } | CellOp::RemoveLatch | CellOp::CountDown { .. });
        if absent && reads {
            // Looking at nothing must not settle what the name is for.
            self.check_kind(op.kind())?;
            return Ok(Cell::Absent);
        }
        self.use_as(op.kind(), now, effects)?;
        match op {
            CellOp::Look { .. } => {}
            CellOp::SetLatch { count, keep, by } => self.set_latch(*count, *keep, by, now, effects),
            CellOp::CountDown { by } => self.count_down(by, now, effects),
            CellOp::RemoveLatch => self.remove_latch(effects),
            CellOp::SetCapacity { to } => self.set_capacity(*to, now, effects),
            CellOp::Fence { token } => self.show(*token, effects),
        }
        Ok(self.number(op.kind()))
    }

    /// Tells who holds and who waits; settles nothing, but shows no dead ones.
    pub fn status(&self, name: LockName, now: Time) -> Status {
        let mut status = Status::unused(name);
        // A latch that is over is none, and the name free for anything.
        let over = self.latch.as_ref().is_some_and(|latch| latch.until <= now);
        status.kind = self.kind.filter(|_| !over);
        status.holders = self.live_holders(now).collect();
        status.waiters = self.live_waiters(now).collect();
        status.token = (self.counter > Token::ZERO).then_some(self.counter);
        status.closed_for = self.closed_until.since(now);
        status.cell = status.kind.and_then(|kind| match self.number(kind) {
            Cell::Absent => None,
            cell => Some(cell),
        });
        status
    }

    /// Writes the record in a few bytes, led by a version.
    pub fn encode(&self) -> Result<Vec<u8>> {
        postcard::to_extend(self, vec![Self::VERSION]).map_err(|error| {
            Error::new(ErrorKind::Unexpected, "a record could not be written").because(error)
        })
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for bytes of another version or another program.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        match bytes.split_first() {
            Some((&Self::VERSION, body)) => postcard::from_bytes(body)
                .map_err(|error| invalid("the stored record is damaged").because(error)),
            Some((version, _)) => Err(invalid(format!(
                "the stored record has version {version}, this program knows {}",
                Self::VERSION
            ))),
            None => Err(invalid("the stored record is empty")),
        }
    }

    const VERSION: u8 = 1;

    fn check_kind(&self, kind: Kind) -> Result<(), Refusal> {
        match self.kind {
            Some(stored) if stored != kind => Err(Refusal::WrongKind { stored }),
            _ => Ok(()),
        }
    }

    /// Marks the name as used for `kind`, if it is not used for another.
    fn use_as(&mut self, kind: Kind, now: Time, effects: &mut Effects) -> Result<(), Refusal> {
        self.check_kind(kind)?;
        if self.kind.is_none() {
            self.kind = Some(kind);
            effects.rows.push(Row::Name);
        }
        self.used = self.used.max(now);
        Ok(())
    }

    fn number(&self, kind: Kind) -> Cell {
        match kind {
            Kind::Latch => self
                .latch
                .as_ref()
                .map(|latch| Cell::Latch { remaining: latch.remaining, set: latch.set.clone() }),
            Kind::Semaphore => Some(Cell::Capacity(self.capacity)),
            Kind::Fence => self.fence.map(|highest| Cell::Fence { highest }),
            Kind::Mutex | Kind::ReadWrite => None,
        }
        .unwrap_or(Cell::Absent)
    }

    /// Keeps the highest token shown.
    fn show(&mut self, token: Token, effects: &mut Effects) {
        if self.fence.is_none_or(|highest| token > highest) {
            self.fence = Some(token);
            effects.rows.push(Row::Name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{About, Claim, Intent, Mode};
    use crate::token::KeeperId;

    const MINUTE: Duration = Duration::from_secs(60);

    fn claim(number: u64, mode: Mode) -> Claim {
        Claim {
            id: ClaimId { keeper: KeeperId::from_number(1), number, turn: 0 },
            name: crate::LockName::new("x").unwrap(),
            mode,
            lease: MINUTE,
            margin: Duration::ZERO,
            lock_delay: Duration::ZERO,
            max_waiters: 1,
            under: None,
            about: Arc::new(About::default()),
        }
    }

    fn granted(record: &mut Record, claim: &Claim, now: Time) {
        let answer = record.acquire(claim, Intent::Try, Token::ZERO, now, &mut Effects::default());
        assert!(matches!(answer, Ok(Answer::Held { .. })), "{answer:?}");
    }

    #[test]
    fn a_name_is_not_forgotten_while_a_lock_delay_is_to_come() {
        let (mut record, start) = (Record::default(), Time(1));
        granted(&mut record, &Claim { lock_delay: MINUTE * 10, ..claim(1, Mode::Read) }, start);
        // Kept alive for so long that nobody has used the name for a day.
        let end = start + Record::RETENTION * 2;
        record.holders[0].until = end;
        assert!(!record.is_forgettable(end + MINUTE), "its lock-delay was forgotten");
        assert!(record.is_forgettable(end + MINUTE * 10));
    }

    #[test]
    fn stepping_down_is_a_use_of_the_name() {
        let (mut record, start) = (Record::default(), Time(1));
        let lease = Record::RETENTION * 2;
        let write = Claim { lease, ..claim(1, Mode::Write) };
        granted(&mut record, &write, start);
        // A reader that is granted, and then falls silent like its writer.
        let late = start + (lease - MINUTE);
        granted(&mut record, &Claim { under: Some(write.id), ..claim(2, Mode::Read) }, late);
        assert!(!record.is_forgettable(late + (Record::RETENTION - MINUTE)), "used a day ago");
        assert!(record.is_forgettable(late + Record::RETENTION));
    }
}
