//! The laws, and what the checker must remember to judge by them.

use std::fmt;

use lockkeeper::model::{Held, Record, Ticket, Time};
use lockkeeper::{ClaimId, Token};

use super::rows::Others;
use super::world::{Client, Message};

/// What must be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Law {
    /// No two believe to hold in conflicting modes; nor does the record say so.
    Exclusion,
    /// No more permits are granted or believed in than there are.
    Permits,
    /// Whoever believes has a live grant at least as long, and no step shortens one.
    Belief,
    /// Earlier live tickets are granted first, and keep their places.
    Fifo,
    /// A failed attempt leaves nothing behind.
    Attempt,
    /// Every exclusive grant has a higher token; asking again keeps it.
    Token,
    /// A grant is one interval: what has ended never comes back.
    Revival,
    /// Grants and tickets are made by acquire and by the queue, by nothing else.
    Creation,
    /// Only its owner or a break that names it ends a live grant.
    Owner,
    /// A claim that was released is never granted or queued again.
    Finished,
    /// Nobody is granted a name that is closed.
    Closed,
    /// An answer says what the record says.
    Answer,
    /// Nobody waits for what is free, and whoever wins or loses is told.
    Wake,
    /// A step tells every row it changed.
    Rows,
    /// Whoever keeps waiting while all others are silent is granted in bounded time.
    Stuck,
    /// Whoever lets go leaves nothing; when all have, nothing stays.
    Leftover,
}

/// A law that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Which one.
    pub law: Law,
    /// What happened.
    pub why: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.law, self.why)
    }
}

/// What only the checker knows of the past.
#[derive(Clone, Debug, Default)]
pub struct Ghost {
    /// The highest token ever granted.
    pub highest: Token,
    /// Until when the name must stay closed.
    pub closed: Time,
    /// The largest capacity there ever was.
    pub capacity: u32,
    /// Claims whose release the server has seen while more of them is under way.
    pub released: Vec<ClaimId>,
    /// Claims taken by a break that does not wait, whose owners may not know yet.
    pub exempt: Vec<ClaimId>,
}

impl Ghost {
    /// Forgets what can make no difference any more.
    pub(super) fn prune(&mut self, clients: &[Client], flight: &[Message]) {
        self.released.retain(|claim| {
            flight.iter().any(|message| message.claim == *claim && message.body.is_request())
        });
        self.exempt.retain(|claim| {
            clients[claim.number as usize].hands().any(|hand| hand.claim == *claim)
        });
    }
}

/// A record before a step.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub(super) holders: Vec<Held>,
    pub(super) queue: Vec<Ticket>,
    pub(super) others: Others,
    pub(super) capacity: u32,
}

impl Snapshot {
    pub(super) fn take(&mut self, record: &Record) {
        self.holders.clone_from(&record.holders);
        self.capacity = record.capacity;
        self.others.take(record);
        self.queue.clear();
        self.queue.extend(record.queue.iter().cloned());
    }

    pub(super) fn holder(&self, claim: ClaimId, now: Time) -> Option<&Held> {
        self.holders.iter().find(|held| held.claim == claim && held.until > now)
    }

    pub(super) fn ticket(&self, claim: ClaimId, now: Time) -> Option<&Ticket> {
        self.queue.iter().find(|ticket| ticket.claim == claim && ticket.until > now)
    }
}
