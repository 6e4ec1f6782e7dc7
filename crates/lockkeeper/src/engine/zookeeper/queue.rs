//! Mutex and read/write lock: a node per claim, numbered by the server; who
//! has nobody before it holds, everybody else watches one node.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use zookeeper_client::CreateMode;

use super::fault::{Answer, Trouble};
use super::layout::{self, Child, MAX_CHILDREN, Tag, View};
use super::mine::{Node, Spot};
use super::note::Note;
use super::session::Session;
use super::{Inner, Standing};
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{Claim, Event, Intent};
use crate::error::{Error, ErrorKind};
use crate::model::Refusal;
use crate::token::{ClaimId, Token};

/// How often a waiter looks after the node it watches, in case the watch is lost.
pub(super) const SAFETY: Duration = Duration::from_millis(1500);
/// How long to pause before a request that was not answered is repeated.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

impl Inner {
    /// Asks for a mutex or a read/write lock.
    ///
    /// `fresh`: no request of this claim can be under way.
    pub(super) async fn enter(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        intent: Intent,
        fresh: bool,
    ) -> Answer<Standing> {
        let (dir, _) = layout::queue(claim);
        let mut fresh = fresh;
        loop {
            let sent = self.now();
            if !fresh || intent != Intent::Queue {
                if !fresh {
                    // A lost request may have made the node on another member.
                    session.sync().await?;
                }
                let view = match session.children_and_length(&dir).await {
                    Ok(listed) => View::noted(listed),
                    Err(Trouble::NoNode) => View::default(),
                    Err(trouble) => return Err(trouble),
                };
                if let Some(own) = self.find_own(session, claim, &dir, &view).await? {
                    return self.settle(session, claim, intent, sent, own, view).await;
                }
                view.check(claim.mode.kind(), &dir, None)?;
                if intent != Intent::Queue && would_wait(&view, claim) {
                    self.nudge_later(session, claim, intent, &dir, &view);
                    return Ok(Standing::Busy);
                }
                fresh = true;
            }
            match self.create_and_list(session, claim).await {
                // The node of the name went away, or was never there.
                Err(Trouble::NoNode) => session.make_dir(&dir).await?,
                Err(trouble) => return Err(trouble),
                Ok((own, view)) => {
                    return self.settle(session, claim, intent, sent, own, view).await;
                }
            }
        }
    }

    /// Makes the claim's node and looks who else is there; both requests
    /// leave together, and the second one sees the first.
    pub(super) async fn create_and_list(
        &self,
        session: &Session,
        claim: &Claim,
    ) -> Answer<(Node, View)> {
        let (dir, prefix) = layout::queue(claim);
        let note = Note::of(claim).write();
        let create = session.create(&prefix, &note, CreateMode::EphemeralSequential);
        let (created, listed) = join(create, session.children_and_length(&dir)).await;
        let (stat, sequence) = created?;
        let own = Node { path: format!("{prefix}{sequence:010}"), czxid: stat.czxid };
        // From here on whoever ends the claim finds this node.
        self.mine.with(claim.id, |entry| {
            entry.spot = Spot::Queued { node: own.clone(), ahead: 0 };
        });
        Ok((own, View::noted(listed?)))
    }

    /// Finds the node that a lost request of this claim has made.
    async fn find_own(
        &self,
        session: &Session,
        claim: &Claim,
        dir: &str,
        view: &View,
    ) -> Answer<Option<Node>> {
        let start = layout::protected(claim.id);
        for child in view.line.iter().filter(|child| child.node.starts_with(&start)) {
            let path = format!("{dir}/{}", child.node);
            if let Some(stat) = session.exists(&path).await?
                && stat.ephemeral_owner == session.id
            {
                return Ok(Some(Node { path, czxid: stat.czxid }));
            }
        }
        Ok(None)
    }

    /// Decides what a claim is whose node is there.
    async fn settle(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        intent: Intent,
        sent: Moment,
        own: Node,
        view: View,
    ) -> Answer<Standing> {
        let (dir, _) = layout::queue(claim);
        let Some(position) = view.position(layout::last(&own.path)) else {
            return Ok(self.missing(claim.id));
        };
        let child = &view.line[position];
        let refused = layout::check_sequence(&dir, child.sequence)
            .and_then(|()| view.check(claim.mode.kind(), &dir, Some(child)));
        if let Err(error) = refused {
            self.give_up(claim.id).await;
            return Err(error.into());
        }
        let closed = closed(session, &dir, &view, &own).await?;
        let blocker = view.blocker(position);
        if blocker.is_none() && closed.is_zero() {
            session.arm(&dir, layout::last(&own.path), claim).await?;
            let token = claim.mode.is_exclusive().then(|| token(&own));
            self.mine.with(claim.id, |entry| {
                entry.spot = Spot::Held { nodes: vec![own], token };
            });
            return Ok(self.grant(claim, session, sent, token, true));
        }
        if intent != Intent::Queue {
            return Ok(self.turn_away(session, claim, intent, &dir, &view).await);
        }
        if let Err(error) = room(&view, position, claim) {
            self.give_up(claim.id).await;
            return Err(error.into());
        }
        let turn = self.clone().wait_turn(session.clone(), claim.id, own.clone(), blocker.cloned());
        Ok(self.line_up(claim, session, sent, own, view.waiting_before(position), turn))
    }

