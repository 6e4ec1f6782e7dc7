//! The embedded engine: several processes of one host, no server.
//!
//! SQLite holds the records of the model as rows; a locked file per keeper
//! proves it alive; a datagram wakes exactly the next one.
//!
//! - `config`, `place`: which directory, and whether to trust it;
//! - `store`: the thread that talks to SQLite, one transaction for many requests;
//! - `desk`: what happens inside a transaction; `rows`, `schema`: how it is stored;
//! - `live`: proof of life; `watch`: noticing a death; `wake`: datagrams.

mod config;
mod desk;
mod failure;
mod live;
mod place;
mod rows;
mod schema;
mod store;
mod wake;
mod watch;

use std::sync::Arc;

use async_trait::async_trait;

use super::{
    Cell, CellOp, Claim, Cursor, Engine, EngineInfo, Found, Holder, Intent, Keep, Kind, Page,
    Release, Revoke, Seat, Standing, Status, TokenStrength,
};
use crate::clock::Moment;
use crate::error::Result;
use crate::model::{Answer, Refusal};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::token::Token;

pub use config::Local;
use config::Settings;
use desk::Asked;
use rows::Queue;
use store::{Access, Store};
use wake::Mailbox;
use watch::Watch;

const CAVEAT: &str = "locks reach the processes of one host only, and anybody who may write to \
                      the directory can break them; deleting it while locks are held ends them \
                      unnoticed until their leases are over";

/// The engine of one keeper in one directory.
#[derive(Debug)]
pub(super) struct LocalEngine {
    label: Arc<str>,
    seat: Seat,
    store: Store,
    watch: Watch,
    _mailbox: Mailbox,
}

impl LocalEngine {
    async fn open(settings: Settings, seat: Seat) -> Result<LocalEngine> {
        let (store, place) = Store::open(settings, seat.keeper).await?;
        let mailbox = Mailbox::open(&place, seat.keeper, &seat.events);
        let watch = Watch::new(&place.dir, &seat.events);
        let label = format!("local:{}", place.dir.display()).into();
        Ok(LocalEngine { label, seat, store, watch, _mailbox: mailbox })
    }

    /// What an answer on the engine's clock means on the keeper's.
    fn standing(&self, claim: &Claim, sent: Moment, asked: Asked) -> Standing {
        match asked.answer {
            Answer::Queued { .. } => self.watch.wait(claim.id, asked.ahead),
            _ => self.watch.done(claim.id),
        }
        asked.answer.standing(claim, sent, asked.now, 0)
    }
}

#[async_trait]
impl Engine for LocalEngine {
    fn info(&self) -> EngineInfo {
        EngineInfo {
            engine: "local".into(),
            label: self.label.clone(),
            ordered: true,
            polled: false,
            tokens: TokenStrength::Durable,
            caveat: CAVEAT.into(),
            kinds: vec![Kind::Mutex, Kind::ReadWrite, Kind::Semaphore, Kind::Latch, Kind::Fence],
            min_lease: LockOptions::MIN_LEASE,
            lingers: true,
        }
    }

    async fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing> {
        let sent = self.seat.clock.now();
        let wanted = claim.clone();
        let asked = self
            .store
            .run(Access::Write, move |desk| {
                desk.ask(&wanted.name, wanted.id, wanted.max_waiters, |record, now, effects| {
                    record.acquire(&wanted, intent, floor, now, effects)
                })
            })
            .await??;
        Ok(self.standing(claim, sent, asked))
    }

    async fn renew(&self, batch: &[Keep]) -> Vec<Result<Standing>> {
        let sent = self.seat.clock.now();
        let keeps = batch.to_vec();
        let asked = self.store.run(Access::Write, move |desk| {
            let mut answers = Vec::with_capacity(keeps.len());
            for keep in &keeps {
                let Keep { claim, belief, floor } = keep;
                let asked = desk.ask(&claim.name, claim.id, u32::MAX, |record, now, effects| {
                    Ok::<_, Refusal>(record.renew(claim, *belief, *floor, now, effects))
                })?;
                answers.push(asked);
            }
            Ok(answers)
        });
        match asked.await {
            Ok(answers) => {
                let standing = |(keep, asked): (&Keep, Result<Asked, Refusal>)| {
                    Ok(self.standing(&keep.claim, sent, asked?))
                };
                batch.iter().zip(answers).map(standing).collect()
            }
            Err(error) => vec![Err(error); batch.len()],
        }
    }

    async fn release(&self, claim: &Claim, how: Release) -> Result<Found> {
        self.watch.done(claim.id);
        let (name, id) = (claim.name.clone(), claim.id);
        self.store
            .run(Access::Write, move |desk| {
                desk.step(&name, Queue::Head(Some(id)), |record, now, effects| {
                    record.release(id, how, now, effects)
                })
            })
            .await
    }

    async fn revoke(
        &self,
        name: &LockName,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Result<Found> {
        let (name, claim, token) = (name.clone(), victim.claim, victim.token);
        let reason = reason.to_owned();
        self.store
            .run(Access::Write, move |desk| {
                desk.step(&name, Queue::Head(None), |record, now, effects| {
                    record.revoke(claim, token, how, &reason, now, effects)
                })
            })
            .await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status> {
        let name = name.clone();
        self.store.run(Access::Read, move |desk| desk.status(&name)).await
    }

    async fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page> {
        let prefix = prefix.to_owned();
        self.store.run(Access::Read, move |desk| desk.list(&prefix, from.as_ref(), limit)).await
    }

    async fn cell(&self, name: &LockName, op: CellOp) -> Result<Cell> {
        let name = name.clone();
        let cell = self.store.run(Access::Write, move |desk| {
            if matches!(op, CellOp::Look { watch: true, .. }) {
                desk.listen(&name)?;
            }
            desk.step(&name, Queue::Whole, |record, now, effects| record.cell(&op, now, effects))
        });
        Ok(cell.await??)
    }

    async fn close(&self, _by: Moment) -> Result<()> {
        self.store.close().await;
        Ok(())
    }
}
