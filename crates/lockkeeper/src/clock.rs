//! The only reader of time.
//!
//! Validity is measured on a clock that counts the time a machine sleeps
//! (`CLOCK_BOOTTIME` on Linux). Ordinary timers stop while a laptop lid is
//! closed; a guard that trusted them would still say "held" when it is opened.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use crate::error::Result;

/// An instant on this host's [`Clock`]; comparable within the host only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// Later than every instant a clock will show.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// Makes the instant this many nanoseconds after the clock's own zero.
    pub const fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// Nanoseconds since the clock's own zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub const fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Durations beyond five centuries saturate.
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(nanos(span)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;
    fn sub(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(nanos(span)))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Moment::NEVER => f.write_str("never"),
            Moment(nanos) => write!(f, "{:?}", Duration::from_nanos(nanos)),
        }
    }
}

/// Tells the time by which grants are valid.
///
/// # Examples
/// ```
/// use lockkeeper::Clock;
///
/// let clock = Clock::system();
/// let before = clock.now();
/// assert!(clock.now() >= before);
/// ```
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Tokio(tokio::time::Instant),
}

impl Clock {
    /// The host's clock that counts suspend.
    pub const fn system() -> Self {
        Clock(Source::System)
    }

    /// A clock that follows tokio's, so that a paused runtime pauses it too.
    ///
    /// For tests of what happens when time passes; it does not count suspend.
    /// Must be made, and asked, inside a tokio runtime.
    pub fn tokio() -> Self {
        Clock(Source::Tokio(tokio::time::Instant::now()))
    }

    /// The present instant.
    pub fn now(&self) -> Moment {
        match self.0 {
            Source::System => system_now(),
            // An hour's start keeps "a lease ago" representable.
            Source::Tokio(zero) => Moment(0) + Duration::from_secs(3600) + zero.elapsed(),
        }
    }
}

#[cfg(target_os = "linux")]
fn system_now() -> Moment {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // The kernel never reports a negative time since boot.
    Moment(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

#[cfg(not(target_os = "linux"))]
fn system_now() -> Moment {
    use std::sync::OnceLock;
    use std::time::Instant;
    static ZERO: OnceLock<Instant> = OnceLock::new();
    Moment(0) + Duration::from_secs(3600) + ZERO.get_or_init(Instant::now).elapsed()
}

/// The one timer of a driver, on the same clock as the grants.
#[derive(Debug)]
pub(crate) struct Alarm {
    clock: Clock,
    #[cfg(target_os = "linux")]
    fd: Option<boottime::TimerFd>,
}

impl Alarm {
    /// Makes a timer; must be called inside the runtime that will wait for it.
    pub(crate) fn new(clock: &Clock) -> Result<Self> {
        Ok(Alarm {
            clock: clock.clone(),
            #[cfg(target_os = "linux")]
            fd: match clock.0 {
                Source::System => Some(boottime::TimerFd::new()?),
                Source::Tokio(_) => None,
            },
        })
    }

    /// Returns at `at`, or a little earlier: the caller looks at the clock again.
    ///
    /// May be dropped and called anew at any time.
    pub(crate) async fn ring(&mut self, at: Moment) {
        if at == Moment::NEVER {
            return std::future::pending().await;
        }
        #[cfg(target_os = "linux")]
        if let Some(fd) = &mut self.fd {
            if self.clock.now() < at {
                fd.ring(at).await;
            }
            return;
        }
        let left = at.since(self.clock.now());
        let nap = match self.clock.0 {
            // These timers stop with the machine: look again often enough to
            // notice a suspend within the 50 ms that `lost()` promises.
            Source::System => left.min(Duration::from_millis(40)),
            Source::Tokio(_) => left,
        };
        tokio::time::sleep(nap).await;
    }
}

#[cfg(target_os = "linux")]
mod boottime {
    use std::os::fd::OwnedFd;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use super::Moment;
    use crate::error::{Error, ErrorKind, Result};

    /// A kernel timer that goes off at once when the machine wakes too late.
    #[derive(Debug)]
    pub(super) struct TimerFd {
        fd: AsyncFd<OwnedFd>,
        armed: Moment,
    }

    impl TimerFd {
        pub(super) fn new() -> Result<Self> {
            let failed = |error: std::io::Error| {
                Error::new(ErrorKind::Unexpected, "no kernel timer to be had").because(error)
            };
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let fd = timerfd_create(TimerfdClockId::Boottime, flags)
                .map_err(|error| failed(error.into()))?;
            // Its replacement is unsafe because a caller could close the
            // descriptor early; an owned one that nobody else sees cannot be.
            #[allow(deprecated)]
            let fd = AsyncFd::with_interest(fd, Interest::READABLE).map_err(failed)?;
            Ok(TimerFd { fd, armed: Moment::NEVER })
        }

        pub(super) async fn ring(&mut self, at: Moment) {
            // An alarm that is set too early costs one look at the clock; one
            // system call per change of the earliest deadline would cost more.
            if at < self.armed {
                self.arm(at);
            }
            loop {
                let Ok(mut ready) = self.fd.readable().await else { return };
                let mut count = [0; 8];
                match rustix::io::read(self.fd.get_ref(), &mut count) {
                    Err(error) if error == rustix::io::Errno::AGAIN => ready.clear_ready(),
                    _ => break,
                }
            }
            self.armed = Moment::NEVER;
        }

        fn arm(&mut self, at: Moment) {
            let once = Itimerspec {
                it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
                it_value: Timespec {
                    tv_sec: (at.as_nanos() / 1_000_000_000) as _,
                    tv_nsec: (at.as_nanos() % 1_000_000_000) as _,
                },
            };
            // Fails only for values out of range; `at` is a clock reading plus
            // a bounded lease or wait, and NEVER does not come here.
            if timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::ABSTIME, &once).is_ok() {
                self.armed = at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_alarm_rings_on_time_and_can_be_moved_forward() {
        let clock = Clock::system();
        let mut alarm = Alarm::new(&clock).unwrap();
        let start = clock.now();
        let far = start + Duration::from_secs(60);
        let near = start + Duration::from_millis(20);
        tokio::select! {
            biased;
            _ = alarm.ring(far) => panic!("rang early"),
            _ = std::future::ready(()) => {}
        }
        while clock.now() < near {
            alarm.ring(near).await;
        }
        assert!(clock.now().since(start) < Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_moves_only_with_tokio() {
        let clock = Clock::tokio();
        let start = clock.now();
        assert_eq!(clock.now(), start);
        let mut alarm = Alarm::new(&clock).unwrap();
        alarm.ring(start + Duration::from_secs(3600)).await;
        assert_eq!(clock.now().since(start), Duration::from_secs(3600));
    }

    #[test]
    fn moments_saturate() {
        assert_eq!(Moment::NEVER + Duration::from_secs(1), Moment::NEVER);
        assert_eq!(Moment::from_nanos(5) - Duration::from_secs(1), Moment::from_nanos(0));
        assert_eq!(Moment::from_nanos(1).since(Moment::from_nanos(2)), Duration::ZERO);
    }
}
