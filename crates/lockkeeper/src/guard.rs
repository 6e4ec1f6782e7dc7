//! Guards: grants in Rust hands.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use crate::cause::Cause;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::{Hold, Released};
use crate::request::Request;
use crate::token::Token;

/// An exclusive lock: a held mutex, or the write side of a read/write lock.
///
/// It is renewed in the background until it is released, dropped or lost.
/// Dropping it gives it back without blocking; [`release`](Self::release)
/// also says how that went.
///
/// A lock is a lease: a process that was stopped, or cut off from its engine,
/// may find that others went on without it. [`check`](Hold::check) before each
/// write tells; only the [`token`](Self::token), checked by whatever is written
/// to, protects the data even from a write that was on its way.
#[must_use = "a guard that is dropped gives its lock back at once"]
pub struct Guard {
    pub(crate) hold: Arc<Hold>,
    token: Token,
}

impl Guard {
    pub(crate) fn new(hold: Hold) -> Result<Self> {
        match hold.shared.token {
            Some(token) => Ok(Guard { hold: Arc::new(hold), token }),
            // The hold is dropped here, which gives the lock back.
            None => Err(Error::new(ErrorKind::Unexpected, "the engine granted without a token")),
        }
    }

    /// Another guard of a lock that is held already.
    pub(crate) fn of(hold: Arc<Hold>) -> Result<Self> {
        hold.check()?;
        match hold.shared.token {
            Some(token) => Ok(Guard { hold, token }),
            None => Err(Error::new(ErrorKind::Unexpected, "a held lock without a token")),
        }
    }

    /// The fencing token: larger than every earlier one of this name.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Gives the lock back and says whether it was ours until now.
    ///
    /// An engine that does not answer is asked again until the lease is over.
    ///
    /// # Errors
    /// [`ErrorKind::Unknown`] when it never answered; the lease has ended the
    /// lock by then.
    ///
    /// # Cancel safety
    /// May have taken effect: once asked for, the release goes on in the background.
    pub async fn release(self) -> Result<Released> {
        release(self.hold).await
    }
}

/// Releases the last guard of a hold.
pub(crate) async fn release(hold: Arc<Hold>) -> Result<Released> {
    match Arc::into_inner(hold) {
        Some(hold) => hold.give_back().await,
        None => Ok(Released::StillHeld),
    }
}

impl Deref for Guard {
    type Target = Hold;
    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.hold, f)
    }
}

/// What work under a lock is given: its token, and a way to look at the lock.
#[derive(Clone, Debug)]
pub struct Scope(Arc<Hold>);

impl Scope {
    /// The fencing token, if the lock has one.
    pub fn token(&self) -> Option<Token> {
        self.0.shared.token
    }
}

impl Deref for Scope {
    type Target = Hold;
    fn deref(&self) -> &Hold {
        &self.0
    }
}

/// Why work under a lock did not simply succeed.
///
/// What the work itself returned is never masked by what happened to the lock.
#[derive(Debug)]
pub enum RunError<T, E> {
    /// The lock was not got, so the work never started.
    NotLocked(Error),
    /// The work failed, under the lock.
    Work(E),
    /// The lock was lost. The work was stopped where it stood, unless it had
    /// ended by then: `output` is what it returned.
    Lost {
        /// Why it was lost.
        cause: Cause,
        /// What the work returned, if it was not stopped.
        output: Option<Result<T, E>>,
    },
    /// The work succeeded under the lock; giving it back did not.
    NotReleased {
        /// What the work returned.
        value: T,
        /// Why the release failed. The lease ends the lock.
        error: Error,
    },
}

impl<T, E: fmt::Display> fmt::Display for RunError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::NotLocked(error) => write!(f, "not locked: {error}"),
            RunError::Work(error) => write!(f, "the work failed: {error}"),
            RunError::Lost { cause, output: None } => {
                write!(f, "the work was stopped because the lock was lost: {cause}")
            }
            RunError::Lost { cause, output: Some(_) } => {
                write!(f, "the work ended after the lock was lost: {cause}")
            }
            RunError::NotReleased { error, .. } => {
                write!(f, "the work succeeded, but the lock was not released: {error}")
            }
        }
    }
}

impl<T: fmt::Debug, E: std::error::Error + 'static> std::error::Error for RunError<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RunError::NotLocked(error) | RunError::NotReleased { error, .. } => Some(error),
            RunError::Work(error) => Some(error),
            RunError::Lost { .. } => None,
        }
    }
}

