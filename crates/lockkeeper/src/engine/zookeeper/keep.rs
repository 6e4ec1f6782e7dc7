//! Renewals: one answer of the leader for the whole batch.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};

use super::fault::{Answer, Trouble};
use super::layout::OURS;
use super::mine::{Bell, Node, Spot};
use super::session::Session;
use super::{Inner, Standing, layout, note};
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{Belief, Event, Keep};
use crate::error::Result;
use crate::token::ClaimId;

impl Inner {
    /// Keeps claims alive and says what each is now.
    pub(super) async fn keep(self: &Arc<Self>, batch: &[Keep]) -> Vec<Result<Standing>> {
        let sent = self.now();
        // Claims of one shard have one session; a batch of several is odd,
        // but no reason to be wrong.
        let mut sessions: HashMap<u32, Arc<Session>> = HashMap::new();
        for keep in batch {
            self.mine.with(keep.claim.id, |entry| {
                // What has been revoked ends with its lease.
                if entry.revoked.is_none() {
                    entry.touched = sent;
                }
                sessions.entry(entry.session.generation).or_insert_with(|| entry.session.clone());
            });
        }
        let proofs =
            sessions.values().map(|session| async { (session.generation, session.prove().await) });
        let proofs: HashMap<u32, Answer<()>> = join_all(proofs).await.into_iter().collect();
        join_all(batch.iter().map(|keep| self.answer(keep, sent, &proofs))).await
    }

    /// Keeps one claim alive that is asked for again.
    pub(super) async fn keep_one(
        self: &Arc<Self>,
        id: ClaimId,
        session: &Arc<Session>,
        sent: Moment,
    ) -> Result<Standing> {
        session.prove().await?;
        self.look_after(id).await?;
        Ok(self.standing(id, sent))
    }

    async fn answer(
        self: &Arc<Self>,
        keep: &Keep,
        sent: Moment,
        proofs: &HashMap<u32, Answer<()>>,
    ) -> Result<Standing> {
        let id = keep.claim.id;
        let proof = self.mine.with(id, |entry| proofs.get(&entry.session.generation).cloned());
        match proof.flatten() {
            Some(Ok(())) => {}
            Some(Err(Trouble::Over)) => self.gone(id, Cause::Expired),
            Some(Err(trouble)) => return Err(trouble.into()),
            // Nobody knows it any more.
            None => return Ok(self.standing(id, sent)),
        }
        self.look_after(id).await?;
        let as_believed = self.mine.with(id, |entry| match (&entry.spot, keep.belief) {
            (Spot::Held { token, .. }, Belief::Held { token: believed }) => *token == believed,
            (Spot::Held { .. }, Belief::Queued { ticket }) => {
                entry.unconfirmed.is_none_or(|granted| granted == ticket)
            }
            (Spot::Queued { node, .. }, Belief::Queued { ticket }) => Spot::ticket(node) == ticket,
            _ => false,
        });
        if as_believed == Some(false) {
            return Ok(Standing::Gone(Cause::TakenOver));
        }
        Ok(self.standing(id, sent))
    }

    /// Looks at the nodes a claim holds by, if it is time to, and notes what
    /// has become of them.
    async fn look_after(self: &Arc<Self>, id: ClaimId) -> Answer<()> {
        let look = self.mine.with(id, |entry| match &entry.spot {
            Spot::Held { nodes, .. } if entry.needs_a_look() => {
                Some((entry.session.clone(), nodes.clone(), entry.session.epoch()))
            }
            _ => None,
        });
        let Some((session, nodes, epoch)) = look.flatten() else { return Ok(()) };
        let Some((first, others)) = nodes.split_first() else { return Ok(()) };
        let others = others.iter().map(|node| async {
            let stat = session.exists(&node.path).await?;
            Ok::<_, Trouble>(stat.is_some_and(|stat| stat.czxid == node.czxid))
        });
        let (first_one, others) =
            futures_util::future::join(session.data_and_watch(&first.path), join_all(others)).await;
        let mut all = true;
        for other in others {
            all &= other?;
        }
        let (data, bell) = match first_one {
            Ok((data, stat, watcher))
                if all && stat.czxid == first.czxid && stat.ephemeral_owner == session.id =>
            {
                (data, watcher.changed().boxed().shared())
            }
            Ok(_) => {
                self.gone(id, Cause::TakenOver);
                return Ok(());
            }
            Err(Trouble::NoNode) => {
                let cause = self.why_gone(&session, first).await;
                self.gone(id, cause);
                return Ok(());
            }
            Err(trouble) => return Err(trouble),
        };
        let revoked = note::revoked(&data);
        let news = self.mine.with(id, |entry| {
            entry.verified = epoch;
            entry.bell = Some(bell.clone());
            let news = entry.revoked.is_none() && revoked.is_some();
            entry.revoked = entry.revoked.take().or(revoked);
            news.then(|| entry.revoked.clone().unwrap_or_default())
        });
        let Some(news) = news else { return Ok(()) };
        if let Some(reason) = news {
            let gone = Standing::Gone(Cause::Broken { reason });
            self.seat.events.push(Event::Is(id, gone));
        }
        tokio::spawn(listen(Arc::downgrade(self), id, bell));
        Ok(())
    }

    /// Why a node of ours is gone although its session is not.
    async fn why_gone(&self, session: &Session, node: &Node) -> Cause {
        let reason = match session.data(&reason_path(&node.path)).await {
            Ok((data, _)) => String::from_utf8_lossy(&data).into_owned(),
            Err(_) => "its node was deleted".to_owned(),
        };
        Cause::Broken { reason: reason.into() }
    }
}

/// Where a break that deletes a node leaves its reason for a while.
pub(super) fn reason_path(path: &str) -> String {
    format!("{OURS}/broken-{}", layout::last(path))
}

/// Looks after a claim when its bell rings. Boxed, since looking after it may
/// hang up another bell.
fn listen(inner: Weak<Inner>, id: ClaimId, bell: Bell) -> BoxFuture<'static, ()> {
    let listening = async move {
        bell.await;
        while let Some(inner) = inner.upgrade() {
            match inner.look_after(id).await {
                // With its session it is gone, which is told elsewhere.
                Ok(()) | Err(Trouble::Over) => return,
                Err(_) => tokio::time::sleep(super::queue::PAUSE).await,
            }
        }
    };
    listening.boxed()
}
