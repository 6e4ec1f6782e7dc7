//! The one set of options that library, program and services share.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Result, invalid};

/// How a name is locked: for how long, with how much patience, under which limits.
///
/// In JSON durations are whole milliseconds (`lease_ms`, `wait_ms`, …).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use lockkeeper::LockOptions;
///
/// let options = LockOptions::default()
///     .with_lease(Duration::from_secs(10))
///     .with_wait(Duration::from_secs(5))
///     .with_note("release 2.14");
/// assert_eq!(options.wait, Some(Duration::from_secs(5)));
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LockOptions {
    /// How long a grant lives when nobody renews it; renewed every third of it. Default 30 s.
    #[serde(rename = "lease_ms", with = "millis")]
    pub lease: Duration,
    /// How long to wait for the lock; `None` waits as long as it takes. Default `None`.
    #[serde(rename = "wait_ms", with = "maybe_millis")]
    pub wait: Option<Duration>,
    /// How much earlier than the lease a guard ends; `None` is 1 % of the lease and 2 ms. Default `None`.
    #[serde(rename = "margin_ms", with = "maybe_millis")]
    pub margin: Option<Duration>,
    /// The name stays closed at least this long after the grant, even if released sooner. Default 0.
    #[serde(rename = "min_hold_ms", with = "millis")]
    pub min_hold: Duration,
    /// The grant is lost, then released, after this long, however well it is renewed. Default `None`.
    #[serde(rename = "max_hold_ms", with = "maybe_millis")]
    pub max_hold: Option<Duration>,
    /// The name stays closed this long after a holder *failed* (its lease ran out). Default 0.
    #[serde(rename = "lock_delay_ms", with = "millis")]
    pub lock_delay: Duration,
    /// How many may wait for the name before further ones are refused. Default 10 000.
    pub max_waiters: u32,
    /// Shown to whoever looks at the lock or waits for it. Default empty.
    pub note: String,
    /// Who holds it, for people; empty is the user's name. Default empty.
    pub who: String,
}

impl Default for LockOptions {
    fn default() -> Self {
        LockOptions {
            lease: Duration::from_secs(30),
            wait: None,
            margin: None,
            min_hold: Duration::ZERO,
            max_hold: None,
            lock_delay: Duration::ZERO,
            max_waiters: 10_000,
            note: String::new(),
            who: String::new(),
        }
    }
}

impl LockOptions {
    /// The shortest lease: below it, renewals would flood the engine.
    pub const MIN_LEASE: Duration = Duration::from_millis(100);
    /// The longest lease, and the longest of every other duration here but the wait.
    pub const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
    /// The longest wait that is not "as long as it takes".
    pub const MAX_WAIT: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
    /// The longest note or who, in bytes.
    pub const MAX_TEXT_BYTES: usize = 1024;
    /// The most waiters a name may be allowed.
    pub const MAX_WAITERS: u32 = 1_000_000;

    /// Sets [`lease`](Self::lease).
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets [`wait`](Self::wait) to a limit.
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets [`margin`](Self::margin).
    pub fn with_margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Sets [`min_hold`](Self::min_hold).
    pub fn with_min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = min_hold;
        self
    }

    /// Sets [`max_hold`](Self::max_hold).
    pub fn with_max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets [`lock_delay`](Self::lock_delay).
    pub fn with_lock_delay(mut self, lock_delay: Duration) -> Self {
        self.lock_delay = lock_delay;
        self
    }

    /// Sets [`max_waiters`](Self::max_waiters).
    pub fn with_max_waiters(mut self, max_waiters: u32) -> Self {
        self.max_waiters = max_waiters;
        self
    }

    /// Sets [`note`](Self::note).
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Sets [`who`](Self::who).
    pub fn with_who(mut self, who: impl Into<String>) -> Self {
        self.who = who.into();
        self
    }

    /// How much earlier than its lease a guard of these options ends.
    pub fn effective_margin(&self) -> Duration {
        self.margin.unwrap_or(self.lease / 100 + Duration::from_millis(2))
    }

    /// Checks every limit, so that nothing out of range is ever sent.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), naming the option and its range.
    pub fn validate(&self) -> Result<()> {
        let (low, high) = (Self::MIN_LEASE, Self::MAX_LEASE);
        if self.lease < low || self.lease > high {
            let lease = self.lease;
            return Err(invalid(format!("a lease must be {low:?} to {high:?}, not {lease:?}")));
        }
        if self.effective_margin() > self.lease / 2 {
            return Err(invalid(format!(
                "a margin of {:?} leaves less than half of the lease of {:?}",
                self.effective_margin(),
                self.lease
            )));
        }
        if self.wait.is_some_and(|wait| wait > Self::MAX_WAIT) {
            return Err(invalid(
                "a wait above ten years is out of range: leave it out to wait as long as it takes",
            ));
        }
        let spans = [
            ("min_hold", Some(self.min_hold)),
            ("max_hold", self.max_hold),
            ("lock_delay", Some(self.lock_delay)),
        ];
        for (option, span) in spans {
            if span.is_some_and(|span| span > high) {
                return Err(invalid(format!("{option} may be {high:?} at most")));
            }
        }
        if self.max_hold.is_some_and(|max| max.is_zero() || max < self.min_hold) {
            return Err(invalid("max_hold must be above zero and not below min_hold"));
        }
        if !(1..=Self::MAX_WAITERS).contains(&self.max_waiters) {
            let most = Self::MAX_WAITERS;
            return Err(invalid(format!("max_waiters must be 1 to {most}")));
        }
        for (option, text) in [("note", &self.note), ("who", &self.who)] {
            if text.len() > Self::MAX_TEXT_BYTES {
                let most = Self::MAX_TEXT_BYTES;
                return Err(invalid(format!("{option} may have {most} bytes at most")));
            }
        }
        Ok(())
    }
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

mod maybe_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => super::millis::serialize(span, to),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_read_back_from_json() {
        let options = LockOptions::default()
            .with_lease(Duration::from_millis(1500))
            .with_wait(Duration::ZERO)
            .with_note("hello");
        let json = serde_json::to_string(&options).unwrap();
        assert!(json.contains(r#""lease_ms":1500"#) && json.contains(r#""wait_ms":0"#), "{json}");
        assert_eq!(serde_json::from_str::<LockOptions>(&json).unwrap(), options);
        assert_eq!(serde_json::from_str::<LockOptions>("{}").unwrap(), LockOptions::default());
        assert!(serde_json::from_str::<LockOptions>(r#"{"ttl":3}"#).is_err());
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        let ok = LockOptions::default;
        let day = Duration::from_secs(86_400);
        ok().validate().unwrap();
        let bad = [
            ok().with_lease(Duration::ZERO),
            ok().with_lease(day * 2),
            ok().with_margin(Duration::from_secs(16)),
            ok().with_wait(Duration::MAX),
            ok().with_min_hold(day * 2),
            ok().with_max_hold(Duration::ZERO),
            ok().with_min_hold(day).with_max_hold(Duration::from_secs(1)),
            ok().with_lock_delay(Duration::MAX),
            ok().with_max_waiters(0),
            ok().with_note("x".repeat(1025)),
            ok().with_who("x".repeat(1025)),
        ];
        for options in bad {
            let error = options.validate().unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{options:?}");
        }
    }
}
