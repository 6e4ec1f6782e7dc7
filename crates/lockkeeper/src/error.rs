//! One error type: a kind to branch on and a sentence to read.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::cause::Cause;
use crate::name::LockName;

/// A result whose error is [`enum@ErrorKind`] and a sentence.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a caller would act on it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Others held the name for the whole wait.
    TimedOut,
    /// The grant ended before it was released; [`Error::cause`] says why.
    Lost,
    /// No engine answered. Whatever was sent is withdrawn in the background.
    Unreachable,
    /// A request went out and no answer came back: it may have taken effect.
    Unknown,
    /// The engine cannot do this safely, so nothing was sent.
    Unsupported,
    /// The call itself is wrong: a bad name, option, URL or kind of name.
    Invalid,
    /// A limit is reached: too many waiters, too many claims.
    TooMany,
    /// A fence has seen a higher token: whoever carries this one was replaced.
    Stale,
    /// The engine or this library broke its own rules; please report it.
    Unexpected,
}

impl ErrorKind {
    /// The stable lower-case word used in JSON and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::TimedOut => "timed_out",
            ErrorKind::Lost => "lost",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Unknown => "unknown",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Invalid => "invalid",
            ErrorKind::TooMany => "too_many",
            ErrorKind::Stale => "stale",
            ErrorKind::Unexpected => "unexpected",
        }
    }
}

/// Says what failed, where and why: `renew "orders" on redis: timed out after 800ms`.
///
/// # Examples
/// ```
/// use lockkeeper::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::Unreachable, "connection refused").during("renew");
/// assert_eq!(error.kind(), ErrorKind::Unreachable);
/// assert!(error.is_transient());
/// assert_eq!(error.to_string(), "renew: connection refused");
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: Option<&'static str>,
    engine: Option<Arc<str>>,
    name: Option<LockName>,
    message: String,
    cause: Option<Cause>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Makes an error from its kind and the reason, in lower case, without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            operation: None,
            engine: None,
            name: None,
            message: message.into(),
            cause: None,
            source: None,
        }))
    }

    /// Makes the error of a grant that ended before its release.
    pub fn lost(cause: Cause) -> Self {
        let mut error = Error::new(ErrorKind::Lost, format!("the lock is lost: {cause}"));
        error.0.cause = Some(cause);
        error
    }

    /// Adds the operation that failed, unless one is named already.
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Adds the engine it failed on, unless one is named already.
    pub fn on(mut self, engine: &Arc<str>) -> Self {
        self.0.engine.get_or_insert_with(|| engine.clone());
        self
    }

    /// Adds the name it failed for, unless one is named already.
    pub fn about(mut self, name: &LockName) -> Self {
        self.0.name.get_or_insert_with(|| name.clone());
        self
    }

    /// Adds the error underneath. Its text must not carry secrets.
    pub fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// The kind to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Why a lost lock was lost; `None` for every other kind.
    pub fn cause(&self) -> Option<&Cause> {
        self.0.cause.as_ref()
    }

    /// The lock name concerned, if there is one.
    pub fn name(&self) -> Option<&LockName> {
        self.0.name.as_ref()
    }

    /// Whether the same call may succeed later without any change to it.
    pub fn is_transient(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::TimedOut | ErrorKind::Unreachable | ErrorKind::Unknown | ErrorKind::TooMany
        )
    }

    /// Whether the engine failed to answer, as opposed to answering "no".
    pub fn is_silence(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Unreachable | ErrorKind::Unknown)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, engine, name, message, .. } = &*self.0;
        let mut lead = false;
        if let Some(operation) = operation {
            write!(f, "{operation}")?;
            lead = true;
        }
        if let Some(name) = name {
            write!(f, "{}{name:?}", if lead { " " } else { "" })?;
            lead = true;
        }
        if let Some(engine) = engine {
            write!(f, "{}on {engine}", if lead { " " } else { "" })?;
            lead = true;
        }
        write!(f, "{}{message}", if lead { ": " } else { "" })
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)?;
        match &self.0.source {
            Some(source) => write!(f, " because {source:?}"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Ends a call with [`ErrorKind::Invalid`] and a sentence.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_what_where_why() {
        let name = LockName::new("orders").unwrap();
        let engine: Arc<str> = "redis".into();
        let error = Error::new(ErrorKind::Unknown, "timed out after 800ms")
            .during("renew")
            .on(&engine)
            .about(&name);
        assert_eq!(error.to_string(), r#"renew "orders" on redis: timed out after 800ms"#);
    }

    #[test]
    fn the_first_to_name_the_operation_is_kept() {
        let error = Error::new(ErrorKind::Invalid, "no").during("inner").during("outer");
        assert_eq!(error.to_string(), "inner: no");
    }
}
