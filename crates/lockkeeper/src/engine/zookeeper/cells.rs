//! Numbers that are no claims: nodes that stay, changed by compare-and-set.
//!
//! | Node | Data |
//! |---|---|
//! | `NAME/capacity` | a semaphore's: four bytes, big-endian, as Curator's `SharedCount` |
//! | `NAME/fence` | the highest token: eight bytes, big-endian, as Curator's `DistributedAtomicLong` |
//! | `NAME/latch` | JSON: `remaining`, `set` (who set it), `counted` (who has counted), `keep_ms` |
//!
//! A latch is over when its node has not been changed for `keep_ms`, by the
//! servers' wall clock.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zookeeper_client::{CreateMode, Stat};

use super::fault::{Answer, Trouble};
use super::layout::{self, View};
use super::session::Session;
use crate::engine::{Cell, CellOp, CountId, Event, Events, Kind};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::name::LockName;
use crate::token::Token;

/// How often a compare-and-set is tried before the caller hears of it.
const TRIES: u32 = 64;
/// The longest data of a latch; servers take a megabyte.
const MAX_LATCH: usize = 900_000;

/// A count that opens at zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Latch {
    remaining: u32,
    set: CountId,
    counted: Vec<CountId>,
    keep_ms: u64,
}

impl Latch {
    fn cell(&self) -> Cell {
        Cell::Latch { remaining: self.remaining, set: self.set.clone() }
    }

    fn is_over(&self, stat: &Stat, session: &Session) -> bool {
        let changed = u64::try_from(stat.mtime).unwrap_or_default();
        changed.saturating_add(self.keep_ms) <= session.wall_now()
    }
}

/// The node behind a kind of number.
fn node(dir: &str, kind: Kind) -> Option<String> {
    let child = match kind {
        Kind::Semaphore => "capacity",
        Kind::Latch => "latch",
        Kind::Fence => "fence",
        Kind::Mutex | Kind::ReadWrite => return None,
    };
    Some(format!("{dir}/{child}"))
}

