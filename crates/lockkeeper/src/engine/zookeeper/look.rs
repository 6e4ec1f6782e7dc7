//! Who holds and who waits, whichever program they use.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{join, join_all};
use zookeeper_client::Stat;

use super::cells;
use super::delay::Closed;
use super::fault::{Answer, Trouble};
use super::layout::{self, Child, Tag, View};
use super::note::{self, Note};
use super::session::Session;
use crate::engine::{Cursor, Holder, Kind, Mode, Page, Status, Waiter};
use crate::name::LockName;
use crate::token::Token;

/// How many names one page of a listing looks at at most.
const LOOKS: usize = 2048;
/// How many nodes are read at a time.
const AT_ONCE: usize = 256;

/// Everything about a name.
pub(super) async fn status(session: &Session, name: &LockName) -> Answer<Status> {
    // Our member may lag behind what the caller has seen elsewhere.
    session.sync().await?;
    look(session, name).await
}

async fn look(session: &Session, name: &LockName) -> Answer<Status> {
    let mut status = Status::unused(name.clone());
    let dir = layout::dir(name);
    let view = match session.children_and_length(&dir).await {
        Ok(listed) => View::noted(listed),
        Err(Trouble::NoNode) => return Ok(status),
        Err(trouble) => return Err(trouble),
    };
    status.kind = view.kind();
    match status.kind {
        Some(Kind::Mutex | Kind::ReadWrite) | None => {
            line(session, &dir, &view, &mut status).await?;
        }
        Some(Kind::Semaphore) => permits(session, &dir, view.noted, &mut status).await?,
        Some(Kind::Latch | Kind::Fence) => {}
    }
    if let Some(kind) = status.kind {
        status.cell = cells::read(session, &dir, kind).await?;
    }
    Ok(status)
}

/// A node with what it says.
struct Seen {
    child: Child,
    note: Option<Note>,
    data: Vec<u8>,
    stat: Stat,
}

/// Reads what the nodes say; those that are gone by now are left out.
async fn read(session: &Session, dir: &str, children: &[Child]) -> Answer<Vec<Seen>> {
    let mut seen = Vec::with_capacity(children.len());
    for some in children.chunks(AT_ONCE) {
        let paths: Vec<String> = some.iter().map(|child| format!("{dir}/{}", child.node)).collect();
        let reads = join_all(paths.iter().map(|path| session.data(path))).await;
        for (child, read) in some.iter().zip(reads) {
            match read {
                Ok((data, stat)) => {
                    let note = Note::read(&data);
                    seen.push(Seen { child: child.clone(), note, data, stat });
                }
                Err(Trouble::NoNode) => {}
                Err(trouble) => return Err(trouble),
            }
        }
    }
    Ok(seen)
}

impl Seen {
    fn holder(&self, session: &Session, mode: Mode) -> Holder {
        let token = self.note.as_ref().and_then(|note| note.token);
        let own = || Token::new(self.stat.czxid.unsigned_abs());
        Holder {
            claim: self.claim(),
            mode,
            token: token.or_else(|| mode.is_exclusive().then(own)),
            about: self.about(),
            age: self.age(session),
            // How others keep theirs is not known; a session like ours is likely.
            lease_left: self.note.as_ref().map_or(session.timeout, Note::lease),
            revoked: note::revoked(&self.data).is_some(),
        }
    }

    fn waiter(&self, session: &Session, mode: Mode) -> Waiter {
        Waiter { claim: self.claim(), mode, about: self.about(), age: self.age(session) }
    }

    fn claim(&self) -> crate::token::ClaimId {
        let ours = self.note.as_ref().and_then(Note::claim);
        ours.unwrap_or_else(|| self.child.stranger())
    }

    fn about(&self) -> std::sync::Arc<crate::engine::About> {
        self.note.as_ref().map_or_else(|| note::stranger(&self.data), Note::about)
    }

    /// Since its node was made.
    fn age(&self, session: &Session) -> Duration {
        let made = u64::try_from(self.stat.ctime).unwrap_or_default();
        Duration::from_millis(session.wall_now().saturating_sub(made))
    }

    /// For how long the name stays closed that nobody holds by this node any more.
    fn closed_for(&self, session: &Session) -> Option<Duration> {
        let until = self.note.as_ref()?.closed_until_ms?;
        Some(Duration::from_millis(until.saturating_sub(session.wall_now()).max(1)))
    }

