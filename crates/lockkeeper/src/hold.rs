//! What a guard knows of its grant, and how it learns that it is lost.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use crate::cause::Cause;
use crate::clock::{Clock, Moment};
use crate::driver::link::{Link, Message};
use crate::engine::{Claim, Mode};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::token::{ClaimId, Token};

/// How sure a guard is of its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is held.
    Held,
    /// It is held, but the engine has not answered for half the lease, or the
    /// connection is down. The time to wind up.
    AtRisk,
    /// It is no longer certainly ours, for this cause; never again.
    Lost(Cause),
}

/// How a release ended.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lock was ours until now, and is given back.
    Released,
    /// It had been lost before, for this cause: what was done under it may
    /// have overlapped with somebody else's work, unless tokens were checked.
    AlreadyLost(Cause),
    /// Other guards of the same re-entry still hold it.
    StillHeld,
}

/// The part of a grant that driver and guards share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) claim: Arc<Claim>,
    pub(crate) token: Option<Token>,
    clock: Clock,
    process: u32,
    valid_until: AtomicU64,
    at_risk_at: AtomicU64,
    link_down: AtomicBool,
    lost: OnceLock<Cause>,
    changed: Notify,
}

impl Shared {
    pub(crate) fn new(
        claim: Arc<Claim>,
        token: Option<Token>,
        clock: Clock,
        valid_until: Moment,
    ) -> Self {
        let now = clock.now();
        let shared = Shared {
            claim,
            token,
            clock,
            process: std::process::id(),
            valid_until: AtomicU64::new(0),
            at_risk_at: AtomicU64::new(0),
            link_down: AtomicBool::new(false),
            lost: OnceLock::new(),
            changed: Notify::new(),
        };
        shared.set(valid_until, now);
        shared
    }

    fn set(&self, valid_until: Moment, now: Moment) {
        // Half of the lease without an answer is a risk; a grant that was
        // handed over lasts less than a lease, until it is confirmed.
        let left = valid_until.since(now);
        let calm = left - left.min(self.claim.lease) / 2;
        self.at_risk_at.store((now + calm).as_nanos(), Ordering::Relaxed);
        self.valid_until.store(valid_until.as_nanos(), Ordering::Release);
    }

    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    pub(crate) fn at_risk_at(&self) -> Moment {
        Moment::from_nanos(self.at_risk_at.load(Ordering::Relaxed))
    }

    /// Takes over a renewed validity; refuses once the grant is lost.
    pub(crate) fn extend(&self, valid_until: Moment, now: Moment) -> bool {
        // An answer that comes after the end revives nothing: whoever looked
        // in between has been told "lost".
        if self.lost.get().is_some() || now >= self.valid_until() {
            return false;
        }
        self.link_down.store(false, Ordering::Relaxed);
        if valid_until > self.valid_until() {
            self.set(valid_until, now);
        }
        true
    }

    pub(crate) fn set_link_down(&self) {
        if !self.link_down.swap(true, Ordering::Relaxed) {
            self.changed.notify_waiters();
        }
    }

    /// Wakes those who wait for a risk; the state itself is told by the clock.
    pub(crate) fn tell(&self) {
        self.changed.notify_waiters();
    }

    /// Ends the grant for good and wakes everyone. Returns whether this did it.
    pub(crate) fn lose(&self, cause: Cause) -> bool {
        let first = self.lost.set(cause).is_ok();
        if first {
            self.changed.notify_waiters();
        }
        first
    }

    pub(crate) fn cause(&self) -> Option<&Cause> {
        self.lost.get()
    }

    pub(crate) fn state(&self) -> State {
        if let Some(cause) = self.lost.get() {
            return State::Lost(cause.clone());
        }
        // A forked child has the memory of its parent, but not its locks.
        if std::process::id() != self.process {
            return State::Lost(Cause::EngineGone);
        }
        let now = self.clock.now();
        if now >= self.valid_until() {
            // Sticky, so that no later answer can contradict what we say now.
            self.lose(Cause::Expired);
            return State::Lost(self.lost.get().cloned().unwrap_or(Cause::Expired));
        }
        if self.link_down.load(Ordering::Relaxed) || now >= self.at_risk_at() {
            return State::AtRisk;
        }
        State::Held
    }