/// The number behind a name of this kind.
pub(super) async fn read(session: &Session, dir: &str, kind: Kind) -> Answer<Option<Cell>> {
    let Some(node) = node(dir, kind) else { return Ok(None) };
    if kind == Kind::Latch {
        session.ask_wall().await;
    }
    match session.data(&node).await {
        Ok((data, stat)) => {
            let cell = decode(kind, &data, &stat, session)?;
            Ok((cell != Cell::Absent).then_some(cell))
        }
        Err(Trouble::NoNode) => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

fn decode(kind: Kind, data: &[u8], stat: &Stat, session: &Session) -> Result<Cell> {
    match kind {
        Kind::Semaphore => capacity(data).map(Cell::Capacity),
        Kind::Fence => Ok(Cell::Fence { highest: fence(data)? }),
        Kind::Latch => {
            let latch = latch(data)?;
            Ok(if latch.is_over(stat, session) { Cell::Absent } else { latch.cell() })
        }
        Kind::Mutex | Kind::ReadWrite => Ok(Cell::Absent),
    }
}

fn foreign(what: &str) -> Error {
    invalid(format!("the node {what:?} of this name holds something that is not ours"))
}

/// Reads the data of a capacity.
pub(super) fn capacity(data: &[u8]) -> Result<u32> {
    let bytes: [u8; 4] = data.try_into().map_err(|_| foreign("capacity"))?;
    Ok(u32::from_be_bytes(bytes))
}

fn fence(data: &[u8]) -> Result<Token> {
    let bytes: [u8; 8] = data.try_into().map_err(|_| foreign("fence"))?;
    Ok(Token::new(u64::from_be_bytes(bytes)))
}

fn latch(data: &[u8]) -> Result<Latch> {
    serde_json::from_slice(data).map_err(|_| foreign("latch"))
}

/// Works on the number behind a name.
pub(super) async fn work(
    session: &Arc<Session>,
    events: &Events,
    name: &LockName,
    op: CellOp,
) -> Result<Cell> {
    let (dir, kind) = (layout::dir(name), op.kind());
    let Some(node) = node(&dir, kind) else { return Ok(Cell::Absent) };
    if let CellOp::Look { watch: true, .. } = op {
        tell_later(session, events, name, &node).await?;
    }
    if kind == Kind::Latch {
        session.ask_wall().await;
    }
    for _ in 0..TRIES {
        match step(session, &dir, &node, kind, &op).await {
            // Somebody was faster: look again.
            Err(Trouble::Changed | Trouble::Exists | Trouble::NoNode) => {}
            done => return Ok(done?),
        }
    }
    let text = format!("others change the number of {name:?} all the time");
    Err(Error::new(ErrorKind::Unreachable, text))
}

/// Pushes an event at the next change of a node.
async fn tell_later(
    session: &Arc<Session>,
    events: &Events,
    name: &LockName,
    node: &str,
) -> Result<()> {
    let (_, watcher) = session.exists_and_watch(node).await?;
    let (events, name) = (events.clone(), name.clone());
    tokio::spawn(async move {
        watcher.changed().await;
        events.push(Event::Cell(name));
    });
    Ok(())
}

/// One try: reads, decides, and writes if nobody else has meanwhile.
async fn step(session: &Session, dir: &str, node: &str, kind: Kind, op: &CellOp) -> Answer<Cell> {
    let stored = match session.data(node).await {
        Ok((data, stat)) => Some((data, stat)),
        Err(Trouble::NoNode) => None,
        Err(trouble) => return Err(trouble),
    };
    let Some((data, stat)) = stored else { return make(session, dir, node, kind, op).await };
    let version = Some(stat.version);
    match op {
        CellOp::Look { .. } => Ok(decode(kind, &data, &stat, session)?),
        CellOp::SetCapacity { to } => {
            capacity(&data)?;
            session.set(node, &to.to_be_bytes(), version).await?;
            Ok(Cell::Capacity(*to))
        }
        CellOp::Fence { token } => {
            let highest = fence(&data)?;
            if *token > highest {
                session.set(node, &token.get().to_be_bytes(), version).await?;
            }
            Ok(Cell::Fence { highest: highest.max(*token) })
        }
        CellOp::SetLatch { count, keep, by } => {
            let old = latch(&data)?;
            let over = old.is_over(&stat, session);
            if !over && (old.remaining > 0 || old.set == *by) {
                return Ok(old.cell());
            }
            let new = new_latch(*count, *keep, by);
            session.set(node, &encode(&new)?, version).await?;
            Ok(new.cell())
        }
        CellOp::CountDown { by } => {
            let mut latch = latch(&data)?;
            if latch.is_over(&stat, session) {
                return Ok(Cell::Absent);
            }
            if latch.remaining > 0 && !latch.counted.contains(by) {
                latch.remaining -= 1;
                latch.counted.push(by.clone());
                session.set(node, &encode(&latch)?, version).await?;
            }
            Ok(latch.cell())
        }
        CellOp::RemoveLatch => match session.delete(node).await {
            Ok(()) | Err(Trouble::NoNode) => Ok(Cell::Absent),
            Err(trouble) => Err(trouble),
        },
    }
}

/// Makes a number that is not there, if the operation does that.
async fn make(session: &Session, dir: &str, node: &str, kind: Kind, op: &CellOp) -> Answer<Cell> {
    check_kind(session, dir, kind).await?;
    let (data, cell) = match op {
        CellOp::Look { .. } | CellOp::CountDown { .. } | CellOp::RemoveLatch => {
            return Ok(Cell::Absent);
        }
        CellOp::SetCapacity { to } => (to.to_be_bytes().to_vec(), Cell::Capacity(*to)),
        CellOp::Fence { token } => {
            (token.get().to_be_bytes().to_vec(), Cell::Fence { highest: *token })
        }
        CellOp::SetLatch { count, keep, by } => {
            let latch = new_latch(*count, *keep, by);
            (encode(&latch)?, latch.cell())
        }
    };
    session.make_dir(dir).await?;
    session.create(node, &data, CreateMode::Persistent).await?;
    // Whoever uses the name for something else, and came in between, sees our
    // node; so one of us does not stay.
    if let Err(trouble) = check_kind(session, dir, kind).await {
        if trouble.is_definite() {
            let _ = session.delete(node).await;
        }
        return Err(trouble);
    }
    Ok(cell)
}

async fn check_kind(session: &Session, dir: &str, kind: Kind) -> Answer<()> {
    match session.children(dir).await {
        Ok(children) => Ok(View::of(children).check(kind, dir, None)?),
        Err(Trouble::NoNode) => Ok(()),
        Err(trouble) => Err(trouble),
    }
}

fn new_latch(count: u32, keep: std::time::Duration, by: &CountId) -> Latch {
    let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
    Latch { remaining: count, set: by.clone(), counted: Vec::new(), keep_ms }
}

fn encode(latch: &Latch) -> Result<Vec<u8>> {
    let data = serde_json::to_vec(latch).unwrap_or_default();
    if data.is_empty() || data.len() > MAX_LATCH {
        let text =
            "the ids of this latch's count-downs exceed what a node can hold; use shorter ones";
        return Err(Error::new(ErrorKind::TooMany, text));
    }
    Ok(data)
}
