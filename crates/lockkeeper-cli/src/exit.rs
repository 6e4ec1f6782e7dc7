//! How the program ends: a code for machines, a sentence and a hint for people.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use lockkeeper::{Error, ErrorKind};

/// Wrong words on the command line.
pub(crate) const USAGE: u8 = 64;
/// No engine answered.
pub(crate) const UNREACHABLE: u8 = 69;
/// Others hold the lock.
pub(crate) const BUSY: u8 = 75;
/// A fence has seen a higher token.
pub(crate) const STALE: u8 = 76;
/// The operating system or the engine does not let us.
pub(crate) const NOT_PERMITTED: u8 = 77;
/// An engine URL that makes no sense, or an engine that cannot do this.
pub(crate) const CONFIG: u8 = 78;
/// The lock was lost.
pub(crate) const LOST: u8 = 79;
/// The run limit was reached.
pub(crate) const TIMEOUT: u8 = 124;
/// We failed ourselves.
pub(crate) const FAILED: u8 = 125;
/// The command cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code of a program ended by this signal.
pub(crate) fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(FAILED)
}

/// Why the program ends without having done what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) code: u8,
    /// The stable word for JSON.
    pub(crate) kind: &'static str,
    /// One lower-case sentence; empty if everything has been said already.
    pub(crate) message: String,
    /// The remedy, if there is one.
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, kind: &'static str, message: impl Into<String>) -> Self {
        Failure { code, kind, message: message.into(), hint: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(USAGE, "usage", message)
    }

    /// Ends the program with a code after everything has been said.
    pub(crate) fn silent(code: u8) -> Self {
        Failure::new(code, "exit", "")
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The failure of opening an engine: a URL is configuration, not usage.
    pub(crate) fn connecting(error: Error) -> Self {
        let kind = error.kind();
        let mut failure = Failure::from(error);
        match kind {
            ErrorKind::Invalid if failure.code == USAGE => {
                failure.code = CONFIG;
                failure.hint("engines are named by URL in LOCKKEEPER_URL or --engine, e.g. local:")
            }
            ErrorKind::Unreachable => {
                failure.hint("is the server running, and is LOCKKEEPER_URL or --engine right?")
            }
            _ => failure,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            _ if is_permission(&error) => NOT_PERMITTED,
            ErrorKind::TimedOut | ErrorKind::TooMany => BUSY,
            ErrorKind::Lost => LOST,
            ErrorKind::Unreachable | ErrorKind::Unknown => UNREACHABLE,
            ErrorKind::Unsupported => CONFIG,
            ErrorKind::Invalid => USAGE,
            ErrorKind::Stale => STALE,
            _ => FAILED,
        };
        let kind = if code == NOT_PERMITTED { "not_permitted" } else { error.kind().as_str() };
        Failure::new(code, kind, describe(&error))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::new(FAILED, "io", error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The sentence of an error and of those underneath that add something.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    for source in sources(error) {
        let more = source.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
    }
    text
}

fn is_permission(error: &Error) -> bool {
    let denied = |source: &(dyn StdError + 'static)| {
        let io = source.downcast_ref::<io::Error>();
        io.is_some_and(|io| io.kind() == io::ErrorKind::PermissionDenied)
    };
    sources(error).any(denied)
}

fn sources(error: &Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(error.source(), |source| (*source).source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_code() {
        let code = |kind| Failure::from(Error::new(kind, "x")).code;
        assert_eq!(code(ErrorKind::TimedOut), 75);
        assert_eq!(code(ErrorKind::TooMany), 75);
        assert_eq!(code(ErrorKind::Lost), 79);
        assert_eq!(code(ErrorKind::Unreachable), 69);
        assert_eq!(code(ErrorKind::Unknown), 69);
        assert_eq!(code(ErrorKind::Unsupported), 78);
        assert_eq!(code(ErrorKind::Invalid), 64);
        assert_eq!(code(ErrorKind::Stale), 76);
        assert_eq!(code(ErrorKind::Unexpected), 125);
        let url = Error::new(ErrorKind::Invalid, "no such engine");
        assert_eq!(Failure::connecting(url).code, 78);
    }

    #[test]
    fn a_denied_file_is_not_permitted() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = Error::new(ErrorKind::Unreachable, "cannot open").because(denied);
        let failure = Failure::connecting(error);
        assert_eq!(failure.code, 77);
        assert_eq!(failure.message, "cannot open: permission denied");
    }
}
