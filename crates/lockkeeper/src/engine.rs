//! The seam between what people call and what engines do.
//!
//! An engine answers single questions about single claims and pushes changes
//! up; it never waits for a holder, never retries for long, and knows nothing
//! about guards. Waiting, queues within a keeper, keep-alive, deadlines and
//! clean-up are written once, in the driver above.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::cause::Cause;
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::name::LockName;
pub use crate::status::{
    About, Cell, Cursor, EngineInfo, Holder, Page, Status, TokenStrength, Waiter,
};
use crate::token::{ClaimId, KeeperId, Token};

#[cfg(any(feature = "redis", feature = "mysql", feature = "postgres"))]
mod lines;
#[cfg(all(unix, feature = "local"))]
pub mod local;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod sql;
#[cfg(any(all(unix, feature = "local"), feature = "mysql", feature = "postgres"))]
mod words;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

/// How long a place in a queue lives when its keeper falls silent.
pub const TICKET: Duration = Duration::from_secs(2);
/// How often a keeper says that its places in queues are still wanted.
pub const BEAT: Duration = Duration::from_millis(650);
/// How long an engine remembers a claim that may still have a request under way.
pub const REMEMBER: Duration = Duration::from_secs(60);

/// What a name is used for. A name has one kind; another one is `Invalid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One exclusive holder.
    Mutex,
    /// One writer or many readers.
    ReadWrite,
    /// Permits of a stored capacity.
    Semaphore,
    /// A count that opens at zero.
    Latch,
    /// The highest token a resource has seen.
    Fence,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Mutex => "mutex",
            Kind::ReadWrite => "read/write lock",
            Kind::Semaphore => "semaphore",
            Kind::Latch => "latch",
            Kind::Fence => "fence",
        })
    }
}

/// In which way a claim wants to hold its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The one holder of a mutex.
    Exclusive,
    /// The one writer of a read/write lock.
    Write,
    /// One of many readers.
    Read,
    /// Some of a semaphore's permits.
    Permits {
        /// How many at once.
        count: u32,
        /// The capacity its users agree on.
        of: u32,
    },
}

impl Mode {
    /// The kind of name this mode belongs to.
    pub fn kind(self) -> Kind {
        match self {
            Mode::Exclusive => Kind::Mutex,
            Mode::Write | Mode::Read => Kind::ReadWrite,
            Mode::Permits { .. } => Kind::Semaphore,
        }
    }

    /// Whether a grant in this mode excludes every other, and so carries a token.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Mode::Exclusive | Mode::Write)
    }

    /// Whether a claim in this mode may ask together with one in `other`.
    pub(crate) fn goes_with(self, other: Mode) -> bool {
        !self.is_exclusive() && !other.is_exclusive() && self.kind() == other.kind()
    }
}

/// One wish to hold one name. The unit of identity: every request repeats it.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Minted once, never reused.
    pub id: ClaimId,
    /// What is to be held.
    pub name: LockName,
    /// In which way.
    pub mode: Mode,
    /// How long a grant lives unrenewed.
    pub lease: Duration,
    /// How much earlier the guard ends.
    pub margin: Duration,
    /// How long the name stays closed if this holder fails.
    pub lock_delay: Duration,
    /// How many may wait before this claim is refused a place.
    pub max_waiters: u32,
    /// A write claim of the same keeper that a read claim steps down from.
    pub under: Option<ClaimId>,
    /// Whom to show.
    pub about: Arc<About>,
}

/// What a busy acquire may leave behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Nothing.
    Try,
    /// A wish to be nudged, but no place (a quorum's nodes).
    Watch,
    /// A place in the queue.
    Queue,
}

/// The one answer of acquire, renew and pushes: what a claim is now.
#[derive(Clone, Debug, PartialEq)]
pub enum Standing {
    /// It holds its name.
    Held(Grant),
    /// It has a place in the queue.
    Queued(Place),
    /// It has nothing; others hold or wait.
    Busy,
    /// It is finished, and will never be granted again.
    Gone(Cause),
}

/// A right to the name, and how long it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grant {
    /// Grows with every exclusive grant; readers and permits have none.
    pub token: Option<Token>,
    /// From before the request was sent, minus the margin.
    pub valid_until: Moment,
    /// When the engine wants to hear of it again.
    pub renew_at: Moment,
    /// Claims of one shard are renewed in one batch.
    pub shard: u32,
}

