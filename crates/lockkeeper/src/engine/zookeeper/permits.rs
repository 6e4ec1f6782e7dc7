//! Semaphore, laid out as Curator's `InterProcessSemaphoreV2`.
//!
//! Claims queue for a mutex in `locks`. Whoever is first there waits until
//! `leases` has room, makes its permits, and leaves the queue; the last two in
//! one transaction. Only the first in `locks` ever makes permits, so their
//! number can only have gone down since it was read.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join3};
use zookeeper_client::CreateMode;

use super::fault::{Answer, Trouble};
use super::layout::{self, Child, MAX_CHILDREN, View};
use super::mine::{Node, Spot};
use super::note::Note;
use super::queue::{PAUSE, SAFETY, room};
use super::session::Session;
use super::{Inner, Standing};
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{Claim, Event, Intent, Kind, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::model::Refusal;

/// How many permits one transaction can make.
const AT_ONCE: u32 = 2000;

/// What is known of a semaphore.
struct Room {
    capacity: Option<u32>,
    leases: Vec<String>,
    /// For how long nobody is let in, whatever is free.
    closed: Duration,
}

impl Room {
    /// Whether so many permits are free.
    fn fits(&self, count: u32, capacity: u32) -> bool {
        let out = self.leases.len() + count as usize;
        self.closed.is_zero() && out <= (capacity as usize).min(MAX_CHILDREN)
    }
}

/// Refuses a claim that does not belong to a semaphore of this capacity.
fn check(claim: &Claim, stored: Option<u32>) -> Result<(u32, u32)> {
    let Mode::Permits { count, of } = claim.mode else {
        return Err(Error::new(ErrorKind::Unexpected, "no claim on a semaphore"));
    };
    let capacity = stored.unwrap_or(of);
    if of != capacity {
        return Err(Refusal::WrongCapacity { stored: capacity }.into());
    }
    if count > capacity {
        return Err(Refusal::TooLarge { capacity }.into());
    }
    if count > AT_ONCE {
        let text = format!("this engine gives {AT_ONCE} permits at once at most");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    Ok((count, capacity))
}

impl Inner {
    /// Asks for permits.
    ///
    /// `fresh`: no request of this claim can be under way.
    pub(super) async fn take_permits(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        intent: Intent,
        fresh: bool,
    ) -> Answer<Standing> {
        let dir = layout::dir(&claim.name);
        let (locks, _) = layout::queue(claim);
        let sent = self.now();
        if !fresh {
            // A lost request may have made nodes on another member.
            session.sync().await?;
            if let Some(standing) = self.find_permits(session, claim, &dir, sent).await? {
                return Ok(standing);
            }
        }
        let (listed, seen) = join(session.children(&locks), look(session, &dir)).await;
        let (line, seen) = match (listed, seen?) {
            (Ok(children), seen) => (View::of(children), seen),
            (Err(Trouble::NoNode), seen) => (View::default(), seen),
            (Err(trouble), _) => return Err(trouble),
        };
        let (count, capacity) = check(claim, seen.capacity)?;
        let start = layout::protected(claim.id);
        let own = line.line.iter().find(|child| child.node.starts_with(&start));
        let own = match own {
            Some(child) => {
                let path = format!("{locks}/{}", child.node);
                session.exists(&path).await?.map(|stat| Node { path, czxid: stat.czxid })
            }
            None => None,
        };
        let busy = !line.line.is_empty() || !seen.fits(count, capacity);
        if own.is_none() && intent != Intent::Queue && busy {
            self.nudge_later(session, claim, intent, &locks, &line);
            return Ok(Standing::Busy);
        }
        if seen.capacity.is_none() {
            self.prepare(session, &dir, capacity).await?;
        }
        let (own, view) = match own {
            Some(own) => (own, View::of(session.children(&locks).await?)),
            None => loop {
                match self.create_and_list(session, claim).await {
                    Err(Trouble::NoNode) => self.prepare(session, &dir, capacity).await?,
                    created => break created?,
                }
            },
        };
        self.settle_permits(session, claim, intent, sent, own, view).await
    }

    /// Makes sure that the name is a semaphore and has a capacity.
    async fn prepare(&self, session: &Session, dir: &str, capacity: u32) -> Answer<()> {
        let check = async || match session.children(dir).await {
            Ok(children) => {
                View::of(children).check(Kind::Semaphore, dir, None).map_err(Trouble::from)
            }
            Err(Trouble::NoNode) => Ok(()),
            Err(trouble) => Err(trouble),
        };
        check().await?;
        session.make_dir(&layout::locks(dir)).await?;
        session.make_dir(&layout::leases(dir)).await?;
        let node = format!("{dir}/capacity");
        match session.create(&node, &capacity.to_be_bytes(), CreateMode::Persistent).await {
            Ok(_) | Err(Trouble::Exists) => {}
            Err(trouble) => return Err(trouble),
        }
        // Whoever uses the name for something else, and came in between, sees
        // our nodes; so one of us does not stay.
        check().await
    }

    /// What a claim has whose requests were lost; the leader has answered
    /// something that was sent at `sent` or later.
    async fn find_permits(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        dir: &str,
        sent: Moment,
    ) -> Answer<Option<Standing>> {
        let leases = match session.children(&layout::leases(dir)).await {
            Ok(leases) => leases,
            Err(Trouble::NoNode) => return Ok(None),
            Err(trouble) => return Err(trouble),
        };
        let start = layout::protected(claim.id);
        let own: Vec<_> = leases.iter().filter(|node| node.starts_with(&start)).collect();
        if own.is_empty() {
            return Ok(None);
        }
        let paths = own.iter().map(|node| format!("{}/{node}", layout::leases(dir))).collect();
        let nodes = nodes(session, paths).await?;
        self.mine.with(claim.id, |entry| entry.spot = Spot::Held { nodes, token: None });
        Ok(Some(self.grant(claim, session, sent, None, true)))
    }

    async fn settle_permits(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        intent: Intent,
        sent: Moment,
        own: Node,
        view: View,
    ) -> Answer<Standing> {
        let (locks, _) = layout::queue(claim);
        let Some(position) = view.position(layout::last(&own.path)) else {
            return Ok(self.missing(claim.id));
        };
        let refused = layout::check_sequence(&locks, view.line[position].sequence)
            .and_then(|()| room(&view, position, claim));
        if let Err(error) = refused {
            self.give_up(claim.id).await;
            return Err(error.into());
        }
        let dir = layout::dir(&claim.name);
        if position == 0 && self.take_now(session, claim, &dir, &own).await? {
            return Ok(self.grant(claim, session, sent, None, true));
        }
        if intent != Intent::Queue {
            return Ok(self.turn_away(session, claim, intent, &locks, &view).await);
        }
        let turn = self.clone().wait_for_permits(session.clone(), claim.clone(), own.clone());
        Ok(self.line_up(claim, session, sent, own, position, turn))
    }

    /// Takes the permits of a claim that is first in the queue, if they are free.
    async fn take_now(
        &self,
        session: &Session,
        claim: &Claim,
        dir: &str,
        own: &Node,
    ) -> Answer<bool> {
        let Mode::Permits { count, of } = claim.mode else { return Ok(false) };
        let seen = look(session, dir).await?;
        if !seen.fits(count, seen.capacity.unwrap_or(of)) {
            return Ok(false);
        }
        let prefix = format!("{}/{}lease-", layout::leases(dir), layout::protected(claim.id));
        let (paths, note) = (vec![prefix; count as usize], Note::of(claim).write());
        let make = || {
            let (paths, mode) = (paths.iter().map(String::as_str), CreateMode::EphemeralSequential);
            session.create_beside(paths, &note, mode, &own.path, true)
        };
        let made = match make().await {
            // Nobody had a permit for a while, and the servers took the empty
            // node away. If it is our place that is gone, it fails again.
            Err(Trouble::NoNode) => {
                session.make_dir(&layout::leases(dir)).await?;
                make().await?
            }
            made => made?,
        };
        let numbers = made.iter().filter_map(|path| Child::parse(layout::last(path)));
        let refused = numbers.map(|child| layout::check_sequence(dir, child.sequence));
        let refused = refused.collect::<Result<()>>();
        let nodes = nodes(session, made).await?;
        let first = nodes.first().map(|node| layout::last(&node.path).to_owned());
        self.mine.with(claim.id, |entry| entry.spot = Spot::Held { nodes, token: None });
        refused?;
        if let Some(first) = first {
            session.arm(dir, &first, claim).await?;
        }
        Ok(true)
    }

    async fn wait_for_permits(self: Arc<Self>, session: Arc<Session>, claim: Claim, own: Node) {
        let dir = layout::dir(&claim.name);
        let (locks, _) = layout::queue(&claim);
        let node = layout::last(&own.path);
        loop {
            let view = match session.children(&locks).await {
                Ok(children) => View::of(children),
                Err(Trouble::Over) => return,
                Err(Trouble::NoNode) => View::default(),
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Some(position) = view.position(node) else {
                // Perhaps our own transaction took it away, and its answer was lost.
                match self.find_waiting(&session, &claim, &dir, &own).await {
                    Ok(()) | Err(Trouble::Over) => return,
                    Err(_) => {
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                }
            };
            self.move_up(claim.id, position);
            if let Some(blocker) = view.blocker(position) {
                session.until_changed(&format!("{locks}/{}", blocker.node)).await;
                continue;
            }
            match self.wait_for_room(&session, &claim, &dir, &own).await {
                Ok(true) => {
                    let spot = self.mine.with(claim.id, |entry| entry.spot.clone());
                    if let Some(Spot::Held { nodes, .. }) = spot {
                        self.hand_over(claim.id, &own, nodes, None);
                    }
                    return;
                }
                Ok(false) => {}
                Err(Trouble::Over) => return,
                Err(Trouble::Other(error)) if !error.is_silence() => {
                    // It wants more than there are by now, say. Its keeper is
                    // told so when it asks anew.
                    self.give_up(claim.id).await;
                    let gone = Standing::Gone(Cause::Expired);
                    self.seat.events.push(Event::Is(claim.id, gone));
                    return;
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Takes the permits, or waits until something changed.
    async fn wait_for_room(
        &self,
        session: &Session,
        claim: &Claim,
        dir: &str,
        own: &Node,
    ) -> Answer<bool> {
        let Mode::Permits { count, .. } = claim.mode else { return Ok(false) };
        // Watched before it is looked at, so that no change falls between.
        let (leases, capacity) = (layout::leases(dir), format!("{dir}/capacity"));
        let watches =
            join(session.children_and_watch(&leases), session.exists_and_watch(&capacity));
        let (leases, capacity) = match watches.await {
            (Err(Trouble::NoNode), _) => {
                session.make_dir(&layout::leases(dir)).await?;
                return Ok(false);
            }
            (leases, capacity) => (leases?.1, capacity?.1),
        };
        if self.take_now(session, claim, dir, own).await? {
            return Ok(true);
        }
        let seen = look(session, dir).await?;
        if let Some(capacity) = seen.capacity.filter(|stored| count > *stored) {
            return Err(Error::from(Refusal::TooLarge { capacity }).into());
        }
        let pause = if seen.closed.is_zero() { SAFETY } else { SAFETY.min(seen.closed) };
        tokio::select! {
            _ = leases.changed() => {}
            _ = capacity.changed() => {}
            _ = tokio::time::sleep(pause) => {}
        }
        Ok(false)
    }

    /// Settles a waiting claim whose place is gone.
    async fn find_waiting(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        dir: &str,
        own: &Node,
    ) -> Answer<()> {
        let sent = self.now();
        session.sync().await?;
        match self.find_permits(session, claim, dir, sent).await? {
            Some(_) => {
                let spot = self.mine.with(claim.id, |entry| entry.spot.clone());
                if let Some(Spot::Held { nodes, .. }) = spot {
                    self.hand_over(claim.id, own, nodes, None);
                }
            }
            None => self.gone(claim.id, Cause::Expired),
        }
        Ok(())
    }
}

/// Reads how many permits there are, and who has some.
async fn look(session: &Session, dir: &str) -> Answer<Room> {
    let (holders, capacity) = (layout::leases(dir), format!("{dir}/capacity"));
    let reads = join3(session.data(&capacity), session.children(&holders), session.exists(dir));
    let (capacity, leases, above) = reads.await;
    let capacity = match capacity {
        Ok((data, _)) => Some(super::cells::capacity(&data)?),
        Err(Trouble::NoNode) => None,
        Err(trouble) => return Err(trouble),
    };
    let leases = match leases {
        Ok(leases) => leases,
        Err(Trouble::NoNode) => Vec::new(),
        Err(trouble) => return Err(trouble),
    };
    let noted = above?.is_some_and(|stat| stat.data_length > 0);
    let closed = match noted {
        true => session.closed_for(dir, &holders, None).await?,
        false => Duration::ZERO,
    };
    Ok(Room { capacity, leases, closed })
}

/// When each of these was made, which a transaction does not tell everywhere.
async fn nodes(session: &Session, paths: Vec<String>) -> Answer<Vec<Node>> {
    let stats = paths.iter().map(|path| session.exists(path));
    let stats = futures_util::future::join_all(stats).await;
    let mut nodes = Vec::with_capacity(paths.len());
    for (path, stat) in paths.iter().zip(stats) {
        let Some(stat) = stat? else { return Err(Trouble::NoNode) };
        nodes.push(Node { path: path.clone(), czxid: stat.czxid });
    }
    Ok(nodes)
}
