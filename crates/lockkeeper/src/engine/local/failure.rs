//! What SQLite's errors mean for a lock.

use rusqlite::ErrorCode;

use crate::error::{Error, ErrorKind};
use crate::token::Token;

/// How far a request had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Opening the database.
    Open,
    /// Before the commit: nothing has changed.
    Work,
    /// In the commit.
    Commit,
}

/// Why a transaction was given up. Nothing of it is left.
#[derive(Debug)]
pub(super) enum Fail {
    /// The database failed.
    Sql(rusqlite::Error),
    /// A token above the ceiling would have been granted.
    Ceiling(Token),
}

impl From<rusqlite::Error> for Fail {
    fn from(error: rusqlite::Error) -> Fail {
        Fail::Sql(error)
    }
}

/// Says what happened in words a lock's user can act on.
pub(super) fn explain(error: rusqlite::Error, stage: Stage) -> Error {
    let open = stage == Stage::Open;
    let (kind, text) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Unreachable, "another program keeps the database (lk.db) locked")
        }
        Some(ErrorCode::DiskFull) => (ErrorKind::Unreachable, "the disk is full"),
        Some(ErrorCode::CannotOpen) => {
            (ErrorKind::Unreachable, "the database (lk.db) cannot be opened")
        }
        Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly) if open => {
            (ErrorKind::Invalid, "the database (lk.db) is not writable for this user")
        }
        Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            (ErrorKind::Unreachable, "the database (lk.db) is not writable any more")
        }
        Some(ErrorCode::NotADatabase) => (ErrorKind::Invalid, "lk.db is not a database"),
        Some(ErrorCode::DatabaseCorrupt) => {
            (ErrorKind::Unexpected, "the database (lk.db) is damaged")
        }
        // Whether the last frame of the log arrived is anybody's guess.
        Some(ErrorCode::SystemIoFailure) if stage == Stage::Commit => {
            (ErrorKind::Unknown, "the disk failed while the change was written")
        }
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Unreachable, "the disk failed"),
        Some(ErrorCode::OutOfMemory) => (ErrorKind::Unreachable, "no memory left"),
        _ => (ErrorKind::Unexpected, "the database gave an answer that makes no sense"),
    };
    Error::new(kind, text).because(error)
}
