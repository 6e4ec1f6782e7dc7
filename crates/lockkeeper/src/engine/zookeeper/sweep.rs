//! Taking away what nobody wants any more, until it is certainly gone.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::fault::{Answer, Trouble};
use super::layout;
use super::mine::{Burial, Entry, Node, Spot};
use super::note::Note;
use super::queue::PAUSE;
use super::session::Session;
use super::{Inner, lock};
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{Claim, Event, Found, Mode, Standing, TICKET};

/// The nodes of a claim that is over.
pub(super) struct Remains {
    session: Arc<Session>,
    claim: Arc<Claim>,
    nodes: Vec<Node>,
    found: Found,
    /// Whether there may be nodes that are not known.
    search: bool,
}

impl Remains {
    pub(super) fn of(mut entry: Entry) -> Remains {
        let (nodes, found, search) = match std::mem::replace(&mut entry.spot, Spot::Asking) {
            Spot::Asking => (Vec::new(), Found::Held, true),
            // A transaction may be under way that turns the place into permits.
            Spot::Queued { node, .. } => {
                let permits = matches!(entry.claim.mode, Mode::Permits { .. });
                (vec![node], Found::Queued, permits)
            }
            Spot::Held { nodes, .. } => (nodes, Found::Held, false),
        };
        let (session, claim) = (entry.session.clone(), entry.claim.clone());
        Remains { session, claim, nodes, found, search }
    }

    /// Deletes everything; says whether there was something.
    pub(super) async fn delete(&self) -> Answer<bool> {
        // Struck out first: whoever is gone without that has failed.
        if let Some(first) = self.nodes.first() {
            let dir = layout::dir(&self.claim.name);
            self.session.disarm(&dir, layout::last(&first.path), &self.claim).await?;
        }
        let mut paths: Vec<String> = self.nodes.iter().map(|node| node.path.clone()).collect();
        if self.search {
            paths.extend(self.strays().await?);
            paths.sort();
            paths.dedup();
        }
        let deletes = join_all(paths.iter().map(|path| self.session.delete(path))).await;
        let mut any = false;
        for deleted in deletes {
            match deleted {
                Ok(()) => any = true,
                Err(Trouble::NoNode) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(any)
    }

    /// Finds nodes by the claim's id, also such as are not known.
    async fn strays(&self) -> Answer<Vec<String>> {
        let (session, claim) = (&self.session, &self.claim);
        // What was under way on a broken connection has either arrived at the
        // leader before this, or is refused.
        session.sync().await?;
        let dir = layout::dir(&claim.name);
        let dirs = match claim.mode {
            Mode::Permits { .. } => vec![layout::locks(&dir), layout::leases(&dir)],
            _ => vec![dir],
        };
        let start = layout::protected(claim.id);
        let mut paths = Vec::new();
        for dir in dirs {
            match session.children(&dir).await {
                Ok(children) => {
                    let own = children.iter().filter(|node| node.starts_with(&start));
                    paths.extend(own.map(|node| format!("{dir}/{node}")));
                }
                Err(Trouble::NoNode) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(paths)
    }

    /// Leaves the nodes where they are for a while, so that nobody comes in,
    /// and says so.
    async fn close(&self, linger: Duration) -> Answer<bool> {
        let mut note = Note::of(&self.claim);
        let millis = u64::try_from(linger.as_millis()).unwrap_or(u64::MAX);
        note.closed_until_ms = Some(self.session.wall_now().saturating_add(millis));
        let data = note.write();
        let sets = self.nodes.iter().map(|node| self.session.set(&node.path, &data, None));
        let mut any = false;
        for set in join_all(sets).await {
            match set {
                Ok(_) => any = true,
                Err(Trouble::NoNode) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(any)
    }

    /// Takes everything away, now or when the name has been closed for long
    /// enough, however long that takes; tells what was found as soon as
    /// nobody can hold any more.
    async fn bury(self, linger: Duration, told: tokio::sync::oneshot::Sender<Found>) {
        let (mut any, mut told, mut linger) = (false, Some(told), linger);
        loop {
            let ended = match linger.is_zero() {
                true => self.delete().await,
                false => self.close(linger).await,
            };
            match ended {
                Ok(found) => {
                    let found = if any || found { self.found } else { Found::Nothing };
                    if let Some(told) = told.take() {
                        let _ = told.send(found);
                    }
                    if linger.is_zero() {
                        return;
                    }
                    tokio::time::sleep(linger).await;
                    linger = Duration::ZERO;
                }
                // With the session, all its nodes are gone.
                Err(Trouble::Over) => return,
                Err(Trouble::Other(error)) if !error.is_silence() => {
                    // The server will say the same to the next try.
                    tracing::warn!(name = %self.claim.name, %error, "not deleted");
                    return;
                }
                Err(trouble) => {
                    // What this one did not report may have been its doing.
                    any |= !trouble.is_definite();
                    tracing::debug!(name = %self.claim.name, ?trouble, "not deleted; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

impl Inner {
    /// Takes away what a claim has, in the background; tells when it is done.
    pub(super) fn bury(&self, entry: Entry, linger: Duration) -> Burial {
        let (told, hear) = tokio::sync::oneshot::channel();
        let held = matches!(entry.spot, Spot::Held { .. });
        let linger = if held { linger } else { Duration::ZERO };
        tokio::spawn(Remains::of(entry).bury(linger, told));
        hear.map(Result::ok).boxed().shared()
    }

    /// Takes back what a claim has been given just now; it goes on in the
    /// background if it takes longer than a request may.
    pub(super) async fn give_up(&self, id: crate::token::ClaimId) {
        if let Some(entry) = self.mine.take(id) {
            let gone = self.bury(entry, Duration::ZERO);
            let _ = tokio::time::timeout(self.zookeeper.command, gone).await;
        }
    }

    /// Ends the claims that their keeper no longer asks for.
    fn sweep(&self) -> Moment {
        let now = self.now();
        let (silent, next) = self.mine.silent(now);
        for id in silent {
            let Some(entry) = self.mine.finish(id, Cause::Expired, now) else { continue };
            tracing::debug!(name = %entry.claim.name, "its keeper is silent; taken away");
            let delay = entry.claim.lock_delay;
            self.seat.events.push(Event::Is(id, Standing::Gone(Cause::Expired)));
            drop(self.bury(entry, delay));
        }
        next
    }
}

/// Looks after the claims of an engine for as long as there is one.
pub(super) async fn sweep_on(inner: Weak<Inner>) {
    while let Some(engine) = inner.upgrade() {
        let next = engine.sweep();
        if next != Moment::NEVER {
            // Whoever comes meanwhile lives for longer than this.
            let left = next.since(engine.now());
            drop(engine);
            tokio::time::sleep(left.clamp(Duration::from_millis(20), TICKET / 2)).await;
        } else if lock(&engine.current).is_none() {
            return;
        } else {
            engine.mine.arrival.notified().await;
        }
    }
}
