//! The mutex: one holder at a time, first come, first served.

use std::future::Future;

use crate::driver::link::Waiting;
use crate::engine::Mode;
use crate::error::Result;
use crate::guard::{Guard, RunError, Scope, run_under};
use crate::options::LockOptions;
use crate::reentry::Reentry;
use crate::request::Request;

/// A mutex of the engine: one holder at a time, first come, first served.
///
/// Use it when one process at a time may do something. Use a
/// [`RwLock`](crate::RwLock) when many may look and one may change, and a
/// [`Semaphore`](crate::Semaphore) when a few may at once.
///
/// It protects against everyone who takes the same name on the same engine,
/// and as long as the guard [is held](crate::Hold::is_held). It does not protect
/// data from a holder that was paused and writes on; the
/// [token](Guard::token), checked where the data is, does.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use lockkeeper::{Keeper, LockOptions};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let keeper = Keeper::connect("memory:").await?;
/// let orders = keeper
///     .mutex("orders/42")
///     .with_options(LockOptions::default().with_wait(Duration::from_secs(5)));
///
/// let first = orders.lock().await?;
/// assert!(orders.try_lock().await?.is_none());
/// let token = first.token();
/// drop(first);
/// assert!(orders.lock().await?.token() > token);
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    pub(crate) request: Request,
}

impl Mutex {
    pub(crate) fn new(request: Request) -> Self {
        Mutex { request }
    }

    /// Sets the options; they are checked at the first call.
    pub fn with_options(mut self, options: LockOptions) -> Self {
        self.request.set_options(&options);
        self
    }

    /// Calls `tell` while waiting: whom for, how many are ahead, how long already.
    ///
    /// It is called after half a second of waiting and about once a second
    /// from then on, in the task that waits.
    pub fn on_wait(mut self, tell: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.request.set_hook(tell);
        self
    }

    /// Locks, waiting up to [`LockOptions::wait`].
    ///
    /// # Errors
    /// [`TimedOut`](crate::ErrorKind::TimedOut) when others held the name for the whole wait,
    /// [`Unreachable`](crate::ErrorKind::Unreachable) when the engine did not answer at all,
    /// [`Invalid`](crate::ErrorKind::Invalid) for a bad name or option, or a name of another kind,
    /// [`TooMany`](crate::ErrorKind::TooMany) when [`LockOptions::max_waiters`] wait already.
    ///
    /// # Cancel safety
    /// Dropping the future loses the place in the queue. A grant already made
    /// is given back in the background; at worst it ends with its lease.
    pub async fn lock(&self) -> Result<Guard> {
        Guard::new(self.request.lock(Mode::Exclusive).await?)
    }

    /// Locks if nobody holds the name or waits for it; `None` otherwise.
    ///
    /// Leaves nothing behind, and never overtakes a queue.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); an error means "could not find out".
    ///
    /// # Cancel safety
    /// Changes nothing: a grant already made is given back in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.request.try_lock(Mode::Exclusive).await?.map(Guard::new).transpose()
    }

    /// Locks on behalf of `me`, who may hold it already.
    ///
    /// If so, the same grant gets one more guard, at once and without asking
    /// anyone; the lock is given back with the last of them.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if `me` holds a guard of this name that is
    /// lost; otherwise as [`lock`](Self::lock).
    ///
    /// # Cancel safety
    /// Dropping the future loses the place in the queue.
    ///
    /// # Examples
    /// ```
    /// use lockkeeper::{Keeper, Reentry};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let keeper = Keeper::connect("memory:").await?;
    /// let me = Reentry::new();
    /// let outer = keeper.mutex("orders").lock_as(&me).await?;
    /// let inner = keeper.mutex("orders").lock_as(&me).await?;
    /// assert_eq!(outer.token(), inner.token());
    /// # Ok::<(), lockkeeper::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn lock_as(&self, me: &Reentry) -> Result<Guard> {
        me.lock(&self.request).await
    }

    /// Locks on behalf of `me` if it can be had at once; `None` otherwise.
    ///
    /// # Errors
    /// As [`lock_as`](Self::lock_as).
    ///
    /// # Cancel safety
    /// Changes nothing: a grant already made is given back in the background.
    pub async fn try_lock_as(&self, me: &Reentry) -> Result<Option<Guard>> {
        me.try_lock(&self.request).await
    }

    /// Runs `work` under the lock, and stops it when the lock is lost.
    ///
    /// The work is a future: stopping it means not polling it any more, so
    /// it ends at its next await. It is given the token and a way to check.
    ///
    /// # Errors
    /// [`RunError`] keeps "not locked", "the work failed", "lock lost" and
    /// "release failed" apart.
    ///
    /// # Cancel safety
    /// Drops the work and gives the lock back in the background.
    ///
    /// # Examples
    /// ```
    /// use lockkeeper::Keeper;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let keeper = Keeper::connect("memory:").await.unwrap();
    /// let sum = keeper
    ///     .mutex("orders")
    ///     .run(|scope| async move {
    ///         println!("token {:?}", scope.token());
    ///         Ok::<_, std::io::Error>(40 + 2)
    ///     })
    ///     .await;
    /// assert_eq!(sum.unwrap(), 42);
    /// # });
    /// ```
    pub async fn run<T, E, W, F>(&self, work: W) -> Result<T, RunError<T, E>>
    where
        W: FnOnce(Scope) -> F,
        F: Future<Output = Result<T, E>>,
    {
        let hold = self.request.lock(Mode::Exclusive).await.map_err(RunError::NotLocked)?;
        run_under(hold, work).await
    }
}
