//! Row locks: a lock is an open transaction that has a row locked, on a
//! connection of its own. The database frees it when that connection ends.
//!
//! - `words`, `notes`: the statements;
//! - `open`: opening the engine, and proxies that will not do;
//! - `control`: the one connection beside, for tokens, notes and ending sessions;
//! - `task`, `obtain`: one claim and its session, waiting, holding, letting go;
//! - `alive`: whether grants are broken, or their sessions dead;
//! - `look`: who holds what, and taking it from them;
//! - `gc`: forgetting idle names.
//!
//! The server ends a session that stands still for the length of its lease,
//! counted from the last heartbeat it got; the guard counts from before that
//! heartbeat was sent, and so ends first. Nothing but an answered heartbeat,
//! sent after the row was locked, makes or extends a grant.

mod alive;
mod control;
mod gc;
mod look;
mod notes;
mod obtain;
mod open;
mod task;
mod words;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};

use super::config::Sql;
use super::fault::Fault;
use super::wire::Wire;
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{
    BEAT, Belief, Cell, CellOp, Claim, Cursor, Engine, EngineInfo, Found, Holder, Intent, Keep,
    Page, Place, REMEMBER, Release, Revoke, Seat, Standing, Status, TICKET,
};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::{ClaimId, Token};
use control::Control;
pub(super) use gc::forget_idle;
pub(super) use open::{open, schema};
use task::{Order, Over, Stand, Task};

/// How many sessions that nobody uses are kept for the next claim.
const SPARES: usize = 4;
/// How long they are kept.
const SPARE_TIME: Duration = Duration::from_secs(20);
/// How long a keeper that let go of a name waits in line for it like others,
/// instead of trying first.
const AFTER_YOU: Duration = Duration::from_millis(200);

/// What the engine and the tasks of its claims share.
pub(super) struct Shared {
    sql: Sql,
    seat: Seat,
    info: EngineInfo,
    control: Control,
    desk: Mutex<Desk>,
}

#[derive(Default)]
struct Desk {
    posts: HashMap<ClaimId, Post>,
    /// Claims that are over: why, and since when.
    finished: HashMap<ClaimId, (Cause, Moment)>,
    /// Which shards are in use; a shard is a session.
    shards: Vec<bool>,
    spares: Vec<(Wire, Moment)>,
    /// Names that this keeper let go of just now.
    let_go: HashMap<LockName, Moment>,
}

/// The way to the task of a claim.
#[derive(Clone)]
struct Post {
    /// The claim whose task it is; another one's for whoever stepped down.
    main: ClaimId,
    orders: mpsc::UnboundedSender<Order>,
    stand: watch::Receiver<Stand>,
    session: watch::Receiver<u64>,
    shard: u32,
    /// When the keeper last said that it still waits.
    asked: Moment,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a session that can wait and hold.
    async fn open_session(&self) -> Result<Wire, Fault> {
        let wire = Wire::open(&self.sql).await?;
        wire.ask(self.control.words.prepare(), self.sql.command).await?;
        Ok(wire)
    }

    /// Takes a session that nobody uses.
    fn spare(&self) -> Option<Wire> {
        let mut desk = self.desk();
        while let Some((wire, _)) = desk.spares.pop() {
            if !wire.is_over() {
                return Some(wire);
            }
        }
        None
    }

    /// Keeps a session without a transaction for the next claim.
    fn keep_spare(&self, wire: Wire) {
        let now = self.seat.clock.now();
        let mut desk = self.desk();
        if desk.spares.len() < SPARES.min(self.sql.limit()) && !wire.is_over() {
            desk.spares.push((wire, now));
        }
    }

    /// Who holds by the session of this claim.
    fn owners(&self, main: ClaimId) -> Vec<ClaimId> {
        let desk = self.desk();
        let of_it = desk.posts.iter().filter(|(_, post)| post.main == main);
        of_it.map(|(claim, _)| *claim).collect()
    }

    /// Whether the keeper of a waiting claim has said nothing for too long.
    fn is_forgotten(&self, claim: ClaimId) -> bool {
        let now = self.seat.clock.now();
        self.desk().posts.get(&claim).is_none_or(|post| post.asked + 2 * TICKET < now)
    }

