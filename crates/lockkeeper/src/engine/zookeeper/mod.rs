//! ZooKeeper: the recipes of Apache Curator, node by node, so that programs
//! that use it and ours exclude each other.
//!
//! - `config`, `connect`: where the ensemble is, and a session with it;
//! - `session`: requests, each with a limit; `pulse`: until when it is alive;
//! - `layout`, `note`: which node stands for what, and what it says;
//! - `mine`: what this keeper has; `sweep`: taking away what it no longer wants;
//! - `queue`: mutex and read/write lock; `permits`: semaphore;
//! - `keep`: renewals; `end`: release and break; `delay`: after a failed holder;
//! - `look`: who holds and waits; `cells`: latch, fence, capacity;
//! - `fault`: what errors mean.

mod bare;
mod cells;
mod config;
mod connect;
mod delay;
mod end;
mod fault;
mod keep;
mod layout;
mod look;
mod mine;
mod note;
mod permits;
mod pulse;
mod queue;
mod session;
mod sweep;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use zookeeper_client::SessionState;

pub use config::{ZooKeeper, ZooKeeperAcl};

use super::{
    Cell, CellOp, Claim, Cursor, Engine, EngineInfo, Event, Found, Grant, Holder, Intent, Keep,
    Kind, Mode, Page, Place, Release, Revoke, Seat, Standing, Status, TICKET, TokenStrength,
};
use crate::cause::Cause;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::{ClaimId, Token};
use mine::{Known, Mine, Spot};
use session::{Session, lock};

const CAVEAT: &str = "programs that use Curator trust a cut-off member for longer than we do; \
                      restoring or replacing the ensemble's data sets tokens back";

/// So many sessions that there will be no other.
const CLOSED: u32 = u32::MAX;

/// The engine of one keeper on one ensemble.
pub(super) struct ZooKeeperEngine(Arc<Inner>);

struct Inner {
    zookeeper: ZooKeeper,
    info: EngineInfo,
    seat: Seat,
    mine: Mine,
    current: std::sync::Mutex<Option<Arc<Session>>>,
    /// How many there have been; held while another one is opened.
    sessions: tokio::sync::Mutex<u32>,
}

impl ZooKeeperEngine {
    pub(super) async fn open(
        zookeeper: ZooKeeper,
        label: Arc<str>,
        seat: Seat,
    ) -> Result<ZooKeeperEngine> {
        let first = Session::open(&zookeeper, 0, seat.keeper, &seat.clock).await?;
        let info = EngineInfo {
            engine: "zookeeper".into(),
            label,
            ordered: true,
            polled: false,
            tokens: TokenStrength::Durable,
            caveat: CAVEAT.into(),
            kinds: vec![Kind::Mutex, Kind::ReadWrite, Kind::Semaphore, Kind::Latch, Kind::Fence],
            min_lease: first.timeout,
            lingers: false,
        };
        let inner = Arc::new(Inner {
            zookeeper,
            info,
            seat,
            mine: Mine::default(),
            current: std::sync::Mutex::new(None),
            sessions: tokio::sync::Mutex::new(1),
        });
        inner.adopt(Arc::new(first));
        tokio::spawn(sweep::sweep_on(Arc::downgrade(&inner)));
        Ok(ZooKeeperEngine(inner))
    }
}

impl Inner {
    fn now(&self) -> Moment {
        self.seat.clock.now()
    }

    /// Works with a session from now on.
    fn adopt(self: &Arc<Self>, session: Arc<Session>) {
        *lock(&self.current) = Some(session.clone());
        tokio::spawn(session.clone().beat_on());
        let inner = Arc::downgrade(self);
        tokio::spawn(async move {
            let Some(mut states) = session.watch_state() else { return };
            let shard = session.generation;
            loop {
                let state = states.changed().await;
                let Some(inner) = inner.upgrade() else { return };
                match state {
                    SessionState::Disconnected => {
                        inner.seat.events.push(Event::Link { shard, up: false });
                    }
                    SessionState::SyncConnected => {
                        session.connected_anew();
                        inner.seat.events.push(Event::Link { shard, up: true });
                    }
                    state if state.is_terminated() => return inner.session_over(&session),
                    _ => {}
                }
            }
        });
    }

    /// Ends everything a session had.
    fn session_over(&self, session: &Session) {
        tracing::warn!(engine = %self.info.label, session = session.generation, "session over");
        session.close();
        for id in self.mine.of_session(session.generation) {
            self.gone(id, Cause::Expired);
        }
    }

