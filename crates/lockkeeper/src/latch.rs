//! The latch: a count that opens at zero.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Moment;
use crate::driver::{ANSWER_LIMIT, CellWatch, REPOLL, limited};
use crate::engine::{Cell, CellOp, CountId, Kind};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::request::Request;
use crate::semaphore::unexpected;

/// A latch of the engine: closed until it has been counted down to zero.
///
/// Use it to let some wait until others are done: loaders and a reporter,
/// parts and a whole. Once open it stays open for as long as it is kept; then
/// it is absent. Each count-down has an id and counts once, so a worker that
/// is started again does not count twice.
///
/// # Examples
/// ```
/// use lockkeeper::{Keeper, Opened};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let keeper = Keeper::connect("memory:").await?;
/// let loaded = keeper.latch("loaded/2026-11-15");
/// loaded.set(2).await?;
/// loaded.count_down("worker-1").await?;
/// loaded.count_down("worker-1").await?; // counts once
/// assert_eq!(loaded.remaining().await?, Some(1));
/// loaded.count_down("worker-2").await?;
/// assert_eq!(loaded.wait().await?, Opened::Open);
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Latch {
    request: Request,
    keep: Duration,
}

/// How a wait for a latch ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It is open.
    Open,
    /// It was removed, or its time was over, before it opened.
    Gone,
}

impl Latch {
    /// The largest count.
    pub const MAX_COUNT: u32 = 65_536;
    /// The longest id of a count-down, in bytes.
    pub const MAX_ID_BYTES: usize = 256;

    pub(crate) fn new(request: Request) -> Self {
        Latch { request, keep: Duration::from_secs(24 * 60 * 60) }
    }

    /// Sets how long [`wait`](Self::wait) waits; the other options have no meaning here.
    pub fn with_options(mut self, options: LockOptions) -> Self {
        self.request.set_options(&options);
        self
    }

    /// Sets how long the latch is kept after its last change. Default 24 h.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Sets the latch to `count`, unless a closed one is there.
    ///
    /// Returns whether it was set: a count-down in progress is never reset.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a count of zero or above the limit.
    ///
    /// # Cancel safety
    /// May have taken effect; repeating it changes nothing more.
    pub async fn set(&self, count: u32) -> Result<bool> {
        if !(1..=Self::MAX_COUNT).contains(&count) {
            let most = Self::MAX_COUNT;
            return Err(
                invalid(format!("a latch counts from 1 to {most}, not {count}")).during("latch")
            );
        }
        if self.keep.is_zero() || self.keep > LockOptions::MAX_LEASE * 366 {
            return Err(invalid("a latch is kept for up to a year, and not for no time at all")
                .during("latch"));
        }
        let by = CountId(self.fresh_id().into());
        let op = CellOp::SetLatch { count, keep: self.keep, by: by.clone() };
        match self.cell(op).await? {
            Cell::Latch { set, .. } => Ok(set == by),
            other => Err(unexpected(&other)),
        }
    }

    /// Counts down once per id, and returns how many are missing.
    ///
    /// `None` means that there is no such latch.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an empty or long id; otherwise what the engine says.
    ///
    /// # Cancel safety
    /// May have taken effect; repeating it with the same id counts once.
    pub async fn count_down(&self, id: impl AsRef<str>) -> Result<Option<u32>> {
        let id = id.as_ref();
        if id.is_empty() || id.len() > Self::MAX_ID_BYTES {
            let most = Self::MAX_ID_BYTES;
            return Err(invalid(format!("a count-down's id has 1 to {most} bytes")).during("latch"));
        }
        remaining(self.cell(CellOp::CountDown { by: CountId(id.into()) }).await?)
    }

