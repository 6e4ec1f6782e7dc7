//! What an engine tells people: who holds, who waits, what it promises.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::{CountId, Kind, Mode};
use crate::name::LockName;
use crate::token::{ClaimId, Token};

/// Who holds or waits, for people. Never a command line: it may hold secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct About {
    /// The user, or what the options say.
    pub who: String,
    /// The host's name.
    pub host: String,
    /// The process id on that host.
    pub pid: u32,
    /// What the options say about this lock.
    pub note: String,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} (pid {})", self.who, self.host, self.pid)?;
        match self.note.as_str() {
            "" => Ok(()),
            note => write!(f, ", note: {note}"),
        }
    }
}

/// Somebody who holds a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The claim that holds.
    pub claim: ClaimId,
    /// In which way.
    pub mode: Mode,
    /// Its token, if its mode has one.
    pub token: Option<Token>,
    /// Whom to ask.
    pub about: Arc<About>,
    /// For how long already.
    pub age: Duration,
    /// How long its lease lasts unrenewed.
    pub lease_left: Duration,
    /// Whether it has been revoked and is expected to let go.
    pub revoked: bool,
}

/// Somebody who waits for a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// The claim that waits.
    pub claim: ClaimId,
    /// In which way it wants to hold.
    pub mode: Mode,
    /// Whom to ask.
    pub about: Arc<About>,
    /// For how long already.
    pub age: Duration,
}

/// What an engine knows of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The name.
    pub name: LockName,
    /// What it is used for; `None` if it is not known at all.
    pub kind: Option<Kind>,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits, in order.
    pub waiters: Vec<Waiter>,
    /// The last token granted, if any is remembered.
    pub token: Option<Token>,
    /// How long it stays closed although nobody holds it.
    pub closed_for: Duration,
    /// The number behind a semaphore, latch or fence.
    pub cell: Option<Cell>,
}

impl Status {
    /// The status of a name nobody has used.
    pub fn unused(name: LockName) -> Self {
        Status {
            name,
            kind: None,
            holders: Vec::new(),
            waiters: Vec::new(),
            token: None,
            closed_for: Duration::ZERO,
            cell: None,
        }
    }

    /// Whether there is anything to see: a holder, a waiter, a closed time, a number.
    pub fn is_in_use(&self) -> bool {
        !self.holders.is_empty()
            || !self.waiters.is_empty()
            || !self.closed_for.is_zero()
            || self.cell.is_some()
    }
}

/// Where a listing goes on; opaque to callers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor(pub String);

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The names of this page that are in use, in the order of the listing.
    pub entries: Vec<Status>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<Cursor>,
}

/// A durable number, as an operation left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// There is none.
    Absent,
    /// A latch.
    Latch {
        /// How many count-downs are missing; open at zero.
        remaining: u32,
        /// Who set it: tells this latch from an earlier one of the same name.
        set: CountId,
    },
    /// A semaphore's capacity.
    Capacity(u32),
    /// A fence.
    Fence {
        /// The highest token it has seen.
        highest: Token,
    },
}

/// How far the tokens of an engine can be trusted to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenStrength {
    /// They outlive every restart.
    Durable,
    /// They grow unless data and clock go back together.
    Clocked,
    /// They grow as long as this process lives.
    Process,
}

/// A handful of true facts about an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// What it is: `memory`, `redis`, …
    pub engine: Arc<str>,
    /// Where it is: its URL without secrets. The same label is the same engine.
    pub label: Arc<str>,
    /// Whether claims are granted in the order of their keepers' arrival.
    pub ordered: bool,
    /// Whether waiting is by asking again instead of by push.
    pub polled: bool,
    /// How far its tokens can be trusted to grow.
    pub tokens: TokenStrength,
    /// When it does *not* keep its word, in a sentence; empty if never.
    pub caveat: Arc<str>,
    /// The kinds of names it can do safely; others are refused by name.
    pub kinds: Vec<Kind>,
    /// The shortest lease it can keep.
    pub min_lease: Duration,
    /// Whether a released name stays closed (min-hold) after its keeper's process is gone.
    pub lingers: bool,
}
