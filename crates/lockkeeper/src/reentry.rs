//! Re-entry by an explicit value, never by thread or task.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, oneshot};

use crate::clock::Moment;
use crate::engine::Mode;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::name::LockName;
use crate::request::Request;
use crate::token::KeeperId;

/// Somebody who may take the same lock again: pass it along with the work.
///
/// Whoever has (a clone of) the value re-enters what it holds. Counting is
/// local, so re-entry costs no round trip and keeps the token.
#[derive(Clone, Debug, Default)]
pub struct Reentry(Arc<Mutex<HashMap<(KeeperId, LockName), Slot>>>);

/// What is held under one name; locked while somebody is getting it.
type Slot = Arc<AsyncMutex<Weak<Hold>>>;

impl Reentry {
    /// Somebody new, who holds nothing.
    pub fn new() -> Self {
        Reentry::default()
    }

    pub(crate) async fn lock(&self, request: &Request) -> Result<Guard> {
        let deadline = request.deadline();
        let name = request.name.clone()?;
        let slot = self.slot(request.keeper.id(), name.clone());
        // Two tasks may share the value: the second waits for the first's
        // answer and then re-enters, instead of queueing behind it for ever.
        let mut held = tokio::select! {
            biased;
            held = slot.lock() => held,
            _ = alarm(request, deadline) => {
                let error = Error::new(ErrorKind::TimedOut, "not free in time");
                return Err(error.about(&name).during("lock"));
            }
        };
        if let Some(hold) = held.upgrade() {
            return Guard::of(hold).map_err(|error| error.during("lock"));
        }
        let guard = Guard::new(request.lock_until(Mode::Exclusive, deadline).await?)?;
        *held = Arc::downgrade(&guard.hold);
        Ok(guard)
    }

    pub(crate) async fn try_lock(&self, request: &Request) -> Result<Option<Guard>> {
        let slot = self.slot(request.keeper.id(), request.name.clone()?);
        // Somebody who shares the value is just getting it: busy, for now.
        let Ok(mut held) = slot.try_lock() else { return Ok(None) };
        if let Some(hold) = held.upgrade() {
            return Guard::of(hold).map(Some).map_err(|error| error.during("lock"));
        }
        let Some(hold) = request.try_lock(Mode::Exclusive).await? else { return Ok(None) };
        let guard = Guard::new(hold)?;
        *held = Arc::downgrade(&guard.hold);
        Ok(Some(guard))
    }

    fn slot(&self, keeper: KeeperId, name: LockName) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() > 64 {
            // Only slots that nobody holds or is getting.
            let idle = |slot: &Slot| {
                Arc::strong_count(slot) == 1
                    && slot.try_lock().is_ok_and(|held| held.strong_count() == 0)
            };
            slots.retain(|_, slot| !idle(slot));
        }
        slots.entry((keeper, name)).or_default().clone()
    }
}

/// Rings at the deadline, by the keeper's clock: callers may have no runtime.
async fn alarm(request: &Request, deadline: Moment) {
    if deadline == Moment::NEVER {
        return std::future::pending().await;
    }
    let clock = request.keeper.link().clock.clone();
    let (ring, rung) = oneshot::channel();
    let sleep = move |_| async move {
        loop {
            let left = deadline.since(clock.now());
            if left.is_zero() {
                let _ = ring.send(());
                return Ok(());
            }
            tokio::time::sleep(left).await;
        }
    };
    // An error means a closed keeper, which the caller learns by locking.
    let _ = request.keeper.link().call("wait", sleep).await;
    let _ = rung.await;
}