impl Grant {
    /// The grant of a lease engine that was asked at `sent`.
    pub fn leased(claim: &Claim, sent: Moment, token: Option<Token>, shard: u32) -> Self {
        Grant {
            token,
            valid_until: sent + claim.lease - claim.margin,
            renew_at: sent + claim.lease / 3,
            shard,
        }
    }
}

/// A place in the engine's queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// The number of the ticket; a pushed hand-over must name it.
    pub ticket: u64,
    /// How many claims are ahead, where the engine knows.
    pub ahead: Option<u32>,
    /// How long a hand-over to this very ticket could be trusted: from before
    /// the request that was answered, plus the ticket's life, minus the margin.
    pub until: Moment,
    /// When the engine wants to hear of it again.
    pub renew_at: Moment,
    /// Claims of one shard are renewed in one batch.
    pub shard: u32,
}

impl Place {
    /// The place of a ticket engine that was asked at `sent`.
    pub fn ticketed(claim: &Claim, sent: Moment, ticket: u64, ahead: u32, shard: u32) -> Self {
        Place {
            ticket,
            ahead: Some(ahead),
            until: sent + TICKET - claim.margin.min(TICKET / 2),
            renew_at: sent + BEAT,
            shard,
        }
    }
}

/// What a keeper believes of a claim it keeps alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belief {
    /// It waits with this ticket.
    Queued {
        /// The ticket's number.
        ticket: u64,
    },
    /// It holds with this token.
    Held {
        /// The token it was granted, if its mode has one.
        token: Option<Token>,
    },
}

/// One line of a renewal: the claim and what its keeper believes of it.
#[derive(Clone, Debug)]
pub struct Keep {
    /// The claim to keep alive.
    pub claim: Arc<Claim>,
    /// Compared before anything is renewed.
    pub belief: Belief,
    /// If it is held, the name's counter becomes at least this.
    pub floor: Token,
}

/// How a claim is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// How long the name stays closed, ownerless.
    pub linger: Duration,
    /// Whether a request of this claim may still be under way: then the engine
    /// remembers the claim and never grants it again.
    pub unsure: bool,
}

/// What a release or revoke found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A grant, which has ended (or, revoked in order, is ending).
    Held,
    /// A place in the queue, which is given up.
    Queued,
    /// Nothing.
    Nothing,
}

/// How a grant is taken from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Revoke {
    /// It can no longer be renewed; the name passes on when the owner lets go
    /// or its lease ends. Exclusion holds.
    Orderly,
    /// The name is free at once, while the owner may still be at work.
    Now,
}

/// An operation on a durable number that is no claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellOp {
    /// Reads it; `watch` asks for an [`Event::Cell`] at its next change.
    Look {
        /// Which kind of name is expected.
        kind: Kind,
        /// Whether to be told of the next change.
        watch: bool,
    },
    /// Sets a latch to `count`, closed until that many have counted down;
    /// changes nothing while the name has a closed one.
    SetLatch {
        /// How many count-downs open it.
        count: u32,
        /// How long it is kept after its last change.
        keep: Duration,
        /// The id of this setting: the same id sets once.
        by: CountId,
    },
    /// Counts a latch down, once per `by`.
    CountDown {
        /// The id of this count-down.
        by: CountId,
    },
    /// Removes a latch.
    RemoveLatch,
    /// Changes a semaphore's capacity.
    SetCapacity {
        /// The new capacity.
        to: u32,
    },
    /// Shows a token to a fence, which keeps the highest.
    Fence {
        /// The token shown.
        token: Token,
    },
}

impl CellOp {
    /// The kind of name the operation belongs to.
    pub fn kind(&self) -> Kind {
        match self {
            CellOp::Look { kind, .. } => *kind,
            CellOp::SetLatch { .. } | CellOp::CountDown { .. } | CellOp::RemoveLatch => Kind::Latch,
            CellOp::SetCapacity { .. } => Kind::Semaphore,
            CellOp::Fence { .. } => Kind::Fence,
        }
    }
}

/// The id of one change to a latch: the same id counts once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CountId(pub Arc<str>);