    /// How many count-downs are missing; `None` if there is no such latch.
    ///
    /// # Errors
    /// What the engine says.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn remaining(&self) -> Result<Option<u32>> {
        remaining(self.cell(CellOp::Look { kind: Kind::Latch, watch: false }).await?)
    }

    /// Removes the latch; those who wait for it learn that it is gone.
    ///
    /// # Errors
    /// What the engine says.
    ///
    /// # Cancel safety
    /// May have taken effect; repeating it is harmless.
    pub async fn remove(&self) -> Result<()> {
        self.cell(CellOp::RemoveLatch).await.map(|_| ())
    }

    /// Waits until the latch is open, up to [`LockOptions::wait`].
    ///
    /// A latch that is not there yet is waited for as well.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when it did not open in time,
    /// [`ErrorKind::Unreachable`] when the engine did not answer at all.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn wait(&self) -> Result<Opened> {
        let name = self.request.supports(Kind::Latch)?.clone();
        let link = self.request.keeper.link().clone();
        let watch = Watch::on(self.request.keeper.cells(), &name);
        let (deadline, clock) = (self.request.deadline(), link.clock.clone());
        let wait = move |engine: Arc<dyn crate::Engine>| async move {
            let mut wait =
                Wait { watch, deadline, started: clock.now(), answered: false, set: None };
            loop {
                let look = CellOp::Look { kind: Kind::Latch, watch: true };
                // Marked before the look, so that no change falls between.
                wait.watch.news.mark_unchanged();
                let answer = limited(wait.limit(clock.now()), engine.cell(&name, look)).await;
                if let Some(end) = wait.judge(answer, clock.now(), &name) {
                    return end;
                }
                let pause = wait.deadline.since(clock.now()).min(REPOLL);
                let _ = tokio::time::timeout(pause, wait.watch.news.changed()).await;
            }
        };
        link.call("wait", wait).await
    }

    async fn cell(&self, op: CellOp) -> Result<Cell> {
        let name = self.request.supports(Kind::Latch)?.clone();
        self.request.keeper.cell("latch", name, op).await
    }

    fn fresh_id(&self) -> String {
        let link = self.request.keeper.link();
        format!("{}-{}", link.keeper, link.number())
    }
}

fn remaining(cell: Cell) -> Result<Option<u32>> {
    match cell {
        Cell::Latch { remaining, .. } => Ok(Some(remaining)),
        Cell::Absent => Ok(None),
        other => Err(unexpected(&other)),
    }
}

/// The state of one wait.
struct Wait {
    watch: Watch,
    deadline: Moment,
    started: Moment,
    answered: bool,
    /// Which latch was seen, so that its end is not taken for a late start.
    set: Option<CountId>,
}

impl Wait {
    /// How long the next look may take. No patience at all still means one
    /// honest question.
    fn limit(&self, now: Moment) -> Duration {
        match self.deadline.since(now) {
            Duration::ZERO => ANSWER_LIMIT,
            left => left.min(ANSWER_LIMIT),
        }
    }

    /// Whether this answer, or the time it took, ends the wait.
    fn judge(
        &mut self,
        answer: Result<Cell>,
        now: Moment,
        name: &LockName,
    ) -> Option<Result<Opened>> {
        match answer {
            Ok(Cell::Latch { remaining: 0, .. }) => return Some(Ok(Opened::Open)),
            Ok(Cell::Latch { set, .. }) => {
                self.answered = true;
                if self.set.get_or_insert_with(|| set.clone()) != &set {
                    return Some(Ok(Opened::Gone));
                }
            }
            Ok(Cell::Absent) if self.set.is_some() => return Some(Ok(Opened::Gone)),
            Ok(Cell::Absent) => self.answered = true,
            Ok(other) => return Some(Err(unexpected(&other))),
            Err(error) if !error.is_silence() => return Some(Err(error)),
            Err(error) if !self.answered && now.since(self.started) >= ANSWER_LIMIT => {
                let text = "the engine did not answer";
                return Some(Err(Error::new(ErrorKind::Unreachable, text).because(error)));
            }
            Err(_) => {}
        }
        (now >= self.deadline).then(|| {
            let kind = if self.answered { ErrorKind::TimedOut } else { ErrorKind::Unreachable };
            Err(Error::new(kind, "not open in time").about(name))
        })
    }
}

/// A wish to hear of changes to a latch, taken back when dropped.
struct Watch {
    cells: CellWatch,
    name: LockName,
    news: watch::Receiver<u64>,
}

impl Watch {
    fn on(cells: &CellWatch, name: &LockName) -> Self {
        let mut map = cells.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = map.entry(name.clone()).or_insert_with(|| watch::channel(0).0);
        let news = sender.subscribe();
        drop(map);
        Watch { cells: cells.clone(), name: name.clone(), news }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut map = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        // Our own receiver is still counted.
        if map.get(&self.name).is_some_and(|sender| sender.receiver_count() <= 1) {
            map.remove(&self.name);
        }
    }
}