    /// What a claim is whose node is not in the list: somebody deleted it.
    pub(super) fn missing(&self, id: ClaimId) -> Standing {
        self.mine.finish(id, Cause::Expired, self.now());
        Standing::Gone(Cause::Expired)
    }

    /// Takes the node away of a claim that does not want to wait.
    pub(super) async fn turn_away(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        intent: Intent,
        dir: &str,
        view: &View,
    ) -> Standing {
        self.nudge_later(session, claim, intent, dir, view);
        self.give_up(claim.id).await;
        Standing::Busy
    }

    /// Leaves a claim in its place; `turn` waits for its turn.
    pub(super) fn line_up(
        &self,
        claim: &Claim,
        session: &Session,
        sent: Moment,
        own: Node,
        ahead: usize,
        turn: impl Future<Output = ()> + Send + 'static,
    ) -> Standing {
        let waiting = tokio::spawn(turn).abort_handle();
        let (ticket, ahead) = (Spot::ticket(&own), u32::try_from(ahead).unwrap_or(u32::MAX));
        self.mine.with(claim.id, |entry| {
            entry.spot = Spot::Queued { node: own, ahead };
            entry.waiting = Some(waiting);
        });
        self.place(claim, session, sent, (ticket, ahead))
    }

    /// Notes how many are still ahead of a claim that waits.
    pub(super) fn move_up(&self, id: ClaimId, ahead: usize) {
        self.mine.with(id, |entry| {
            if let Spot::Queued { ahead: known, .. } = &mut entry.spot {
                *known = u32::try_from(ahead).unwrap_or(u32::MAX);
            }
        });
    }

