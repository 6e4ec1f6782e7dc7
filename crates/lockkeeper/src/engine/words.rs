//! The words by which engines that keep rows write down kinds, modes and causes.

use crate::cause::Cause;
use crate::engine::{Kind, Mode};

/// The word of a kind.
pub(super) fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Mutex => "mutex",
        Kind::ReadWrite => "read_write",
        Kind::Semaphore => "semaphore",
        Kind::Latch => "latch",
        Kind::Fence => "fence",
    }
}

/// The kind behind a word.
pub(super) fn kind_from(word: &str) -> Option<Kind> {
    let kinds = [Kind::Mutex, Kind::ReadWrite, Kind::Semaphore, Kind::Latch, Kind::Fence];
    kinds.into_iter().find(|&kind| kind_word(kind) == word)
}

/// The word of a mode, how many permits, and of how many.
pub(super) fn mode_words(mode: Mode) -> (&'static str, u32, u32) {
    match mode {
        Mode::Exclusive => ("exclusive", 0, 0),
        Mode::Write => ("write", 0, 0),
        Mode::Read => ("read", 0, 0),
        Mode::Permits { count, of } => ("permits", count, of),
    }
}

/// The mode behind a word and two numbers.
pub(super) fn mode_from(word: &str, count: u32, of: u32) -> Option<Mode> {
    Some(match word {
        "exclusive" => Mode::Exclusive,
        "write" => Mode::Write,
        "read" => Mode::Read,
        "permits" => Mode::Permits { count, of },
        _ => return None,
    })
}

/// The cause behind its word and the reason of a break.
pub(super) fn cause_from(word: &str, reason: &str) -> Cause {
    match word {
        "broken" => Cause::Broken { reason: reason.into() },
        "taken_over" => Cause::TakenOver,
        "held_too_long" => Cause::HeldTooLong,
        "engine_gone" => Cause::EngineGone,
        _ => Cause::Expired,
    }
}

/// The reason of a break; empty for every other cause.
pub(super) fn reason_of(cause: &Cause) -> &str {
    match cause {
        Cause::Broken { reason } => reason,
        _ => "",
    }
}