/// Gives a lock back when the work under it is over, however that came: a
/// scope that was carried elsewhere must not keep it.
struct Working(Arc<Hold>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

/// Runs `work` under a lock that is held, and stops it when the lock is lost.
pub(crate) async fn run_under<T, E, W, F>(hold: Hold, work: W) -> Result<T, RunError<T, E>>
where
    W: FnOnce(Scope) -> F,
    F: Future<Output = Result<T, E>>,
{
    let hold = Working(Arc::new(hold));
    let hold = &hold.0;
    let output = {
        let work = work(Scope(hold.clone()));
        tokio::select! {
            biased;
            cause = hold.lost() => return Err(RunError::Lost { cause, output: None }),
            output = work => output,
        }
    };
    // Work that blocked its thread past the lease ends here unstopped: it must
    // not pass for done under the lock.
    if let crate::State::Lost(cause) = hold.state() {
        return Err(RunError::Lost { cause, output: Some(output) });
    }
    let released = hold.give_back().await;
    match (output, released) {
        (Err(error), _) => Err(RunError::Work(error)),
        (Ok(value), Ok(Released::AlreadyLost(cause))) => {
            Err(RunError::Lost { cause, output: Some(Ok(value)) })
        }
        (Ok(value), Ok(_)) => Ok(value),
        (Ok(value), Err(error)) => Err(RunError::NotReleased { value, error }),
    }
}

/// A read lock: others may read beside it, nobody writes.
///
/// It has no token of its own, because readers are not ordered among
/// themselves; one that stepped down from a write lock keeps that one's.
#[must_use = "a guard that is dropped gives its lock back at once"]
pub struct ReadGuard {
    hold: Arc<Hold>,
}

impl ReadGuard {
    pub(crate) fn new(hold: Hold) -> Self {
        ReadGuard { hold: Arc::new(hold) }
    }

    /// The token of the write lock it stepped down from, if it did.
    pub fn token(&self) -> Option<Token> {
        self.hold.shared.token
    }

    /// Refuses: two readers that both upgrade would wait for each other for ever.
    ///
    /// Release and write anew, or write first and
    /// [step down](WriteGuard::downgrade).
    ///
    /// # Errors
    /// Always [`ErrorKind::Unsupported`]; the read lock stays held.
    pub fn upgrade(&self) -> Result<WriteGuard> {
        let text = "a read lock cannot become a write lock: two that try would wait for each \
                    other; release it and write anew, or write first and downgrade";
        Err(Error::new(ErrorKind::Unsupported, text).about(self.name()).during("upgrade"))
    }

    /// Gives the lock back, as [`Guard::release`] does.
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// May have taken effect: once asked for, the release goes on in the background.
    pub async fn release(self) -> Result<Released> {
        release(self.hold).await
    }
}

impl Deref for ReadGuard {
    type Target = Hold;
    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.hold, f)
    }
}

/// A write lock: an exclusive [`Guard`] that can step down to a read lock.
#[must_use = "a guard that is dropped gives its lock back at once"]
pub struct WriteGuard {
    guard: Guard,
    request: Request,
}

impl WriteGuard {
    pub(crate) fn new(hold: Hold, request: Request) -> Result<Self> {
        Ok(WriteGuard { guard: Guard::new(hold)?, request })
    }

    /// Becomes a read lock without letting a writer in between.
    ///
    /// Readers that wait come in; the token stays the write lock's.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the write lock was lost; nothing is held then.
    ///
    /// # Cancel safety
    /// May have taken effect: both locks are given back in the background.
    pub async fn downgrade(self) -> Result<ReadGuard> {
        self.guard.check()?;
        let read = ReadGuard::new(self.request.step_down(self.guard.claim_id()).await?);
        // A late duplicate may have granted the write claim anew, after others
        // had the name: stepping down from that is not what was asked for.
        if read.token() != Some(self.guard.token()) {
            return Err(Error::lost(Cause::TakenOver).during("downgrade"));
        }
        match self.guard.release().await? {
            Released::AlreadyLost(cause) => Err(Error::lost(cause).during("downgrade")),
            Released::Released | Released::StillHeld => Ok(read),
        }
    }

    /// Gives the lock back, as [`Guard::release`] does.
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// May have taken effect: once asked for, the release goes on in the background.
    pub async fn release(self) -> Result<Released> {
        self.guard.release().await
    }
}

impl Deref for WriteGuard {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.guard, f)
    }
}

/// Some permits of a semaphore.
///
/// Permits have an id, but no token: their holders are not ordered among
/// themselves, so no number could say who is the latest.
#[must_use = "permits that are dropped are given back at once"]
pub struct Permits {
    hold: Arc<Hold>,
}

impl Permits {
    pub(crate) fn new(hold: Hold) -> Self {
        Permits { hold: Arc::new(hold) }
    }

    /// How many permits these are.
    pub fn count(&self) -> u32 {
        match self.hold.mode() {
            crate::engine::Mode::Permits { count, .. } => count,
            _ => 0,
        }
    }

    /// Gives the permits back, as [`Guard::release`] does.
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// May have taken effect: once asked for, the release goes on in the background.
    pub async fn release(self) -> Result<Released> {
        release(self.hold).await
    }
}

impl Deref for Permits {
    type Target = Hold;
    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.hold, f)
    }
}
