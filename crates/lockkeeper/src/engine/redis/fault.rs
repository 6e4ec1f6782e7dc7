//! What the errors of a server mean to whoever locks.

use redis::{RedisError, ServerErrorKind};

use crate::error::{Error, ErrorKind, invalid};

/// The error of a command that the server answered with one.
pub(super) fn told(error: RedisError, key: &str) -> Error {
    let text = text(&error);
    let has = |word: &str| text.contains(word);
    let meaning = if has("WRONGTYPE") || has("FOREIGN") {
        invalid(format!("the key {key:?} holds something that is no lock of ours"))
    } else if has("NOPERM") || has("The user executing the script can't") {
        invalid(format!("the server does not allow this user to do that: {text}"))
    } else if has("NOAUTH") || has("WRONGPASS") {
        invalid("the server refuses the user or password")
    } else if has("OOM ") {
        let text = "the server is out of memory (maxmemory) and takes no new locks";
        Error::new(ErrorKind::TooMany, text)
    } else if has("MOVED ") || has("ASK ") || has("CROSSSLOT") {
        invalid("the server is part of a cluster, which this URL does not say")
    } else if has("READONLY") {
        Error::new(ErrorKind::Unreachable, "the server is a replica; locks need its master")
    } else if NOT_NOW.iter().any(|word| has(word)) {
        Error::new(ErrorKind::Unreachable, format!("the server does not serve now: {text}"))
    } else {
        Error::new(ErrorKind::Unexpected, format!("the server says: {text}"))
    };
    meaning.because(error)
}

/// What a server says that runs nothing at the moment.
const NOT_NOW: [&str; 9] = [
    "LOADING",
    "BUSY ",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MISCONF",
    "NOREPLICAS",
    "UNKILLABLE",
    "NOGOODSLAVE",
];

/// The error of a connection that could not be made.
pub(super) fn refused_connection(error: RedisError) -> Error {
    let text = text(&error);
    let has = |word: &str| text.contains(word);
    let meaning = match error.kind() {
        redis::ErrorKind::AuthenticationFailed => {
            invalid("the server refuses the user or password")
        }
        redis::ErrorKind::RESP3NotSupported => Error::new(
            ErrorKind::Unsupported,
            "the server is older than Redis 6, which is the oldest that can push answers",
        ),
        redis::ErrorKind::InvalidClientConfig => invalid(text),
        _ if error.is_io_error() => Error::new(ErrorKind::Unreachable, io_text(&error)),
        redis::ErrorKind::Server(ServerErrorKind::ReadOnly) => {
            invalid("the server is a replica; locks need its master")
        }
        _ if has("READONLY") => invalid("the server is a replica; locks need its master"),
        _ if has("DB index") || has("SELECT is not allowed") => {
            invalid("the server has no such database")
        }
        _ => return told(error, ""),
    };
    meaning.because(error)
}

fn io_text(error: &RedisError) -> String {
    if error.is_connection_refusal() {
        return "nobody listens there".to_owned();
    }
    if error.is_timeout() {
        return "no connection in time".to_owned();
    }
    format!("no connection: {error}")
}

/// The code and the words of an error, as the server sent them.
fn text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => format!("{code} "),
        (None, Some(detail)) => format!("{error}: {detail}"),
        (None, None) => error.to_string(),
    }
}