    fn mode(&self, count: usize) -> Mode {
        match (self.child.tag, self.note.as_ref().and_then(|note| note.permits)) {
            (Tag::Write, _) => Mode::Write,
            (Tag::Read, _) => Mode::Read,
            (_, Some((count, of))) => Mode::Permits { count, of },
            (Tag::Lease, None) => {
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                Mode::Permits { count, of: 0 }
            }
            (Tag::Lock, None) => Mode::Exclusive,
        }
    }
}

/// The holders and waiters of a mutex or read/write lock.
async fn line(session: &Session, dir: &str, view: &View, status: &mut Status) -> Answer<()> {
    let delay = match view.noted {
        true => session.seen_closed(dir, view).await?,
        false => Closed::default(),
    };
    status.closed_for = delay.time;
    for seen in read(session, dir, &view.line).await? {
        let Some(position) = view.position(&seen.child.node) else { continue };
        let mode = seen.mode(1);
        // Other programs know no delay, and come in.
        let kept_out = seen.note.is_some() && delay.keeps_out(&seen.child);
        let holds = view.blocker(position).is_none() && !kept_out;
        match (holds, seen.closed_for(session)) {
            (_, Some(closed)) => status.closed_for = status.closed_for.max(closed),
            (true, None) => status.holders.push(seen.holder(session, mode)),
            (false, None) => status.waiters.push(seen.waiter(session, mode)),
        }
    }
    status.token = status.holders.iter().filter_map(|holder| holder.token).max();
    status.holders.sort_by_key(|holder| holder.claim);
    Ok(())
}

/// The holders of permits, and who waits for some.
async fn permits(session: &Session, dir: &str, noted: bool, status: &mut Status) -> Answer<()> {
    let (locks, leases) = (layout::locks(dir), layout::leases(dir));
    // The queue first: whoever gets its permits in between is seen twice
    // rather than not at all, and counted as a holder.
    let (queue, out) = join(session.children(&locks), session.children(&leases)).await;
    let view = |listed: Answer<Vec<String>>| match listed {
        Ok(children) => Ok(View::of(children)),
        Err(Trouble::NoNode) => Ok(View::default()),
        Err(trouble) => Err(trouble),
    };
    let (queue, out) = (view(queue)?, view(out)?);
    if noted {
        status.closed_for = session.seen_closed(dir, &out).await?.time;
    }
    let mut groups: BTreeMap<_, Vec<Seen>> = BTreeMap::new();
    for seen in read(session, &leases, &out.line).await? {
        match seen.closed_for(session) {
            Some(closed) => status.closed_for = status.closed_for.max(closed),
            None => groups.entry(seen.claim()).or_default().push(seen),
        }
    }
    for group in groups.values() {
        if let Some(first) = group.first() {
            status.holders.push(first.holder(session, first.mode(group.len())));
        }
    }
    for seen in read(session, &locks, &queue.line).await? {
        if !groups.contains_key(&seen.claim()) {
            let mode = match seen.mode(1) {
                Mode::Exclusive => Mode::Permits { count: 1, of: 0 },
                mode => mode,
            };
            status.waiters.push(seen.waiter(session, mode));
        }
    }
    Ok(())
}

/// The names in use that start with `prefix`, in order.
pub(super) async fn list(
    session: &Session,
    prefix: &str,
    from: Option<Cursor>,
    limit: usize,
) -> Answer<Page> {
    session.sync().await?;
    let after = from.map(|Cursor(from)| from);
    let mut names: Vec<LockName> = session
        .children("/")
        .await?
        .iter()
        .filter_map(|node| layout::name_of(node))
        .filter(|name| name.as_str().starts_with(prefix))
        .filter(|name| after.as_ref().is_none_or(|after| name.as_str() > after.as_str()))
        .collect();
    names.sort();
    let more = names.len() > LOOKS;
    names.truncate(LOOKS);
    let mut entries: Vec<Status> = Vec::new();
    for some in names.chunks(AT_ONCE) {
        let looks = join_all(some.iter().map(|name| look(session, name))).await;
        for (name, status) in some.iter().zip(looks) {
            let status = status?;
            if !status.is_in_use() {
                continue;
            }
            if entries.len() == limit {
                let last = entries.last().map_or_else(|| name.clone(), |last| last.name.clone());
                return Ok(Page { entries, next: Some(Cursor(last.into())) });
            }
            entries.push(status);
        }
    }
    let next = names.last().filter(|_| more).map(|last| Cursor(last.clone().into()));
    Ok(Page { entries, next })
}
