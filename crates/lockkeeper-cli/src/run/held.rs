//! A held lock, whichever kind it is.

use lockkeeper::engine::Mode;
use lockkeeper::{
    Guard, Hold, Keeper, LockOptions, Permits, ReadGuard, Released, Result, Token, Waiting,
    WriteGuard,
};

/// The guard of whatever `run` asked for.
#[derive(Debug)]
pub(super) enum Held {
    Exclusive(Guard),
    Write(WriteGuard),
    Read(ReadGuard),
    Permits(Permits),
}

impl Held {
    /// What the guard knows of its lock.
    pub(super) fn hold(&self) -> &Hold {
        match self {
            Held::Exclusive(guard) => guard,
            Held::Write(guard) => guard,
            Held::Read(guard) => guard,
            Held::Permits(guard) => guard,
        }
    }

    /// The fencing token, if this kind of lock has one.
    pub(super) fn token(&self) -> Option<Token> {
        match self {
            Held::Exclusive(guard) => Some(guard.token()),
            Held::Write(guard) => Some(guard.token()),
            Held::Read(_) | Held::Permits(_) => None,
        }
    }

    /// Gives it back.
    pub(super) async fn release(self) -> Result<Released> {
        match self {
            Held::Exclusive(guard) => guard.release().await,
            Held::Write(guard) => guard.release().await,
            Held::Read(guard) => guard.release().await,
            Held::Permits(guard) => guard.release().await,
        }
    }
}

/// Asks for a name; `None` if others have it and `patient` is false.
pub(super) async fn ask(
    keeper: &Keeper,
    wish: &Wish,
    patient: bool,
    tell: impl Fn(&Waiting) + Send + Sync + 'static,
) -> Result<Option<Held>> {
    let (name, options) = (&wish.name, wish.options.clone());
    let rwlock = |options| keeper.rwlock(name).with_options(options);
    match (wish.mode, patient) {
        (Mode::Exclusive, true) => {
            let mutex = keeper.mutex(name).with_options(options).on_wait(tell);
            mutex.lock().await.map(Held::Exclusive).map(Some)
        }
        (Mode::Exclusive, false) => {
            let mutex = keeper.mutex(name).with_options(options);
            Ok(mutex.try_lock().await?.map(Held::Exclusive))
        }
        (Mode::Write, true) => {
            rwlock(options).on_wait(tell).write().await.map(Held::Write).map(Some)
        }
        (Mode::Write, false) => Ok(rwlock(options).try_write().await?.map(Held::Write)),
        (Mode::Read, true) => rwlock(options).on_wait(tell).read().await.map(Held::Read).map(Some),
        (Mode::Read, false) => Ok(rwlock(options).try_read().await?.map(Held::Read)),
        (Mode::Permits { count, of }, patient) => {
            let semaphore = keeper.semaphore(name, of).with_options(options);
            if patient {
                let permits = semaphore.on_wait(tell).acquire_many(count).await;
                return permits.map(Held::Permits).map(Some);
            }
            Ok(semaphore.try_acquire_many(count).await?.map(Held::Permits))
        }
    }
}

/// What `run` wants to hold, and how.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) mode: Mode,
    pub(super) options: LockOptions,
}