    /// Waits until the claim behind a node has its turn, and hands it over.
    async fn wait_turn(
        self: Arc<Self>,
        session: Arc<Session>,
        id: ClaimId,
        own: Node,
        mut blocker: Option<Child>,
    ) {
        let Some((dir, node)) = own.path.rsplit_once('/') else { return };
        loop {
            if let Some(child) = blocker.take() {
                session.until_changed(&format!("{dir}/{}", child.node)).await;
            }
            let view = match session.children_and_length(dir).await {
                Ok(listed) => View::noted(listed),
                Err(Trouble::Over) => return,
                Err(Trouble::NoNode) => View::default(),
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Some(position) = view.position(node) else {
                return self.gone(id, Cause::Expired);
            };
            if let Some(child) = view.blocker(position) {
                self.move_up(id, view.waiting_before(position));
                blocker = Some(child.clone());
                continue;
            }
            let pause = match self.come_in(&session, id, &own, dir, &view).await {
                Ok(Duration::ZERO) | Err(Trouble::Over) => return,
                Ok(closed) => closed,
                Err(_) => PAUSE,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Hands over to a claim that has nobody before it; or says for how long
    /// the name is closed.
    async fn come_in(
        &self,
        session: &Session,
        id: ClaimId,
        own: &Node,
        dir: &str,
        view: &View,
    ) -> Answer<Duration> {
        let closed = closed(session, dir, view, own).await?;
        let claim = self.mine.with(id, |entry| entry.claim.clone());
        if let Some(claim) = claim.filter(|_| closed.is_zero()) {
            session.arm(dir, layout::last(&own.path), &claim).await?;
            let token = claim.mode.is_exclusive().then(|| token(own));
            self.hand_over(id, own, vec![own.clone()], token);
        }
        Ok(closed)
    }

    /// Gives a waiting claim its grant, which its keeper has to confirm.
    pub(super) fn hand_over(
        &self,
        claim: ClaimId,
        place: &Node,
        nodes: Vec<Node>,
        token: Option<Token>,
    ) {
        let ticket = Spot::ticket(place);
        let granted = self.mine.with(claim, |entry| {
            entry.spot = Spot::Held { nodes, token };
            entry.unconfirmed = Some(ticket);
            // The task that does this ends now.
            entry.waiting = None;
        });
        if granted.is_some() {
            self.seat.events.push(Event::HandedOver { claim, ticket, token });
        }
    }

    /// Grants a read beside the write it steps down from, in the same place:
    /// its node gets the number of the write's.
    pub(super) async fn step_down(&self, session: &Session, claim: &Claim) -> Answer<Standing> {
        let sent = self.now();
        let above = claim.under.and_then(|above| {
            self.mine.with(above, |entry| match &entry.spot {
                Spot::Held { nodes, token }
                    if entry.revoked.is_none()
                        && entry.session.generation == session.generation =>
                {
                    nodes.first().map(|node| (node.path.clone(), *token))
                }
                _ => None,
            })
        });
        let Some((above, token)) = above.flatten() else {
            return Err(Error::from(Refusal::NotHeldAbove).into());
        };
        let (dir, prefix) = layout::queue(claim);
        let Some(sequence) = Child::parse(layout::last(&above)).map(|child| child.sequence) else {
            return Err(Error::from(Refusal::NotHeldAbove).into());
        };
        let path = format!("{prefix}{sequence:010}");
        let mut note = Note::of(claim);
        note.token = token;
        let (paths, mode) = ([path.as_str()], CreateMode::Ephemeral);
        match session.create_beside(paths.into_iter(), &note.write(), mode, &above, false).await {
            // A lost request has made it.
            Ok(_) | Err(Trouble::Exists) => {}
            Err(Trouble::NoNode) => return Err(Error::from(Refusal::NotHeldAbove).into()),
            Err(trouble) => return Err(trouble),
        }
        // Servers before 3.8.2 do not tell in a transaction when a node was made.
        let Some(stat) = session.exists(&path).await? else { return Err(Trouble::NoNode) };
        if stat.ephemeral_owner != session.id {
            let text = format!("a node of another session has our place in {dir:?}");
            return Err(Error::new(ErrorKind::Unexpected, text).into());
        }
        session.arm(&dir, layout::last(&path), claim).await?;
        let node = Node { path, czxid: stat.czxid };
        self.mine.with(claim.id, |entry| entry.spot = Spot::Held { nodes: vec![node], token });
        Ok(self.grant(claim, session, sent, token, true))
    }

    /// Tells a claim that leaves no place when asking again may be worth it.
    pub(super) fn nudge_later(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        intent: Intent,
        dir: &str,
        view: &View,
    ) {
        let last = view
            .line
            .iter()
            .rev()
            .find(|child| !child.node.starts_with(&layout::protected(claim.id)));
        let Some(last) = last.filter(|_| intent == Intent::Watch) else { return };
        let (path, id) = (format!("{dir}/{}", last.node), claim.id);
        let (session, events) = (session.clone(), self.seat.events.clone());
        tokio::spawn(async move {
            session.until_changed(&path).await;
            events.push(Event::Nudge(id));
        });
    }
}

impl Session {
    /// Waits until a node is changed or gone, or cannot be watched. A lost
    /// watch costs a short while at most.
    pub(super) async fn until_changed(&self, path: &str) {
        let watcher = match self.data_and_watch(path).await {
            Ok((_, _, watcher)) => watcher,
            Err(Trouble::NoNode | Trouble::Over) => return,
            Err(_) => return tokio::time::sleep(PAUSE).await,
        };
        let mut changed = std::pin::pin!(watcher.changed());
        while tokio::time::timeout(SAFETY, &mut changed).await.is_err() {
            if matches!(self.exists(path).await, Ok(None) | Err(Trouble::Over)) {
                return;
            }
        }
    }
}

/// For how long nobody is let in, although nobody holds.
async fn closed(session: &Session, dir: &str, view: &View, own: &Node) -> Answer<Duration> {
    match view.noted {
        true => session.closed_for(dir, dir, Some(layout::last(&own.path))).await,
        false => Ok(Duration::ZERO),
    }
}

/// The token of the grant behind a node: transactions only ever count up.
fn token(node: &Node) -> Token {
    Token::new(node.czxid.unsigned_abs())
}

/// Whether a claim that came now would have to wait.
fn would_wait(view: &View, claim: &Claim) -> bool {
    match Tag::of(claim.mode) {
        Tag::Read => view.line.iter().any(|child| child.tag == Tag::Write),
        _ => !view.line.is_empty(),
    }
}

/// Refuses a place in a queue that is full.
pub(super) fn room(view: &View, position: usize, claim: &Claim) -> Result<(), Error> {
    if view.waiting_before(position) >= claim.max_waiters as usize {
        return Err(Refusal::QueueFull { limit: claim.max_waiters }.into());
    }
    if position >= MAX_CHILDREN {
        let text = format!(
            "{position} are waiting already; the list of more would exceed the megabyte that a \
             ZooKeeper answers by default"
        );
        return Err(Error::new(ErrorKind::TooMany, text));
    }
    Ok(())
}
