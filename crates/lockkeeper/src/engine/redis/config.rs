//! Where a Redis is and how to talk to it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::RedisEngine;
use crate::engine::{Connect, Engine, Seat};
use crate::error::{Error, Result, invalid};

/// The port of a URL that names none.
const PORT: u16 = 6379;
/// The start of every key and channel unless the URL says otherwise.
const PREFIX: &str = "lk:";
/// The longest prefix, in bytes.
const MAX_PREFIX: usize = 128;

/// Opens engines on a Redis server, from a URL or from typed settings.
///
/// | URL | |
/// |---|---|
/// | `redis://[user:password@]host[:port][/database]` | one server, over TCP |
/// | `redis+unix:///path/to/socket` | one server, over a Unix socket |
///
/// Parameters after `?`: `prefix` (of all keys and channels, `lk:`), `connect` and
/// `command` (limits as in `300ms` or `2s`, one second each), `db`, `user`, `password`.
/// Reserved characters in any part are written as `%XX`.
///
/// # Examples
/// ```no_run
/// use lockkeeper::{Keeper, Redis};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let keeper = Keeper::connect("redis://localhost/0?prefix=shop:").await?;
/// // The same, with typed settings:
/// let redis = Redis::at("localhost", 6379)?.with_prefix("shop:")?;
/// let keeper = Keeper::new(redis).await?;
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Redis {
    pub(super) place: Place,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: u32,
    pub(super) prefix: String,
    pub(super) connect: Duration,
    pub(super) command: Duration,
}

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Redis {
    /// The server at a host and port.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an empty host.
    pub fn at(host: impl Into<String>, port: u16) -> Result<Self> {
        let host = host.into();
        if host.is_empty() {
            return Err(bad("a redis URL needs a host"));
        }
        Ok(Redis::new(Place::Tcp { host, port }))
    }

    /// The server behind a Unix socket.
    pub fn at_socket(path: impl Into<PathBuf>) -> Self {
        Redis::new(Place::Unix(path.into()))
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that makes no
    /// sense; the message never repeats a secret.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("not a redis URL"))?;
        let (body, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut redis = match scheme {
            "redis" => Redis::parse_tcp(body)?,
            "redis+unix" => Redis::parse_unix(body)?,
            _ => return Err(bad("not a redis URL")),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            redis = redis.with_parameter(key, &decode(value)?)?;
        }
        Ok(redis)
    }

    fn parse_tcp(body: &str) -> Result<Self> {
        // The last @: an unescaped one in a password is wrong, but must not
        // make half of the password a host name.
        let (login, body) = match body.rsplit_once('@') {
            Some((login, body)) => (Some(login), body),
            None => (None, body),
        };
        let (place, database) = body.split_once('/').unwrap_or((body, ""));
        let (host, port) = host_and_port(place)?;
        let mut redis = Redis::at(host, port)?;
        if !database.is_empty() {
            redis = redis.with_parameter("db", &decode(database)?)?;
        }
        if let Some(login) = login {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            redis.user = filled(decode(user)?);
            redis.password = filled(decode(password)?);
        }
        Ok(redis)
    }

    fn parse_unix(body: &str) -> Result<Self> {
        let path = decode(body)?;
        if !path.starts_with('/') {
            return Err(bad("a redis socket is a whole path: redis+unix:///run/redis.sock"));
        }
        Ok(Redis::at_socket(path))
    }

    fn with_parameter(self, key: &str, value: &str) -> Result<Self> {
        match key {
            "db" => {
                let database = value.parse();
                Ok(self.with_database(database.map_err(|_| bad("a database is a number"))?))
            }
            "prefix" => self.with_prefix(value),
            "connect" => Ok(self.with_connect_limit(span("connect", value)?)),
            "command" => Ok(self.with_command_limit(span("command", value)?)),
            "user" => Ok(Redis { user: filled(value.to_owned()), ..self }),
            "password" => Ok(Redis { password: filled(value.to_owned()), ..self }),
            // It may be a secret that lost its name, so it is not repeated.
            _ => Err(bad(
                "a redis URL has no such parameter; there are prefix, connect, command, db, user \
                 and password",
            )),
        }
    }

    fn new(place: Place) -> Self {
        Redis {
            place,
            user: None,
            password: None,
            database: 0,
            prefix: PREFIX.to_owned(),
            connect: Duration::from_secs(1),
            command: Duration::from_secs(1),
        }
    }

    /// Logs in as this user. Without a user, a password is the server's own.
    #[must_use]
    pub fn with_login(mut self, user: Option<String>, password: impl Into<String>) -> Self {
        (self.user, self.password) = (user, Some(password.into()));
        self
    }

    /// Uses this database. Default: 0.
    #[must_use]
    pub fn with_database(mut self, database: u32) -> Self {
        self.database = database;
        self
    }

    /// Starts every key and channel with `prefix`. Default: `lk:`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a prefix that is too
    /// long or holds braces, which say what a cluster keeps together.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Result<Self> {
        let prefix = prefix.into();
        if prefix.len() > MAX_PREFIX || prefix.contains(['{', '}']) {
            return Err(bad(format!("a prefix has {MAX_PREFIX} bytes at most, and no braces")));
        }
        self.prefix = prefix;
        Ok(self)
    }

    /// Waits this long for a connection. Default: one second.
    #[must_use]
    pub fn with_connect_limit(mut self, limit: Duration) -> Self {
        self.connect = limit;
        self
    }

    /// Waits this long for the answer to a command. Default: one second.
    #[must_use]
    pub fn with_command_limit(mut self, limit: Duration) -> Self {
        self.command = limit;
        self
    }
}