/// What an engine pushes up, at any time.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// This is now the standing of a claim.
    Is(ClaimId, Standing),
    /// A release passed the name to this claim's ticket: a short grant, which
    /// the keeper makes a full one by renewing it.
    HandedOver {
        /// The claim that won.
        claim: ClaimId,
        /// The ticket it won with.
        ticket: u64,
        /// The token of the grant, if its mode has one.
        token: Option<Token>,
    },
    /// It is worth asking again for this claim.
    Nudge(ClaimId),
    /// The connection behind a shard went down or came back.
    Link {
        /// Which one.
        shard: u32,
        /// Whether it works.
        up: bool,
    },
    /// A watched latch or other number changed.
    Cell(LockName),
}

/// Where an engine pushes its events.
#[derive(Clone, Debug)]
pub struct Events(mpsc::UnboundedSender<Event>);

impl Events {
    /// Makes the two ends of a keeper's event channel.
    pub fn channel() -> (Events, mpsc::UnboundedReceiver<Event>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Events(sender), receiver)
    }

    /// Pushes an event up. Returns whether anybody can still hear it.
    pub fn push(&self, event: Event) -> bool {
        self.0.send(event).is_ok()
    }
}

/// What a keeper gives an engine that is opened for it.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The keeper the engine works for; the prefix of all its claims.
    pub keeper: KeeperId,
    /// The clock that grants are dated by.
    pub clock: Clock,
    /// Where pushes go.
    pub events: Events,
}

/// Opens an engine on the keeper's own runtime; does no I/O before.
#[async_trait]
pub trait Connect: fmt::Debug + Send + Sync + 'static {
    /// The engine's URL without secrets.
    fn label(&self) -> Arc<str>;

    /// Opens the engine. The keeper bounds how long this may take.
    async fn open(&self, seat: Seat) -> Result<Arc<dyn Engine>>;
}

#[async_trait]
impl<C: Connect + ?Sized> Connect for Arc<C> {
    fn label(&self) -> Arc<str> {
        (**self).label()
    }

    async fn open(&self, seat: Seat) -> Result<Arc<dyn Engine>> {
        (**self).open(seat).await
    }
}

/// Finds the engine behind a URL, to be opened or wrapped.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that makes no sense.
///
/// # Examples
/// ```
/// use lockkeeper::layer::faults::Faults;
///
/// let faulty = Faults::around(lockkeeper::engine::at("memory:")?);
/// # Ok::<(), lockkeeper::Error>(())
/// ```
pub fn at(url: &str) -> Result<Arc<dyn Connect>> {
    crate::url::parse(url)
}

/// A service that grants named locks: the one seam.
///
/// All methods take `&self` and may run at the same time. Each answers once
/// and in bounded time; the driver drops a call that outlives its limit, and
/// treats it as unanswered. A call that failed must say so honestly:
/// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) if nothing was
/// sent, [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) if it may have
/// taken effect.
#[async_trait]
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// Says what the engine is and what it promises.
    fn info(&self) -> EngineInfo;

    /// Asks once for the claim's name and never waits for a holder.
    ///
    /// The same claim again gets the same answer, and keeps what it has. A
    /// token granted now is at least `floor`.
    async fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing>;

    /// Keeps grants and places alive and says what each claim is now.
    ///
    /// Compares the claim's id and its believed token; never re-creates a
    /// grant or a place, and never deletes one. A believed place that turns
    /// out to be granted is confirmed, and answered with the full grant.
    async fn renew(&self, batch: &[Keep]) -> Vec<Result<Standing>>;

    /// Ends whatever the claim has: a grant, a place, or perhaps nothing.
    async fn release(&self, claim: &Claim, how: Release) -> Result<Found>;

    /// Takes a grant from its owner, who is told by push and on its next renewal.
    ///
    /// Compares the victim's claim and token, so a late duplicate can never
    /// hit a later holder. (A reader or permit has no token: there a claim
    /// that its own late duplicate granted anew is hit.)
    async fn revoke(
        &self,
        name: &LockName,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Result<Found>;

    /// Tells who holds and who waits for a name.
    async fn inspect(&self, name: &LockName) -> Result<Status>;

    /// Lists the names in use that start with `prefix`.
    async fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page>;

    /// Works on a durable number that is no claim: latch, capacity, fence.
    async fn cell(&self, name: &LockName, op: CellOp) -> Result<Cell>;

    /// Says good-bye to the engine, at latest by the given moment.
    async fn close(&self, by: Moment) -> Result<()>;
}