    async fn until(&self, wanted: impl Fn(&State) -> bool) -> State {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Registered before the look, so that no change falls between.
            changed.as_mut().enable();
            let state = self.state();
            if wanted(&state) {
                return state;
            }
            changed.await;
        }
    }
}

/// What every guard can tell about its lock. Guards dereference to it.
///
/// Dropping the guard gives the lock back in the background, without blocking.
pub struct Hold {
    pub(crate) shared: Arc<Shared>,
    pub(crate) link: Arc<Link>,
    pub(crate) ended: AtomicBool,
}

impl Hold {
    pub(crate) fn new(shared: Arc<Shared>, link: Arc<Link>) -> Self {
        Hold { shared, link, ended: AtomicBool::new(false) }
    }

    /// The name that is held.
    pub fn name(&self) -> &LockName {
        &self.shared.claim.name
    }

    /// In which way it is held.
    pub fn mode(&self) -> Mode {
        self.shared.claim.mode
    }

    /// The id of the claim that holds, as [`Holder::claim`](crate::engine::Holder::claim) shows it.
    pub fn claim_id(&self) -> ClaimId {
        self.shared.claim.id
    }

    /// Until when the lock can be trusted if it is not renewed.
    pub fn valid_until(&self) -> Moment {
        self.shared.valid_until()
    }

    /// For how long the lock can be trusted if it is not renewed.
    pub fn valid_for(&self) -> Duration {
        self.valid_until().since(self.shared.clock.now())
    }

    /// How sure the guard is of its lock, without asking anyone.
    pub fn state(&self) -> State {
        self.shared.state()
    }

    /// Whether the lock is certainly ours at this very moment.
    ///
    /// Compares the clock, so it is right even as the first statement after
    /// the process was stopped or the machine slept. A machine that its own
    /// host paused has no clock to tell; only a checked token covers that.
    pub fn is_held(&self) -> bool {
        !matches!(self.state(), State::Lost(_))
    }

    /// [`is_held`](Self::is_held) as a result: put `?` before each write.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost), with the cause.
    pub fn check(&self) -> Result<()> {
        match self.state() {
            State::Lost(cause) => Err(Error::lost(cause).about(self.name()).during("check")),
            _ => Ok(()),
        }
    }

    /// Asks the engine whether the lock is still ours, and renews it.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when it is not;
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) when no answer came
    /// while the guard is still valid.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn verify(&self) -> Result<()> {
        self.check()?;
        let (reply, answer) = tokio::sync::oneshot::channel();
        self.link.post(Message::Verify { claim: self.claim_id(), reply })?;
        match answer.await {
            Ok(answer) => answer.map_err(|error| error.about(self.name()).during("verify")),
            Err(_) => self.check(),
        }
    }

    /// Waits until the lock is lost, and says why.
    ///
    /// Fires by the clock even if the engine is silent, before the engine can
    /// give the name to somebody else.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn lost(&self) -> Cause {
        match self.shared.until(|state| matches!(state, State::Lost(_))).await {
            State::Lost(cause) => cause,
            State::Held | State::AtRisk => Cause::Expired,
        }
    }

    /// Waits until the lock is at risk or lost: the time to wind up.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn at_risk(&self) -> State {
        self.shared.until(|state| *state != State::Held).await
    }

    /// Gives the lock back in the background, unless that has begun.
    pub(crate) fn let_go(&self) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            let message = Message::Release { claim: self.claim_id(), reply: None };
            // No driver, nothing to release: the lease ends it.
            let _ = self.link.post(message);
        }
    }

    /// Gives the lock back and reports how that went.
    pub(crate) async fn give_back(&self) -> Result<Released> {
        self.ended.store(true, Ordering::Relaxed);
        let (reply, answer) = tokio::sync::oneshot::channel();
        let message = Message::Release { claim: self.claim_id(), reply: Some(reply) };
        let gone = || match self.state() {
            State::Lost(cause) => Ok(Released::AlreadyLost(cause)),
            _ => Ok(Released::AlreadyLost(Cause::EngineGone)),
        };
        if self.link.post(message).is_err() {
            return gone();
        }
        match answer.await {
            Ok(answer) => answer.map_err(|error| error.about(self.name()).during("release")),
            Err(_) => gone(),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", self.name())
            .field("mode", &self.mode())
            .field("token", &self.shared.token)
            .field("state", &self.state())
            .finish()
    }
}
