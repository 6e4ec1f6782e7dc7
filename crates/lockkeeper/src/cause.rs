//! Why a lock was lost.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Why a grant ended before its release.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its lease could not be renewed in time.
    Expired,
    /// The engine has given the name to somebody else, or has forgotten it.
    TakenOver,
    /// Somebody broke it, with this reason.
    Broken {
        /// What they said.
        reason: Arc<str>,
    },
    /// It was held for as long as [`LockOptions::max_hold`](crate::LockOptions::max_hold) allows.
    HeldTooLong,
    /// The keeper was closed, or its engine is gone for good.
    EngineGone,
}

impl Cause {
    /// The stable lower-case word used in JSON and messages.
    pub fn as_str(&self) -> &'static str {
        match self {
            Cause::Expired => "expired",
            Cause::TakenOver => "taken_over",
            Cause::Broken { .. } => "broken",
            Cause::HeldTooLong => "held_too_long",
            Cause::EngineGone => "engine_gone",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Expired => f.write_str("its lease could not be renewed in time"),
            Cause::TakenOver => f.write_str("the engine gave it to somebody else, or forgot it"),
            Cause::Broken { reason } => write!(f, "it was broken ({reason})"),
            Cause::HeldTooLong => f.write_str("it was held for longer than max_hold allows"),
            Cause::EngineGone => f.write_str("the keeper was closed or its engine is gone"),
        }
    }
}
