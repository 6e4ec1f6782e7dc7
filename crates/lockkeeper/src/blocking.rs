//! The same calls for code without async.
//!
//! It is the same door: calls post a message to the keeper's thread and park
//! this one until the answer comes. That works with or without a runtime, and
//! from inside one too, where it blocks the executor's thread like any other
//! blocking call; renewals are not affected, they live elsewhere.
//!
//! A [`Mutex`] is re-entrant per thread, as people expect of a blocking lock;
//! its [`Guard`] therefore stays on its thread.
//!
//! # Examples
//! ```
//! use lockkeeper::blocking::Keeper;
//!
//! let keeper = Keeper::connect("memory:")?;
//! let outer = keeper.mutex("orders").lock()?;
//! let inner = keeper.mutex("orders").lock()?; // the same thread re-enters
//! assert_eq!(outer.token(), inner.token());
//! # Ok::<(), lockkeeper::Error>(())
//! ```

use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::cause::Cause;
use crate::engine::{Connect, Cursor, EngineInfo, Found, Holder, Page, Revoke, Status};
use crate::error::Result;
use crate::hold::Released;
use crate::latch::Opened;
use crate::options::LockOptions;
use crate::reentry::Reentry;
use crate::token::Token;

/// Runs `future` to its end on this very thread, with or without a runtime.
fn wait<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        thread::park();
    }
}

thread_local! {
    /// Who this thread is to re-entrant locks.
    static ME: Reentry = Reentry::new();
}

/// [`lockkeeper::Keeper`](crate::Keeper) for code without async.
#[derive(Clone, Debug)]
pub struct Keeper(crate::Keeper);

impl Keeper {
    /// Opens the engine behind a URL; see [`Keeper::connect`](crate::Keeper::connect).
    ///
    /// # Errors
    /// As [`Keeper::connect`](crate::Keeper::connect).
    pub fn connect(url: &str) -> Result<Self> {
        wait(crate::Keeper::connect(url)).map(Keeper)
    }

    /// Opens an engine of your own; see [`Keeper::new`](crate::Keeper::new).
    ///
    /// # Errors
    /// As [`Keeper::new`](crate::Keeper::new).
    pub fn new(connect: impl Connect) -> Result<Self> {
        wait(crate::Keeper::new(connect)).map(Keeper)
    }

    /// The same keeper for async code.
    pub fn as_async(&self) -> &crate::Keeper {
        &self.0
    }

    /// Names a mutex, re-entrant per thread.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex(self.0.mutex(name))
    }

    /// Names a read/write lock.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock(self.0.rwlock(name))
    }

    /// Names a semaphore.
    pub fn semaphore(&self, name: impl AsRef<str>, capacity: u32) -> Semaphore {
        Semaphore(self.0.semaphore(name, capacity))
    }

    /// Names a latch.
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        Latch(self.0.latch(name))
    }

    /// Names a fence.
    pub fn fence(&self, resource: impl AsRef<str>) -> Fence {
        Fence(self.0.fence(resource))
    }

    /// Names several mutexes that are held together or not at all.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Multi {
        Multi(self.0.multi(names))
    }

    /// Says what the engine is and what it promises.
    pub fn info(&self) -> &EngineInfo {
        self.0.info()
    }

    /// Tells who holds and who waits for a name.
    ///
    /// # Errors
    /// As [`Keeper::status`](crate::Keeper::status).
    pub fn status(&self, name: impl AsRef<str>) -> Result<Status> {
        wait(self.0.status(name))
    }

    /// Lists the names in use that start with `prefix`, a page at a time.
    ///
    /// # Errors
    /// As [`Keeper::list`](crate::Keeper::list).
    pub fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page> {
        wait(self.0.list(prefix, from, limit))
    }

    /// Takes a grant from its owner; see [`Keeper::revoke`](crate::Keeper::revoke).
    ///
    /// # Errors
    /// As [`Keeper::revoke`](crate::Keeper::revoke).
    pub fn revoke(
        &self,
        name: impl AsRef<str>,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Result<Found> {
        wait(self.0.revoke(name, victim, how, reason))
    }

    /// Gives back everything this keeper holds and ends it.
    ///
    /// # Errors
    /// As [`Keeper::close`](crate::Keeper::close).
    pub fn close(&self) -> Result<()> {
        wait(self.0.close())
    }
}

