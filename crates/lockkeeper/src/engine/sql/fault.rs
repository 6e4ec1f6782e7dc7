//! What the errors of a database mean to whoever locks.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// What it means when a session is not the one we prepared.
pub(super) const POOLED: &str = "a pooler gives our sessions to others; connect to the server \
                                 itself, or to the pooler in session mode";

/// Why a batch of statements did not succeed.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) class: Class,
    text: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The connection is gone, or silent for too long. What was sent may have
    /// taken effect, or may yet.
    Lost,
    /// The server undid the transaction because others were in its way. The
    /// same again may succeed.
    Conflict,
    /// Somebody else keeps a row locked for longer than we wait.
    Locked,
    /// There is no such table.
    NoTable,
    /// The server does not serve now; nothing was done.
    NotNow,
    /// The server has no connection left for us.
    Full,
    /// The server only reads.
    ReadOnly,
    /// The user may not do that.
    Forbidden,
    /// The server says no, and will say so again.
    Refused(ErrorKind),
}

/// How far a request had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Making the connection, and looking at what is there.
    Open,
    /// Before the commit was sent: nothing has changed.
    Work,
    /// The commit was sent.
    Commit,
}

impl Fault {
    pub(super) fn new(class: Class, text: impl Into<String>) -> Self {
        Fault { class, text: text.into(), source: None }
    }

    /// A request without an answer.
    pub(super) fn silent(limit: Duration) -> Self {
        Fault::new(Class::Lost, format!("the server did not answer within {limit:?}"))
    }

    /// Adds the error underneath.
    pub(super) fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Whether the connection can be used on.
    pub(super) fn leaves_connection(&self) -> bool {
        self.class != Class::Lost
    }

    /// What it means for a request that had come this far.
    pub(super) fn at(self, stage: Stage) -> Error {
        let (kind, text) = match (self.class, stage) {
            (Class::Lost, Stage::Commit) => (ErrorKind::Unknown, self.text),
            (Class::Full, Stage::Open) => (ErrorKind::TooMany, self.text),
            (Class::Lost | Class::NotNow | Class::Full, _) => (ErrorKind::Unreachable, self.text),
            (Class::Conflict, _) => {
                let text = format!("others are in the way again and again: {}", self.text);
                (ErrorKind::Unreachable, text)
            }
            (Class::Locked, _) => {
                let text = "another session keeps the name's row locked".to_owned();
                (ErrorKind::Unreachable, text)
            }
            // A replica that was asked by mistake stays one; a server that
            // turned read-only under us may turn back.
            (Class::ReadOnly, Stage::Open) => (ErrorKind::Invalid, read_only(&self.text)),
            (Class::ReadOnly, _) => (ErrorKind::Unreachable, read_only(&self.text)),
            (Class::NoTable, _) => {
                let text = format!("the tables are gone; connect anew: {}", self.text);
                (ErrorKind::Unexpected, text)
            }
            (Class::Forbidden, _) => {
                let text = format!("the server does not allow this user to do that: {}", self.text);
                (ErrorKind::Invalid, text)
            }
            (Class::Refused(kind), _) => (kind, self.text),
        };
        let error = Error::new(kind, text);
        match self.source {
            Some(source) => error.because(source),
            None => error,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn read_only(text: &str) -> String {
    format!("the server only reads (a replica?); locks need the one that writes: {text}")
}
