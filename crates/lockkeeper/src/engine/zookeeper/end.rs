//! Release and break.

use zookeeper_client::CreateMode;

use super::fault::{Answer, Trouble};
use super::keep::reason_path;
use super::layout::{self, Child, OURS, Tag, View};
use super::session::Session;
use super::{Inner, note};
use crate::cause::Cause;
use crate::engine::{Claim, Found, Holder, Release, Revoke};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

impl Inner {
    /// Ends whatever a claim has.
    pub(super) async fn release(&self, claim: &Claim, how: Release) -> Result<Found> {
        let entry = if how.unsure {
            self.mine.finish(claim.id, Cause::Expired, self.now())
        } else {
            self.mine.take(claim.id)
        };
        let burial = match (entry, self.mine.take_burial(claim.id)) {
            (Some(entry), _) => self.bury(entry, how.linger),
            (None, Some(burial)) => burial,
            // Taken away already, by the sweeper or with its session.
            (None, None) => return Ok(Found::Nothing),
        };
        match tokio::time::timeout(self.zookeeper.command, burial.clone()).await {
            Ok(found) => Ok(found.unwrap_or(Found::Nothing)),
            Err(_) => {
                self.mine.keep_burial(claim.id, burial);
                let text = "not confirmed in time; it goes on in the background";
                Err(Error::new(ErrorKind::Unknown, text))
            }
        }
    }

    /// Takes a grant from its owner, be it one of ours or of another program.
    pub(super) async fn revoke(
        &self,
        session: &Session,
        name: &LockName,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Answer<Found> {
        let mut found = Found::Nothing;
        for path in holds(session, name, victim).await? {
            let (data, stat) = match session.data(&path).await {
                Ok(read) => read,
                Err(Trouble::NoNode) => continue,
                Err(trouble) => return Err(trouble),
            };
            let own = note::Note::read(&data).and_then(|note| note.token);
            let token = own.map_or(stat.czxid.unsigned_abs(), |token| token.get());
            if victim.token.is_some_and(|meant| meant.get() != token) {
                continue;
            }
            let ended = match how {
                Revoke::Orderly => {
                    session.set(&path, &note::revoke(&data, reason), None).await.map(drop)
                }
                Revoke::Now => {
                    leave_reason(session, &path, reason).await;
                    session.delete(&path).await
                }
            };
            match ended {
                Ok(()) => found = Found::Held,
                Err(Trouble::NoNode) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(found)
    }
}

/// The nodes by which a victim holds.
async fn holds(session: &Session, name: &LockName, victim: &Holder) -> Answer<Vec<String>> {
    let dir = layout::dir(name);
    // Our member may not have heard yet of what the caller has seen elsewhere.
    session.sync().await?;
    let mut paths = Vec::new();
    for dir in [layout::leases(&dir), dir] {
        let view = match session.children(&dir).await {
            Ok(children) => View::of(children),
            Err(Trouble::NoNode) => continue,
            Err(trouble) => return Err(trouble),
        };
        for (position, child) in view.line.iter().enumerate() {
            let holds = child.tag == Tag::Lease || view.blocker(position).is_none();
            if holds && is(child, victim) {
                paths.push(format!("{dir}/{}", child.node));
            }
        }
    }
    Ok(paths)
}

/// Whether a node is the victim's.
fn is(child: &Child, victim: &Holder) -> bool {
    let ours = child.node.starts_with(&layout::protected(victim.claim));
    ours || child.stranger() == victim.claim
}

/// Says why a node is deleted, for as long as this session lasts. Nobody
/// depends on it, so nobody waits for it to work.
async fn leave_reason(session: &Session, path: &str, reason: &str) {
    let at = reason_path(path);
    for _ in 0..2 {
        match session.create(&at, reason.as_bytes(), CreateMode::Ephemeral).await {
            Err(Trouble::NoNode) => {
                if let Err(trouble) = session.make_dir(OURS).await {
                    tracing::debug!(?trouble, "the reason of a break is not kept");
                    return;
                }
            }
            _ => return,
        }
    }
}