    /// Takes down that the task of a claim is over.
    fn finish(&self, claim: &Claim, shard: u32, over: &Over) {
        let now = self.seat.clock.now();
        let owners = self.owners(claim.id);
        let mut desk = self.desk();
        for owner in owners {
            desk.posts.remove(&owner);
            if let Over::Gone(cause) = over {
                desk.finished.insert(owner, (cause.clone(), now));
            }
        }
        if let Some(used) = desk.shards.get_mut(shard as usize) {
            *used = false;
        }
        desk.let_go.retain(|_, since| *since + AFTER_YOU > now);
        if matches!(over, Over::Released) {
            desk.let_go.insert(claim.name.clone(), now);
        }
    }

    /// Whether this keeper let go of a name just now: those who wait for it in
    /// the server are to have it first.
    fn just_let_go(&self, name: &LockName) -> bool {
        let now = self.seat.clock.now();
        self.desk().let_go.get(name).is_some_and(|since| *since + AFTER_YOU > now)
    }

    /// Finds the task of a claim, or starts it.
    fn post(
        self: &Arc<Self>,
        claim: &Claim,
        intent: Intent,
        floor: Token,
    ) -> Result<Post, Refusal> {
        let now = self.seat.clock.now();
        let mut desk = self.desk();
        desk.finished.retain(|_, (_, since)| *since + REMEMBER > now);
        if let Some((cause, _)) = desk.finished.get(&claim.id) {
            return Err(Refusal::Gone(cause.clone()));
        }
        if let Some(post) = desk.posts.get_mut(&claim.id) {
            post.asked = now;
            return Ok(post.clone());
        }
        if let Some(above) = claim.under {
            return desk.step_down(claim, above).ok_or(Refusal::Gone(Cause::Expired));
        }
        let shard = desk.shard(self.sql.limit()).ok_or_else(|| {
            let text = format!(
                "all {} connections of this keeper are taken by locks that are held or waited \
                 for (connections= in the URL)",
                self.sql.limit()
            );
            Refusal::Failed(Error::new(ErrorKind::TooMany, text))
        })?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let (stand, stands) = watch::channel(Stand::Asking);
        let (session, sessions) = watch::channel(0);
        let post =
            Post { main: claim.id, orders, stand: stands, session: sessions, shard, asked: now };
        desk.posts.insert(claim.id, post.clone());
        let claim = Arc::new(claim.clone());
        let task = Task {
            shared: self.clone(),
            claim,
            intent,
            floor,
            shard,
            orders: inbox,
            stand,
            session,
            stale: false,
            noted: false,
        };
        tokio::spawn(task.run());
        Ok(post)
    }
}

/// Why there is no task.
enum Refusal {
    Gone(Cause),
    Failed(Error),
}

impl Desk {
    /// A shard that is free, up to `limit`.
    fn shard(&mut self, limit: usize) -> Option<u32> {
        let free = self.shards.iter().position(|used| !used);
        let index = match free {
            Some(index) => index,
            None if self.shards.len() < limit => {
                self.shards.push(false);
                self.shards.len() - 1
            }
            None => return None,
        };
        self.shards[index] = true;
        u32::try_from(index).ok()
    }

    /// Lets a reader hold by the session of the write claim it steps down from.
    fn step_down(&mut self, claim: &Claim, above: ClaimId) -> Option<Post> {
        let post = self.posts.get(&above)?.clone();
        let held = matches!(*post.stand.borrow(), Stand::Held(_));
        if !held {
            return None;
        }
        self.posts.insert(claim.id, post.clone());
        Some(post)
    }
}

struct SessionEngine(Arc<Shared>);

impl SessionEngine {
    /// Renews the grant of a claim and says what it is.
    async fn beat(&self, claim: &Claim, post: &Post) -> Result<Standing> {
        let (reply, answer) = oneshot::channel();
        let _ = post.orders.send(Order::Beat(reply));
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Ok(Standing::Gone(self.why_gone(claim.id))),
        }
    }

    fn why_gone(&self, claim: ClaimId) -> Cause {
        let desk = self.0.desk();
        desk.finished.get(&claim).map_or(Cause::Expired, |(cause, _)| cause.clone())
    }

    fn place(&self, claim: &Claim, post: &Post) -> Standing {
        let now = self.0.seat.clock.now();
        Standing::Queued(Place {
            ticket: claim.id.number,
            ahead: None,
            until: now + TICKET,
            renew_at: now + BEAT,
            shard: post.shard,
        })
    }

    async fn keep(&self, keep: &Keep) -> Result<Standing> {
        let claim = &keep.claim;
        let post = {
            let mut desk = self.0.desk();
            let post = desk.posts.get_mut(&claim.id);
            if let Some(post) = post {
                post.asked = self.0.seat.clock.now();
                Some(post.clone())
            } else {
                None
            }
        };
        let Some(post) = post else { return Ok(Standing::Gone(self.why_gone(claim.id))) };
        let stand = post.stand.borrow().clone();
        match stand {
            Stand::Asking | Stand::Waiting => Ok(self.place(claim, &post)),
            Stand::Held(grant) => {
                if let Belief::Held { token } = keep.belief
                    && token != grant.token
                {
                    return Ok(Standing::Gone(Cause::TakenOver));
                }
                self.beat(claim, &post).await
            }
            Stand::Over(_) => Ok(Standing::Gone(self.why_gone(claim.id))),
        }
    }
}

