//! The semaphore: a few at once.

use std::future::Future;

use crate::driver::link::Waiting;
use crate::engine::{Cell, CellOp, Kind, Mode};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::guard::{Permits, RunError, Scope, run_under};
use crate::options::LockOptions;
use crate::request::Request;

/// A semaphore of the engine: as many permits as its capacity, each leased.
///
/// Permits come back when they are dropped, and by themselves when their
/// holder dies; there is no way to give back more than was taken. The first
/// use stores the capacity; who asks for another one is told the stored one.
///
/// # Examples
/// ```
/// use lockkeeper::Keeper;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let keeper = Keeper::connect("memory:").await?;
/// let api = keeper.semaphore("partner-api", 2);
/// let (one, two) = (api.acquire().await?, api.acquire().await?);
/// assert!(api.try_acquire().await?.is_none());
/// drop(one);
/// let three = api.acquire().await?;
/// # drop((two, three));
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    request: Request,
    capacity: u32,
}

impl Semaphore {
    /// The largest capacity.
    pub const MAX_CAPACITY: u32 = 1_000_000;

    pub(crate) fn new(request: Request, capacity: u32) -> Self {
        Semaphore { request, capacity }
    }

    /// Sets the options; they are checked at the first call.
    pub fn with_options(mut self, options: LockOptions) -> Self {
        self.request.set_options(&options);
        self
    }

    /// Calls `tell` while waiting, as [`Mutex::on_wait`](crate::Mutex::on_wait) does.
    pub fn on_wait(mut self, tell: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.request.set_hook(tell);
        self
    }

    /// Takes one permit.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) when the stored capacity differs, naming it;
    /// otherwise as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Dropping the future loses the place in the queue.
    pub async fn acquire(&self) -> Result<Permits> {
        self.acquire_many(1).await
    }

    /// Takes several permits together; at the head of the queue it holds back
    /// those behind, so that it is not starved by smaller ones.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// Dropping the future loses the place in the queue.
    pub async fn acquire_many(&self, count: u32) -> Result<Permits> {
        Ok(Permits::new(self.request.lock(self.mode(count)?).await?))
    }

    /// Takes one permit if it is free and nobody waits; `None` otherwise.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// Changes nothing: a grant already made is given back in the background.
    pub async fn try_acquire(&self) -> Result<Option<Permits>> {
        self.try_acquire_many(1).await
    }

    /// Takes several permits if they are free and nobody waits; `None` otherwise.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// Changes nothing: a grant already made is given back in the background.
    pub async fn try_acquire_many(&self, count: u32) -> Result<Option<Permits>> {
        Ok(self.request.try_lock(self.mode(count)?).await?.map(Permits::new))
    }

    /// Runs `work` with one permit, as [`Mutex::run`](crate::Mutex::run) does.
    ///
    /// # Errors
    /// As [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Cancel safety
    /// Drops the work and gives the permit back in the background.
    pub async fn run<T, E, W, F>(&self, work: W) -> Result<T, RunError<T, E>>
    where
        W: FnOnce(Scope) -> F,
        F: Future<Output = Result<T, E>>,
    {
        let mode = self.mode(1).map_err(RunError::NotLocked)?;
        let hold = self.request.lock(mode).await.map_err(RunError::NotLocked)?;
        run_under(hold, work).await
    }

    /// Changes the stored capacity. Permits above a smaller one drain away.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a capacity of zero or above the limit.
    ///
    /// # Cancel safety
    /// May have taken effect; repeating it is harmless.
    pub async fn set_capacity(&mut self, to: u32) -> Result<()> {
        check_capacity(to)?;
        match self.cell(CellOp::SetCapacity { to }).await? {
            Cell::Capacity(stored) if stored == to => {
                self.capacity = to;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The stored capacity; `None` if nobody has used the semaphore.
    ///
    /// # Errors
    /// What the engine says.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn stored_capacity(&self) -> Result<Option<u32>> {
        match self.cell(CellOp::Look { kind: Kind::Semaphore, watch: false }).await? {
            Cell::Capacity(stored) => Ok(Some(stored)),
            Cell::Absent => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    async fn cell(&self, op: CellOp) -> Result<Cell> {
        let name = self.request.supports(Kind::Semaphore)?.clone();
        self.request.keeper.cell("capacity", name, op).await
    }

    fn mode(&self, count: u32) -> Result<Mode> {
        check_capacity(self.capacity)?;
        if count == 0 || count > self.capacity {
            let capacity = self.capacity;
            return Err(
                invalid(format!("{count} permits of a capacity of {capacity}")).during("acquire")
            );
        }
        Ok(Mode::Permits { count, of: self.capacity })
    }
}

fn check_capacity(capacity: u32) -> Result<()> {
    let most = Semaphore::MAX_CAPACITY;
    if (1..=most).contains(&capacity) {
        return Ok(());
    }
    Err(invalid(format!("a capacity must be 1 to {most}, not {capacity}")))
}

pub(crate) fn unexpected(cell: &Cell) -> Error {
    Error::new(ErrorKind::Unexpected, format!("the engine answered {cell:?}"))
}