/// [`lockkeeper::Mutex`](crate::Mutex) for code without async, re-entrant per thread.
#[derive(Clone, Debug)]
pub struct Mutex(crate::Mutex);

impl Mutex {
    /// Sets the options; they are checked at the first call.
    pub fn with_options(self, options: LockOptions) -> Self {
        Mutex(self.0.with_options(options))
    }

    /// Locks, waiting up to [`LockOptions::wait`]; re-enters what this thread holds.
    ///
    /// # Errors
    /// As [`Mutex::lock_as`](crate::Mutex::lock_as).
    pub fn lock(&self) -> Result<Guard> {
        let me = ME.with(Reentry::clone);
        wait(self.0.lock_as(&me)).map(Guard::new)
    }

    /// Locks if nobody holds the name or waits for it; re-enters what this thread holds.
    ///
    /// # Errors
    /// As [`Mutex::try_lock_as`](crate::Mutex::try_lock_as).
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        let me = ME.with(Reentry::clone);
        Ok(wait(self.0.try_lock_as(&me))?.map(Guard::new))
    }
}

/// An exclusive lock that stays on its thread.
#[must_use = "a guard that is dropped gives its lock back at once"]
#[derive(Debug)]
pub struct Guard {
    guard: crate::Guard,
    /// Re-entry is per thread: a guard elsewhere would let two threads in.
    here: PhantomData<*const ()>,
}

impl Guard {
    fn new(guard: crate::Guard) -> Self {
        Guard { guard, here: PhantomData }
    }

    /// Gives the lock back and says whether it was ours until now.
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<Released> {
        wait(self.guard.release())
    }

    /// Blocks until the lock is lost, and says why.
    pub fn lost(&self) -> Cause {
        wait(self.guard.lost())
    }

    /// Asks the engine whether the lock is still ours.
    ///
    /// # Errors
    /// As [`Hold::verify`](crate::Hold::verify).
    pub fn verify(&self) -> Result<()> {
        wait(self.guard.verify())
    }
}

impl Deref for Guard {
    type Target = crate::Guard;
    fn deref(&self) -> &crate::Guard {
        &self.guard
    }
}

/// [`lockkeeper::RwLock`](crate::RwLock) for code without async.
#[derive(Clone, Debug)]
pub struct RwLock(crate::RwLock);

impl RwLock {
    /// Sets the options; they are checked at the first call.
    pub fn with_options(self, options: LockOptions) -> Self {
        RwLock(self.0.with_options(options))
    }

    /// Locks for reading, beside other readers.
    ///
    /// # Errors
    /// As [`RwLock::read`](crate::RwLock::read).
    pub fn read(&self) -> Result<ReadGuard> {
        wait(self.0.read()).map(ReadGuard)
    }

    /// Locks for reading if no writer holds or waits; `None` otherwise.
    ///
    /// # Errors
    /// As [`RwLock::try_read`](crate::RwLock::try_read).
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(wait(self.0.try_read())?.map(ReadGuard))
    }

    /// Locks for writing, alone.
    ///
    /// # Errors
    /// As [`RwLock::write`](crate::RwLock::write).
    pub fn write(&self) -> Result<WriteGuard> {
        wait(self.0.write()).map(WriteGuard)
    }

    /// Locks for writing if nobody holds or waits; `None` otherwise.
    ///
    /// # Errors
    /// As [`RwLock::try_write`](crate::RwLock::try_write).
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(wait(self.0.try_write())?.map(WriteGuard))
    }
}