#[async_trait]
impl Engine for SessionEngine {
    fn info(&self) -> EngineInfo {
        self.0.info.clone()
    }

    async fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing> {
        let mut post = match self.0.post(claim, intent, floor) {
            Ok(post) => post,
            Err(Refusal::Gone(cause)) => return Ok(Standing::Gone(cause)),
            Err(Refusal::Failed(error)) => return Err(error),
        };
        // A grant that was there before is renewed, as any other question would.
        let known = matches!(*post.stand.borrow(), Stand::Held(_));
        loop {
            let stand = post.stand.borrow_and_update().clone();
            match stand {
                Stand::Asking => {}
                Stand::Waiting => return Ok(self.place(claim, &post)),
                Stand::Held(grant) if !known => return Ok(Standing::Held(grant)),
                Stand::Held(_) => return self.beat(claim, &post).await,
                Stand::Over(Over::Busy) => return Ok(Standing::Busy),
                Stand::Over(Over::Failed(error)) => return Err(error),
                Stand::Over(Over::Gone(cause)) => return Ok(Standing::Gone(cause)),
                Stand::Over(Over::Released) => return Ok(Standing::Gone(Cause::Expired)),
            }
            if post.stand.changed().await.is_err() {
                return Err(Error::new(ErrorKind::Unknown, "the task of the claim ended"));
            }
        }
    }

    async fn renew(&self, batch: &[Keep]) -> Vec<Result<Standing>> {
        futures_util::future::join_all(batch.iter().map(|keep| self.keep(keep))).await
    }

    async fn release(&self, claim: &Claim, how: Release) -> Result<Found> {
        let shared = &self.0;
        let now = shared.seat.clock.now();
        let (post, lost) = {
            let mut desk = shared.desk();
            let lost = desk.finished.contains_key(&claim.id);
            if how.unsure {
                desk.finished.insert(claim.id, (Cause::Expired, now));
            }
            let post = desk.posts.get(&claim.id).cloned();
            let owners = |main| desk.posts.values().filter(|post| post.main == main).count();
            let shared_with = post.as_ref().map_or(0, |post| owners(post.main));
            if shared_with > 1 {
                desk.posts.remove(&claim.id);
                return Ok(Found::Held);
            }
            (post, lost)
        };
        let Some(post) = post else {
            if lost {
                // Its session is over; whoever let go needs no lock-delay.
                let forget = shared.control.words.forget(&claim.name, claim.id);
                let cleared = tokio::time::timeout(TICKET, shared.control.ask(&forget)).await;
                tracing::debug!(name = %claim.name, ?cleared, "cleared after the loss");
            }
            return Ok(Found::Nothing);
        };
        let (reply, answer) = oneshot::channel();
        let _ = post.orders.send(Order::End(how.linger, reply));
        answer.await.unwrap_or(Ok(Found::Nothing))
    }

    async fn revoke(
        &self,
        name: &LockName,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Result<Found> {
        self.0.revoke(name, victim, how, reason).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status> {
        self.0.inspect(name).await
    }

    async fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page> {
        self.0.list(prefix, from, limit).await
    }

    async fn cell(&self, _name: &LockName, op: CellOp) -> Result<Cell> {
        let text = format!("row locks cannot do a {}; strategy=lease can", op.kind());
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    async fn close(&self, _by: Moment) -> Result<()> {
        let posts: Vec<Post> = self.0.desk().posts.values().cloned().collect();
        for post in posts {
            let (reply, answer) = oneshot::channel();
            let _ = post.orders.send(Order::End(Duration::ZERO, reply));
            let _ = answer.await;
        }
        self.0.desk().spares.clear();
        Ok(())
    }
}

impl fmt::Debug for SessionEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionEngine({})", self.0.info.label)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({})", self.info.label)
    }
}
