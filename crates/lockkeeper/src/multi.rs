//! Several mutexes, held together or not at all.

use std::future::Future;
use std::sync::Arc;

use crate::cause::Cause;
use crate::engine::Mode;
use crate::error::{Error, Result, invalid};
use crate::guard::Guard;
use crate::hold::{Released, State};
use crate::mutex::Mutex;
use crate::name::LockName;
use crate::options::LockOptions;
use crate::token::Token;

/// Several mutexes, also of several engines, held together or not at all.
///
/// They are locked in one order (engine, then name) whatever order they are
/// given in, so two that share names cannot wait for each other for ever. One
/// deadline bounds the whole.
///
/// # Examples
/// ```
/// use lockkeeper::Keeper;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let keeper = Keeper::connect("memory:").await?;
/// let transfer = keeper.multi(["account/7", "account/3"]).lock().await?;
/// assert!(keeper.mutex("account/3").try_lock().await?.is_none());
/// for (name, token) in transfer.tokens() {
///     println!("{name}: {token}");
/// }
/// let _ = transfer.release().await?;
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Multi {
    parts: Result<Vec<Mutex>>,
}

impl Multi {
    /// The most parts.
    pub const MAX_PARTS: usize = 1024;

    /// Puts mutexes together, of one keeper or several.
    pub fn of(parts: impl IntoIterator<Item = Mutex>) -> Self {
        Multi { parts: sort(parts.into_iter().take(Self::MAX_PARTS + 1).collect()) }
    }

    /// Sets the options of every part; the wait is that of the whole.
    pub fn with_options(self, options: LockOptions) -> Self {
        let set = |part: Mutex| part.with_options(options.clone());
        Multi { parts: self.parts.map(|parts| parts.into_iter().map(set).collect()) }
    }

    /// Locks every part, waiting up to [`LockOptions::wait`] in all.
    ///
    /// # Errors
    /// As [`Mutex::lock`]; nothing is held then.
    ///
    /// # Cancel safety
    /// Dropping the future loses the places in the queues. Grants already made
    /// are given back in the background; at worst they end with their leases.
    pub async fn lock(&self) -> Result<MultiGuard> {
        let parts = self.parts.as_ref().map_err(Clone::clone)?;
        // The parts share their options, or the most impatient one decides.
        let deadline = parts.iter().map(|part| part.request.deadline()).min();
        let deadline = deadline.ok_or_else(nothing)?;
        let mut guards = Vec::with_capacity(parts.len());
        for part in parts {
            let hold = part.request.lock_until(Mode::Exclusive, deadline).await;
            match hold.and_then(Guard::new) {
                Ok(guard) => guards.push(guard),
                Err(error) => return undo(guards, error).await,
            }
        }
        complete(guards).await
    }

    /// Locks every part if all are free and nobody waits; `None` otherwise.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`]; nothing is held then.
    ///
    /// # Cancel safety
    /// Changes nothing: grants already made are given back in the background.
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        let parts = self.parts.as_ref().map_err(Clone::clone)?;
        let mut guards = Vec::with_capacity(parts.len());
        for part in parts {
            match part.try_lock().await {
                Ok(Some(guard)) => guards.push(guard),
                Ok(None) => {
                    give_back(guards).await;
                    return Ok(None);
                }
                Err(error) => return undo(guards, error).await,
            }
        }
        complete(guards).await.map(Some)
    }
}

fn nothing() -> Error {
    invalid("a multi-lock needs at least one name")
}

/// Puts the parts into the one order, and refuses duplicates.
fn sort(mut parts: Vec<Mutex>) -> Result<Vec<Mutex>> {
    if parts.is_empty() {
        return Err(nothing());
    }
    if parts.len() > Multi::MAX_PARTS {
        let most = Multi::MAX_PARTS;
        return Err(invalid(format!("a multi-lock may have {most} names at most")));
    }
    let mut keys = Vec::with_capacity(parts.len());
    for part in &parts {
        keys.push((part.request.keeper.info().label.clone(), part.request.name.clone()?));
    }
    let key = |part: &Mutex| {
        let name = part.request.name.as_ref().ok().cloned();
        (part.request.keeper.info().label.clone(), name)
    };
    parts.sort_by_cached_key(key);
    keys.sort();
    match keys.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            let name: &LockName = &pair[0].1;
            Err(invalid("a multi-lock must not have the same name twice").about(name))
        }
        None => Ok(parts),
    }
}