#[async_trait]
impl Connect for Redis {
    fn label(&self) -> Arc<str> {
        let prefix = match self.prefix.as_str() {
            PREFIX => String::new(),
            other => format!("prefix={}", encode(other)),
        };
        match &self.place {
            Place::Tcp { host, port } => {
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                let prefix = if prefix.is_empty() { prefix } else { format!("?{prefix}") };
                format!("redis://{host}:{port}/{}{prefix}", self.database).into()
            }
            Place::Unix(path) => {
                let prefix = if prefix.is_empty() { prefix } else { format!("&{prefix}") };
                format!("redis+unix://{}?db={}{prefix}", path.display(), self.database).into()
            }
        }
    }

    async fn open(&self, seat: Seat) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(RedisEngine::open(self.clone(), seat).await?))
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Redis").field(&self.label()).finish()
    }
}

fn bad(message: impl Into<String>) -> Error {
    invalid(message).during("connect")
}

fn filled(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn host_and_port(place: &str) -> Result<(String, u16)> {
    let port = |text: &str| text.parse().map_err(|_| bad("a port is a number up to 65535"));
    if let Some(rest) = place.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(|| bad("an address lacks its ]"))?;
        return match rest.strip_prefix(':') {
            Some(text) => Ok((host.to_owned(), port(text)?)),
            None if rest.is_empty() => Ok((host.to_owned(), PORT)),
            None => Err(bad("there is something between an address and its port")),
        };
    }
    match place.split_once(':') {
        Some((host, text)) => Ok((decode(host)?, port(text)?)),
        None => Ok((decode(place)?, PORT)),
    }
}

/// Reads `250ms`, `2s` or `1m`.
fn span(key: &str, text: &str) -> Result<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        _ => None,
    };
    let millis = number.parse::<u64>().ok().zip(factor).map(|(n, f)| n.saturating_mul(f));
    match millis {
        Some(millis @ 1..=60_000) => Ok(Duration::from_millis(millis)),
        _ => Err(bad(format!("{key} is a time from 1ms to 1m, such as 300ms or 2s"))),
    }
}

/// Writes text with nothing but printable bytes and no space; `%XX` for the others.
pub(super) fn encode(text: &str) -> String {
    use fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && !b"%?&{}".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Reads what [`encode`] wrote, and what people write in URLs.
pub(super) fn decode(text: &str) -> Result<String> {
    let broken = || bad("a %XX in a redis URL is broken");
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (pair, after) = rest.split_at_checked(2).ok_or_else(broken)?;
        let pair = std::str::from_utf8(pair).map_err(|_| broken())?;
        out.push(u8::from_str_radix(pair, 16).map_err(|_| broken())?);
        rest = after;
    }
    String::from_utf8(out).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_url_names_everything() {
        let url = "redis://me:p%40ss@[::1]:7000/3?prefix=shop%3A&connect=300ms&command=2s";
        let redis = Redis::parse(url).unwrap();
        assert_eq!(redis.place, Place::Tcp { host: "::1".to_owned(), port: 7000 });
        assert_eq!(redis.user.as_deref(), Some("me"));
        assert_eq!(redis.password.as_deref(), Some("p@ss"));
        assert_eq!((redis.database, redis.prefix.as_str()), (3, "shop:"));
        assert_eq!(redis.connect, Duration::from_millis(300));
        assert_eq!(redis.command, Duration::from_secs(2));
        assert_eq!(&*redis.label(), "redis://[::1]:7000/3?prefix=shop:");
    }

    #[test]
    fn a_short_url_has_defaults() {
        let redis = Redis::parse("redis://host").unwrap();
        assert_eq!(redis.place, Place::Tcp { host: "host".to_owned(), port: PORT });
        assert_eq!(&*redis.label(), "redis://host:6379/0");
        let redis = Redis::parse("redis+unix:///run/r.sock?db=2").unwrap();
        assert_eq!(redis.place, Place::Unix("/run/r.sock".into()));
        assert_eq!(&*redis.label(), "redis+unix:///run/r.sock?db=2");
        assert_eq!(Redis::parse("redis://:pw@h").unwrap().password.as_deref(), Some("pw"));
    }

    #[test]
    fn nonsense_is_refused_without_its_secrets() {
        for url in [
            "redis://",
            "redis://u:hunter2@",
            "redis://u:hunter2@h:x",
            "redis://u:hun@ter2@h:99999",
            "redis://u:hunter2@h/x",
            "redis://u:hunter2@h?what=hunter2",
            "redis://u:hunter2@h?hunter2",
            "redis://u:hunter2@h?connect=hunter2",
            "redis://u:hunter2%@h",
            "redis://u:hunter2@h?prefix={hunter2}",
            "redis+unix://run/hunter2",
        ] {
            let error = Redis::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!format!("{error} {error:?}").contains("ter2"), "{error:?}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let redis = Redis::parse("redis://u:hunter2@h?password=hunter2").unwrap();
        assert!(!format!("{redis:?} {}", redis.label()).contains("hunter2"));
    }

    #[test]
    fn encoding_is_reversible() {
        for text in ["", "plain", "with space", "é%{}\n\0?&", "100%"] {
            let encoded = encode(text);
            assert!(encoded.bytes().all(|b| b.is_ascii_graphic()), "{encoded}");
            assert_eq!(decode(&encoded).unwrap(), text);
        }
    }
}