/// A read lock; see [`lockkeeper::ReadGuard`](crate::ReadGuard).
#[must_use = "a guard that is dropped gives its lock back at once"]
#[derive(Debug)]
pub struct ReadGuard(crate::ReadGuard);

impl ReadGuard {
    /// Gives the lock back and says whether it was ours until now.
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<Released> {
        wait(self.0.release())
    }
}

impl Deref for ReadGuard {
    type Target = crate::ReadGuard;
    fn deref(&self) -> &crate::ReadGuard {
        &self.0
    }
}

/// A write lock; see [`lockkeeper::WriteGuard`](crate::WriteGuard).
#[must_use = "a guard that is dropped gives its lock back at once"]
#[derive(Debug)]
pub struct WriteGuard(crate::WriteGuard);

impl WriteGuard {
    /// Becomes a read lock without letting a writer in between.
    ///
    /// # Errors
    /// As [`WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    pub fn downgrade(self) -> Result<ReadGuard> {
        wait(self.0.downgrade()).map(ReadGuard)
    }

    /// Gives the lock back and says whether it was ours until now.
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<Released> {
        wait(self.0.release())
    }
}

impl Deref for WriteGuard {
    type Target = crate::WriteGuard;
    fn deref(&self) -> &crate::WriteGuard {
        &self.0
    }
}

/// [`lockkeeper::Semaphore`](crate::Semaphore) for code without async.
#[derive(Clone, Debug)]
pub struct Semaphore(crate::Semaphore);

impl Semaphore {
    /// Sets the options; they are checked at the first call.
    pub fn with_options(self, options: LockOptions) -> Self {
        Semaphore(self.0.with_options(options))
    }

    /// Takes one permit.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`](crate::Semaphore::acquire).
    pub fn acquire(&self) -> Result<Permits> {
        wait(self.0.acquire()).map(Permits)
    }

    /// Takes several permits together.
    ///
    /// # Errors
    /// As [`Semaphore::acquire_many`](crate::Semaphore::acquire_many).
    pub fn acquire_many(&self, count: u32) -> Result<Permits> {
        wait(self.0.acquire_many(count)).map(Permits)
    }

    /// Takes one permit if it is free and nobody waits; `None` otherwise.
    ///
    /// # Errors
    /// As [`Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    pub fn try_acquire(&self) -> Result<Option<Permits>> {
        Ok(wait(self.0.try_acquire())?.map(Permits))
    }

    /// Takes several permits if they are free and nobody waits; `None` otherwise.
    ///
    /// # Errors
    /// As [`Semaphore::try_acquire_many`](crate::Semaphore::try_acquire_many).
    pub fn try_acquire_many(&self, count: u32) -> Result<Option<Permits>> {
        Ok(wait(self.0.try_acquire_many(count))?.map(Permits))
    }

    /// Changes the stored capacity.
    ///
    /// # Errors
    /// As [`Semaphore::set_capacity`](crate::Semaphore::set_capacity).
    pub fn set_capacity(&mut self, to: u32) -> Result<()> {
        wait(self.0.set_capacity(to))
    }

    /// The stored capacity; `None` if nobody has used the semaphore.
    ///
    /// # Errors
    /// As [`Semaphore::stored_capacity`](crate::Semaphore::stored_capacity).
    pub fn stored_capacity(&self) -> Result<Option<u32>> {
        wait(self.0.stored_capacity())
    }
}

/// Some permits; see [`lockkeeper::Permits`](crate::Permits).
#[must_use = "permits that are dropped are given back at once"]
#[derive(Debug)]
pub struct Permits(crate::Permits);

impl Permits {
    /// Gives the permits back and says whether they were ours until now.
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<Released> {
        wait(self.0.release())
    }
}

impl Deref for Permits {
    type Target = crate::Permits;
    fn deref(&self) -> &crate::Permits {
        &self.0
    }
}