/// Checks that nothing was lost while the rest was being got.
async fn complete(guards: Vec<Guard>) -> Result<MultiGuard> {
    match guards.iter().find_map(|guard| guard.check().err()) {
        Some(error) => undo(guards, error).await,
        None => Ok(MultiGuard { guards }),
    }
}

async fn undo<T>(guards: Vec<Guard>, error: Error) -> Result<T> {
    give_back(guards).await;
    Err(error)
}

/// Gives back what was got, all at once; a failure is left to the lease.
async fn give_back(guards: Vec<Guard>) {
    let _ = futures_util::future::join_all(guards.into_iter().map(Guard::release)).await;
}

/// Several locks that are held together; lost when any of them is.
#[must_use = "a guard that is dropped gives its locks back at once"]
#[derive(Debug)]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiGuard {
    /// The token of every part, in the order of locking.
    pub fn tokens(&self) -> impl Iterator<Item = (&LockName, Token)> {
        self.guards.iter().map(|guard| (guard.name(), guard.token()))
    }

    /// The guard of every part, in the order of locking.
    pub fn parts(&self) -> &[Guard] {
        &self.guards
    }

    /// The worst state of any part.
    pub fn state(&self) -> State {
        let mut worst = State::Held;
        for guard in &self.guards {
            match guard.state() {
                State::Lost(cause) => return State::Lost(cause),
                State::AtRisk => worst = State::AtRisk,
                State::Held => {}
            }
        }
        worst
    }

    /// Whether every part is certainly ours at this very moment.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(|guard| guard.is_held())
    }

    /// [`is_held`](Self::is_held) as a result.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost), naming the part that is lost.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(|guard| guard.check())
    }

    /// Waits until any part is lost, and says why.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn lost(&self) -> Cause {
        let lost = self.guards.iter().map(|guard| Box::pin(guard.lost()));
        futures_util::future::select_all(lost).await.0
    }

    /// Gives every part back, and reports the worst outcome.
    ///
    /// # Errors
    /// As [`Guard::release`], of the first part that fails.
    ///
    /// # Cancel safety
    /// May have taken effect: once asked for, the releases go on in the background.
    pub async fn release(self) -> Result<Released> {
        let releases = self.guards.into_iter().map(Guard::release);
        let mut worst = Released::Released;
        for outcome in futures_util::future::join_all(releases).await {
            match outcome? {
                lost @ Released::AlreadyLost(_) => worst = lost,
                Released::Released | Released::StillHeld => {}
            }
        }
        Ok(worst)
    }
}

/// Runs `work` under several locks; see [`Mutex::run`].
impl Multi {
    /// Runs `work` under all locks, and stops it when any is lost.
    ///
    /// # Errors
    /// As [`Mutex::run`].
    ///
    /// # Cancel safety
    /// Drops the work and gives the locks back in the background.
    pub async fn run<T, E, W, F>(&self, work: W) -> Result<T, crate::RunError<T, E>>
    where
        W: FnOnce(Arc<MultiGuard>) -> F,
        F: Future<Output = Result<T, E>>,
    {
        use crate::RunError;
        let guard = Arc::new(self.lock().await.map_err(RunError::NotLocked)?);
        let output = tokio::select! {
            biased;
            cause = guard.lost() => return Err(RunError::Lost { cause, output: None }),
            output = work(guard.clone()) => output,
        };
        if let State::Lost(cause) = guard.state() {
            return Err(RunError::Lost { cause, output: Some(output) });
        }
        let released = match Arc::into_inner(guard) {
            Some(guard) => guard.release().await,
            // The work keeps a guard beyond its end: its drop releases.
            None => Ok(Released::StillHeld),
        };
        match (output, released) {
            (Err(error), _) => Err(RunError::Work(error)),
            (Ok(value), Ok(Released::AlreadyLost(cause))) => {
                Err(RunError::Lost { cause, output: Some(Ok(value)) })
            }
            (Ok(value), Ok(_)) => Ok(value),
            (Ok(value), Err(error)) => Err(RunError::NotReleased { value, error }),
        }
    }
}