    /// The session to work with; a new one if the last is over.
    async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        let current = || lock(&self.current).clone().filter(|session| !session.is_over());
        if let Some(session) = current() {
            return Ok(session);
        }
        let mut count = self.sessions.lock().await;
        if let Some(session) = current() {
            return Ok(session);
        }
        if *count == CLOSED {
            return Err(Error::new(ErrorKind::Unreachable, "the engine is closed"));
        }
        let seat = &self.seat;
        let session = Session::open(&self.zookeeper, *count, seat.keeper, &seat.clock).await?;
        *count += 1;
        let session = Arc::new(session);
        self.adopt(session.clone());
        Ok(session)
    }

    /// Finishes a claim and tells its keeper.
    fn gone(&self, id: ClaimId, cause: Cause) {
        if self.mine.finish(id, cause.clone(), self.now()).is_some() {
            self.seat.events.push(Event::Is(id, Standing::Gone(cause)));
        }
    }

    /// A grant of a claim, if the leader has answered what was sent then.
    fn grant(
        &self,
        claim: &Claim,
        session: &Session,
        sent: Moment,
        token: Option<Token>,
        first: bool,
    ) -> Standing {
        let lease = sent + claim.lease - claim.margin;
        // Soon after the grant its node is looked at, and watched from then
        // on; a lock that is held for a moment only is spared that.
        let pause = if first { session.beat().min(TICKET / 8) } else { session.beat() };
        Standing::Held(Grant {
            token,
            valid_until: lease.min(session.trusted(sent)),
            renew_at: sent + pause,
            shard: session.generation,
        })
    }

    /// A place of a claim, if the leader has answered what was sent then.
    fn place(&self, claim: &Claim, session: &Session, sent: Moment, spot: (u64, u32)) -> Standing {
        let (ticket, ahead) = spot;
        let mut place = Place::ticketed(claim, sent, ticket, ahead, session.generation);
        place.until = place.until.min(session.trusted(sent));
        place.renew_at = place.renew_at.min(sent + session.beat());
        Standing::Queued(place)
    }

    /// What a claim that is settled is now; everything the ensemble had to say
    /// about it is known, and the leader has answered what was sent then.
    fn standing(&self, id: ClaimId, sent: Moment) -> Standing {
        let standing = self.mine.with(id, |entry| {
            let (claim, session) = (&entry.claim, &entry.session);
            match &entry.spot {
                Spot::Held { .. } if entry.revoked.is_some() => {
                    let reason = entry.revoked.clone().unwrap_or_default();
                    Standing::Gone(Cause::Broken { reason })
                }
                Spot::Held { token, .. } => {
                    let (token, unwatched) = (*token, entry.bell.is_none());
                    entry.unconfirmed = None;
                    self.grant(claim, session, sent, token, unwatched)
                }
                Spot::Queued { node, ahead } => {
                    self.place(claim, session, sent, (Spot::ticket(node), *ahead))
                }
                Spot::Asking => Standing::Gone(Cause::Expired),
            }
        });
        let gone = || Standing::Gone(self.mine.cause(id).unwrap_or(Cause::Expired));
        standing.unwrap_or_else(gone)
    }
}

#[async_trait]
impl Engine for ZooKeeperEngine {
    fn info(&self) -> EngineInfo {
        self.0.info.clone()
    }

    async fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing> {
        let inner = &self.0;
        let session = inner.session().await?;
        let sent = inner.now();
        let known = match inner.mine.begin(claim, &session, sent) {
            Known::Finished(cause) => return Ok(Standing::Gone(cause)),
            Known::Settled => {
                let keep = inner.keep_one(claim.id, &session, sent);
                return keep.await;
            }
            known => known,
        };
        let fresh = matches!(known, Known::Fresh);
        let answer = match claim.mode {
            Mode::Permits { .. } => inner.take_permits(&session, claim, intent, fresh).await,
            _ if claim.under.is_some() => inner.step_down(&session, claim).await,
            _ => inner.enter(&session, claim, intent, fresh).await,
        };
        let answer = answer.map_err(Error::from);
        match &answer {
            Ok(Standing::Held(Grant { token: Some(token), .. })) if *token < floor => {
                inner.give_up(claim.id).await;
                let text = "the ensemble's tokens cannot be raised";
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            // Refused: its nodes have been taken away again.
            Ok(Standing::Busy) => drop(inner.mine.take(claim.id)),
            Err(error) if !error.is_silence() => match inner.mine.is_asking(claim.id) {
                true if fresh => drop(inner.mine.take(claim.id)),
                // Made, or perhaps made, before it was refused.
                _ => inner.give_up(claim.id).await,
            },
            _ => {}
        }
        answer
    }

    async fn renew(&self, batch: &[Keep]) -> Vec<Result<Standing>> {
        self.0.keep(batch).await
    }

    async fn release(&self, claim: &Claim, how: Release) -> Result<Found> {
        self.0.release(claim, how).await
    }

    async fn revoke(
        &self,
        name: &LockName,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Result<Found> {
        let session = self.0.session().await?;
        Ok(self.0.revoke(&session, name, victim, how, reason).await?)
    }

    async fn inspect(&self, name: &LockName) -> Result<Status> {
        let session = self.0.session().await?;
        Ok(look::status(&session, name).await?)
    }

    async fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page> {
        let session = self.0.session().await?;
        Ok(look::list(&session, prefix, from, limit).await?)
    }

    async fn cell(&self, name: &LockName, op: CellOp) -> Result<Cell> {
        let session = self.0.session().await?;
        cells::work(&session, &self.0.seat.events, name, op).await
    }

    async fn close(&self, by: Moment) -> Result<()> {
        *self.0.sessions.lock().await = CLOSED;
        let session = lock(&self.0.current).take();
        self.0.mine.arrival.notify_one();
        let Some(mut states) = session.and_then(|session| session.close()) else { return Ok(()) };
        let closed = async {
            while !states.state().is_terminated() {
                states.changed().await;
            }
        };
        let limit = by.since(self.0.now());
        tokio::time::timeout(limit, closed).await.map_err(|_| {
            let text = "the session could not be closed in time; it ends by itself";
            Error::new(ErrorKind::Unknown, text)
        })
    }
}

impl fmt::Debug for ZooKeeperEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ZooKeeperEngine").field(&self.0.info.label).finish()
    }
}
