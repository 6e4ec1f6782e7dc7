//! When a command has to be ended because its lock is ending.
//!
//! The lock's end is known in advance: a guard says until when it can be
//! trusted, and that moment moves on with every renewal. TERM goes out
//! `kill_after` before it, KILL at it, so that nothing of the command runs
//! when the engine may grant the name to somebody else.

use std::time::Duration;

use lockkeeper::{Cause, Hold, Keeper, State};
use tokio::time::Instant;

use crate::args::OnLost;

/// How soon an engine that did not answer is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// What is due now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Ask the command to end. `early`: the lock is still held, but its end is near.
    Term { cause: Cause, early: bool, kill_in: Duration },
    /// End it.
    Kill { cause: Cause },
    /// Tell people, and let it run.
    Tell { cause: Cause },
}

/// Looks after one held lock.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    keeper: &'a Keeper,
    hold: &'a Hold,
    on_lost: OnLost,
    kill_after: Duration,
    /// The end of `--max-hold`, early enough that the command is gone by then.
    max_end: Option<Instant>,
    stage: Stage,
    /// Whether the engine, asked after a break, still has the name for us.
    still_ours: Option<bool>,
}

#[derive(Debug)]
enum Stage {
    /// Nothing is wrong.
    Calm,
    /// TERM is out.
    Ending { kill_at: Instant },
    /// Everything is done that can be.
    Over,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        keeper: &'a Keeper,
        hold: &'a Hold,
        on_lost: OnLost,
        kill_after: Duration,
        max_end: Option<Instant>,
    ) -> Self {
        let stage = Stage::Calm;
        Watch { keeper, hold, on_lost, kill_after, max_end, stage, still_ours: None }
    }

    /// Waits for the next thing to do. Losing this future loses nothing.
    pub(super) async fn next(&mut self) -> Due {
        loop {
            if let Some(due) = self.judge() {
                return due;
            }
            let pause = self.pause();
            match self.stage {
                // The guard's own alarms also count the time a machine sleeps.
                Stage::Calm if self.hold.state() == State::Held => {
                    let _ = tokio::time::timeout(pause, self.hold.at_risk()).await;
                }
                Stage::Calm => {
                    let _ = tokio::time::timeout(pause, self.hold.lost()).await;
                }
                // It may turn out to be somebody else's before its time.
                Stage::Ending { .. } if !matches!(self.hold.state(), State::Lost(_)) => {
                    let _ = tokio::time::timeout(pause, self.hold.lost()).await;
                }
                Stage::Ending { .. } if self.still_ours.is_none() => self.ask(pause).await,
                Stage::Ending { .. } => tokio::time::sleep(pause).await,
                Stage::Over => std::future::pending().await,
            }
        }
    }

    /// What is due at this very moment; the first question after a stop.
    pub(super) fn judge(&mut self) -> Option<Due> {
        let cause = match self.hold.state() {
            State::Lost(cause) => Some(cause),
            State::Held | State::AtRisk => None,
        };
        match (&self.stage, self.on_lost) {
            (Stage::Over, _) => None,
            (Stage::Calm, OnLost::Ignore) => {
                let cause = cause?;
                self.stage = Stage::Over;
                Some(Due::Tell { cause })
            }
            (Stage::Calm, OnLost::Kill) => {
                (cause.is_some() || self.left().is_zero()).then(|| self.kill(cause))
            }
            (Stage::Calm, OnLost::Term) => {
                if cause.is_none() && !self.is_ending() {
                    return None;
                }
                // Broken or stopped in time: there is something left for TERM.
                let kill_in = self.left().min(self.kill_after);
                if kill_in.is_zero() || self.has_passed_on(cause.as_ref()) {
                    return Some(self.kill(cause));
                }
                self.stage = Stage::Ending { kill_at: Instant::now() + kill_in };
                let (early, cause) = (cause.is_none(), cause.unwrap_or(self.coming()));
                Some(Due::Term { cause, early, kill_in })
            }
            (Stage::Ending { kill_at }, _) => {
                let late = *kill_at <= Instant::now() || self.left().is_zero();
                (late || self.has_passed_on(cause.as_ref())).then(|| self.kill(cause))
            }
        }
    }

    fn kill(&mut self, cause: Option<Cause>) -> Due {
        self.stage = Stage::Over;
        Due::Kill { cause: cause.unwrap_or(self.coming()) }
    }

    /// Whether it is time for TERM. Only a lock at risk is near its end: one
    /// that was just handed over is short, and renewed at once.
    fn is_ending(&self) -> bool {
        let at_risk = self.hold.state() != State::Held;
        self.max_left() <= self.kill_after || at_risk && self.hold.valid_for() <= self.kill_after
    }

    /// Whether the name may already be somebody else's, whatever the lease
    /// says. An engine that calls a lease over before its time forgot it.
    fn has_passed_on(&self, cause: Option<&Cause>) -> bool {
        match cause {
            Some(Cause::TakenOver | Cause::HeldTooLong | Cause::Expired) => true,
            Some(Cause::Broken { .. }) => self.still_ours == Some(false),
            _ => false,
        }
    }

    /// Finds out whether a broken lock was freed at once, or waits for us.
    async fn ask(&mut self, limit: Duration) {
        let asked = self.keeper.status(self.hold.name().as_str());
        if let Ok(Ok(status)) = tokio::time::timeout(limit, asked).await {
            let claim = self.hold.claim_id();
            self.still_ours = Some(status.holders.iter().any(|holder| holder.claim == claim));
        } else {
            tokio::time::sleep(limit.min(AGAIN)).await;
        }
    }

    /// How long the lock can be trusted.
    pub(super) fn left(&self) -> Duration {
        self.hold.valid_for().min(self.max_left())
    }

    fn max_left(&self) -> Duration {
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        self.max_end.map_or(Duration::MAX, left)
    }

    /// Why the lock will be lost, if it is not lost yet.
    fn coming(&self) -> Cause {
        if self.max_left() < self.hold.valid_for() { Cause::HeldTooLong } else { Cause::Expired }
    }

    fn pause(&self) -> Duration {
        let early = if self.on_lost == OnLost::Term { self.kill_after } else { Duration::ZERO };
        let pause = match self.stage {
            Stage::Calm => self.left().saturating_sub(early),
            Stage::Ending { kill_at } => {
                kill_at.saturating_duration_since(Instant::now()).min(self.left())
            }
            Stage::Over => Duration::MAX,
        };
        // Timers tick in milliseconds; a shorter pause would spin.
        pause.max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::LockOptions;
    use lockkeeper::engine::Revoke;

    use super::*;

    const LEASE: Duration = Duration::from_millis(600);
    const AFTER: Duration = Duration::from_millis(200);

    async fn guard(max_hold: Option<Duration>) -> (Keeper, lockkeeper::Guard) {
        leased(LEASE, max_hold).await
    }

    async fn leased(lease: Duration, max_hold: Option<Duration>) -> (Keeper, lockkeeper::Guard) {
        let keeper = Keeper::connect("memory:").await.unwrap();
        let mut options = LockOptions::default().with_lease(lease);
        options.max_hold = max_hold;
        let guard = keeper.mutex("x").with_options(options).lock().await.unwrap();
        (keeper, guard)
    }

    fn test<F: Future<Output = ()>>(body: F) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(body);
    }

    #[test]
    fn term_goes_out_before_the_end_and_kill_at_it() {
        test(async {
            let (keeper, guard) = guard(None).await;
            let start = Instant::now();
            let end = start + Duration::from_millis(500);
            let mut watch = Watch::new(&keeper, &guard, OnLost::Term, AFTER, Some(end));
            let Due::Term { cause, early: true, kill_in } = watch.next().await else { panic!() };
            assert_eq!(cause, Cause::HeldTooLong);
            assert!(start.elapsed() >= Duration::from_millis(295), "{:?}", start.elapsed());
            assert!(kill_in <= AFTER);
            assert_eq!(watch.next().await, Due::Kill { cause: Cause::HeldTooLong });
            assert!(Instant::now() >= end - Duration::from_millis(5));
            let rest = tokio::time::timeout(Duration::from_millis(50), watch.next()).await;
            assert!(rest.is_err(), "nothing is due after KILL");
        });
    }

    #[test]
    fn a_renewed_lock_is_left_alone() {
        test(async {
            let (keeper, guard) = guard(None).await;
            let mut watch = Watch::new(&keeper, &guard, OnLost::Term, AFTER, None);
            let quiet = tokio::time::timeout(LEASE * 3, watch.next()).await;
            assert!(quiet.is_err(), "{quiet:?}");
        });
    }

    #[test]
    fn kill_waits_for_the_end_and_ignore_only_tells() {
        test(async {
            let (keeper, guard) = guard(Some(Duration::from_millis(150))).await;
            let mut kill = Watch::new(&keeper, &guard, OnLost::Kill, AFTER, None);
            let mut ignore = Watch::new(&keeper, &guard, OnLost::Ignore, AFTER, None);
            assert_eq!(kill.next().await, Due::Kill { cause: Cause::HeldTooLong });
            assert_eq!(ignore.next().await, Due::Tell { cause: Cause::HeldTooLong });
        });
    }

    #[test]
    fn there_is_no_time_for_term_when_the_name_has_passed_on() {
        test(async {
            let (keeper, guard) = guard(Some(Duration::from_millis(150))).await;
            let mut watch = Watch::new(&keeper, &guard, OnLost::Term, AFTER, None);
            assert_eq!(watch.next().await, Due::Kill { cause: Cause::HeldTooLong });
        });
    }

    #[test]
    fn kill_does_not_wait_when_the_name_passes_on_after_term() {
        test(async {
            // A lease that is over no sooner than the grace: it must not be
            // what ends the wait.
            let grace = Duration::from_secs(10);
            let (keeper, guard) = leased(grace * 3, Some(Duration::from_millis(500))).await;
            let start = Instant::now();
            let mut watch = Watch::new(&keeper, &guard, OnLost::Term, grace, Some(start + grace));
            assert!(matches!(watch.next().await, Due::Term { early: true, .. }));
            assert_eq!(watch.next().await, Due::Kill { cause: Cause::HeldTooLong });
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        });
    }
    #[test]
    fn a_break_leaves_time_for_term_only_if_the_name_waits_for_us() {
        test(async {
            for (how, waits) in [(Revoke::Orderly, true), (Revoke::Now, false)] {
                let grace = Duration::from_secs(10);
                let (keeper, guard) = leased(grace * 3, None).await;
                let holder = keeper.status("x").await.unwrap().holders.remove(0);
                keeper.revoke("x", &holder, how, "deploy").await.unwrap();
                let cause = guard.lost().await;
                let mut watch = Watch::new(&keeper, &guard, OnLost::Term, grace, None);
                assert!(matches!(watch.next().await, Due::Term { .. }));
                let killed = tokio::time::timeout(grace / 5, watch.next()).await;
                match waits {
                    true => assert!(killed.is_err(), "{killed:?}"),
                    false => assert_eq!(killed, Ok(Due::Kill { cause })),
                }
            }
        });
    }
}
