//! The read/write lock: one writer or many readers.

use std::future::Future;

use crate::driver::link::Waiting;
use crate::engine::Mode;
use crate::error::Result;
use crate::guard::{ReadGuard, RunError, Scope, WriteGuard, run_under};
use crate::options::LockOptions;
use crate::request::Request;

/// A read/write lock of the engine: one writer or many readers.
///
/// First come, first served in batches: readers that come after a waiting
/// writer wait behind it, so neither side starves. Use it when many may look
/// and one may change; a plain [`Mutex`](crate::Mutex) is cheaper when reads
/// are short.
///
/// # Examples
/// ```
/// use lockkeeper::Keeper;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let keeper = Keeper::connect("memory:").await?;
/// let config = keeper.rwlock("config");
/// let (one, two) = (config.read().await?, config.read().await?);
/// assert!(config.try_write().await?.is_none());
/// drop((one, two));
/// let write = config.write().await?;
/// let token = write.token();
/// let read = write.downgrade().await?;
/// assert_eq!(read.token(), Some(token));
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    request: Request,
}

impl RwLock {
    pub(crate) fn new(request: Request) -> Self {
        RwLock { request }
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

    /// Locks for reading, beside other readers.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Dropping the future loses the place in the queue.
    pub async fn read(&self) -> Result<ReadGuard> {
        Ok(ReadGuard::new(self.request.lock(Mode::Read).await?))
    }

    /// Locks for reading if no writer holds or waits; `None` otherwise.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// Changes nothing: a grant already made is given back in the background.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(self.request.try_lock(Mode::Read).await?.map(ReadGuard::new))
    }

    /// Locks for writing, alone.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Dropping the future loses the place in the queue.
    pub async fn write(&self) -> Result<WriteGuard> {
        WriteGuard::new(self.request.lock(Mode::Write).await?, self.request.clone())
    }

    /// Locks for writing if nobody holds or waits; `None` otherwise.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// Changes nothing: a grant already made is given back in the background.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        let hold = self.request.try_lock(Mode::Write).await?;
        hold.map(|hold| WriteGuard::new(hold, self.request.clone())).transpose()
    }

    /// Runs `work` under a read lock, as [`Mutex::run`](crate::Mutex::run) does.
    ///
    /// # Errors
    /// As [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Cancel safety
    /// Drops the work and gives the lock back in the background.
    pub async fn run_reading<T, E, W, F>(&self, work: W) -> Result<T, RunError<T, E>>
    where
        W: FnOnce(Scope) -> F,
        F: Future<Output = Result<T, E>>,
    {
        let hold = self.request.lock(Mode::Read).await.map_err(RunError::NotLocked)?;
        run_under(hold, work).await
    }

    /// Runs `work` under the write lock, as [`Mutex::run`](crate::Mutex::run) does.
    ///
    /// # Errors
    /// As [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Cancel safety
    /// Drops the work and gives the lock back in the background.
    pub async fn run_writing<T, E, W, F>(&self, work: W) -> Result<T, RunError<T, E>>
    where
        W: FnOnce(Scope) -> F,
        F: Future<Output = Result<T, E>>,
    {
        let hold = self.request.lock(Mode::Write).await.map_err(RunError::NotLocked)?;
        run_under(hold, work).await
    }
}