/// [`lockkeeper::Latch`](crate::Latch) for code without async.
#[derive(Clone, Debug)]
pub struct Latch(crate::Latch);

impl Latch {
    /// Sets how long [`wait`](Self::wait) waits.
    pub fn with_options(self, options: LockOptions) -> Self {
        Latch(self.0.with_options(options))
    }

    /// Sets the latch to `count`, unless a closed one is there.
    ///
    /// # Errors
    /// As [`Latch::set`](crate::Latch::set).
    pub fn set(&self, count: u32) -> Result<bool> {
        wait(self.0.set(count))
    }

    /// Counts down once per id, and returns how many are missing.
    ///
    /// # Errors
    /// As [`Latch::count_down`](crate::Latch::count_down).
    pub fn count_down(&self, id: impl AsRef<str>) -> Result<Option<u32>> {
        wait(self.0.count_down(id))
    }

    /// How many count-downs are missing; `None` if there is no such latch.
    ///
    /// # Errors
    /// As [`Latch::remaining`](crate::Latch::remaining).
    pub fn remaining(&self) -> Result<Option<u32>> {
        wait(self.0.remaining())
    }

    /// Removes the latch; those who wait for it learn that it is gone.
    ///
    /// # Errors
    /// As [`Latch::remove`](crate::Latch::remove).
    pub fn remove(&self) -> Result<()> {
        wait(self.0.remove())
    }

    /// Waits until the latch is open, up to [`LockOptions::wait`].
    ///
    /// # Errors
    /// As [`Latch::wait`](crate::Latch::wait).
    pub fn wait(&self) -> Result<Opened> {
        wait(self.0.wait())
    }
}

/// [`lockkeeper::Fence`](crate::Fence) for code without async.
#[derive(Clone, Debug)]
pub struct Fence(crate::Fence);

impl Fence {
    /// Accepts a token as high as the highest seen; remembers it.
    ///
    /// # Errors
    /// As [`Fence::check`](crate::Fence::check).
    pub fn check(&self, token: Token) -> Result<()> {
        wait(self.0.check(token))
    }

    /// The highest token seen, if any was.
    ///
    /// # Errors
    /// As [`Fence::highest`](crate::Fence::highest).
    pub fn highest(&self) -> Result<Option<Token>> {
        wait(self.0.highest())
    }
}

/// [`lockkeeper::Multi`](crate::Multi) for code without async; not re-entrant.
#[derive(Clone, Debug)]
pub struct Multi(crate::Multi);

impl Multi {
    /// Sets the options of every part; the wait is that of the whole.
    pub fn with_options(self, options: LockOptions) -> Self {
        Multi(self.0.with_options(options))
    }

    /// Locks every part, waiting up to [`LockOptions::wait`] in all.
    ///
    /// # Errors
    /// As [`Multi::lock`](crate::Multi::lock).
    pub fn lock(&self) -> Result<MultiGuard> {
        wait(self.0.lock()).map(MultiGuard)
    }

    /// Locks every part if all are free and nobody waits; `None` otherwise.
    ///
    /// # Errors
    /// As [`Multi::try_lock`](crate::Multi::try_lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        Ok(wait(self.0.try_lock())?.map(MultiGuard))
    }
}

/// Several locks; see [`lockkeeper::MultiGuard`](crate::MultiGuard).
#[must_use = "a guard that is dropped gives its locks back at once"]
#[derive(Debug)]
pub struct MultiGuard(crate::MultiGuard);

impl MultiGuard {
    /// Gives every part back, and reports the worst outcome.
    ///
    /// # Errors
    /// As [`MultiGuard::release`](crate::MultiGuard::release).
    pub fn release(self) -> Result<Released> {
        wait(self.0.release())
    }
}

impl Deref for MultiGuard {
    type Target = crate::MultiGuard;
    fn deref(&self) -> &crate::MultiGuard {
        &self.0
    }
}
