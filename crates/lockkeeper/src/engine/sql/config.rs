//! Where a database is and how to talk to it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::dialect::Dialect;
use crate::engine::{Connect, Engine, Seat};
use crate::error::Result;
use crate::url::parts::{
    bad, decode, encode, filled, host_and_port, parameters, span, split_login,
};

/// The start of every table's name unless the URL says otherwise.
const PREFIX: &str = "lockkeeper_";
/// The longest prefix: databases cut names at 63 bytes.
const MAX_PREFIX: usize = 40;
/// How many connections the lease strategy works with.
const CONNECTIONS: usize = 4;
/// How many locks the session strategy holds at most: each has a connection.
const SESSIONS: usize = 32;

/// Opens engines on MySQL, MariaDB or PostgreSQL, from a URL or from typed settings.
///
/// | URL | |
/// |---|---|
/// | `mysql://[user[:password]@]host[:port]/database` | MySQL 8 or MariaDB 10.6, or later (feature `mysql`) |
/// | `postgres://[user[:password]@]host[:port]/database` | PostgreSQL 14 or later (feature `postgres`) |
///
/// Parameters after `?`:
///
/// | Parameter | Default | |
/// |---|---|---|
/// | `strategy` | `lease` | `lease` or `session`, see [`Strategy`] |
/// | `prefix` | `lockkeeper_` | of the tables: letters, digits and `_` |
/// | `schema` | | PostgreSQL: the schema of the tables, instead of the first of the search path |
/// | `connect` | `3s` | how long a connection may take |
/// | `command` | `2s` | how long an answer may take |
/// | `connections` | 4; 32 | how many at most; with `strategy=session` how many locks |
/// | `tls` | `off` | `on` encrypts, and checks the server's certificate (feature `tls`) |
/// | `ca` | | a file of certificates to trust instead of the system's |
/// | `socket` | | a Unix socket; the host of the URL is then a mere name |
/// | `user`, `password` | | as before the `@` |
///
/// Reserved characters in any part are written as `%XX`.
///
/// # Examples
/// ```no_run
/// use lockkeeper::{Keeper, Sql};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let keeper = Keeper::connect("postgres://app:secret@localhost/shop?schema=locks").await?;
/// // The same, with typed settings:
/// let sql = Sql::parse("postgres://localhost/shop")?
///     .with_login("app", "secret")
///     .with_schema("locks")?;
/// let keeper = Keeper::new(sql).await?;
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Sql {
    pub(super) dialect: &'static dyn Dialect,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) socket: Option<PathBuf>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: String,
    pub(super) schema: Option<String>,
    pub(super) prefix: String,
    pub(super) connect: Duration,
    pub(super) command: Duration,
    pub(super) connections: Option<usize>,
    pub(super) tls: bool,
    pub(super) ca: Option<PathBuf>,
    pub(super) strategy: Strategy,
}

/// What a lock is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Rows with a lease, renewed in time. All primitives, in order, with few
    /// connections.
    #[default]
    Lease,
    /// A row lock in an open transaction, on a connection of its own per lock.
    /// The database frees it when the connection ends. Not in order.
    Session,
}

impl Sql {
    /// Whether a URL of this scheme is one of ours.
    pub(crate) fn knows(scheme: &str) -> bool {
        super::dialect::of(scheme).is_some()
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that makes no
    /// sense; the message never repeats a secret.
    pub fn parse(url: &str) -> Result<Self> {
        let known = |(scheme, rest)| Some((super::dialect::of(scheme)?, rest));
        let (dialect, rest) = url
            .split_once("://")
            .and_then(known)
            .ok_or_else(|| bad("not the URL of a database: mysql:// or postgres://"))?;
        let (body, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, body) = split_login(body)?;
        let (place, database) = body.split_once('/').unwrap_or((body, ""));
        if place.contains(',') {
            return Err(bad("a database URL names one server: locks need the one that writes"));
        }
        let (host, port) = host_and_port(place, dialect.port())?;
        let database = decode(database)?;
        if database.is_empty() || database.contains('/') {
            return Err(bad("a database URL ends in the name of the database"));
        }
        let mut sql = Sql {
            dialect,
            host,
            port,
            socket: None,
            user: None,
            password: None,
            database,
            schema: None,
            prefix: PREFIX.to_owned(),
            connect: Duration::from_secs(3),
            command: Duration::from_secs(2),
            connections: None,
            tls: false,
            ca: None,
            strategy: Strategy::Lease,
        };
        (sql.user, sql.password) = login;
        for parameter in parameters(query) {
            let (key, value) = parameter?;
            sql = sql.with_parameter(key, &value)?;
        }
        if sql.ca.is_some() && !sql.tls {
            return Err(bad("certificates (ca) are for encrypted connections: tls=on"));
        }
        Ok(sql)
    }

    fn with_parameter(mut self, key: &str, value: &str) -> Result<Self> {
        match key {
            "strategy" => match value {
                "lease" => self.strategy = Strategy::Lease,
                "session" => self.strategy = Strategy::Session,
                _ => return Err(bad("strategy is lease or session")),
            },
            "prefix" => return self.with_prefix(value),
            "schema" => return self.with_schema(value),
            "connect" => self.connect = span(key, value)?,
            "command" => self.command = span(key, value)?,
            "connections" => match value.parse() {
                Ok(count @ 1..=1000) => self.connections = Some(count),
                _ => return Err(bad("connections is a number from 1 to 1000")),
            },
            "tls" => match value {
                "off" => self.tls = false,
                "on" if cfg!(feature = "tls") => self.tls = true,
                "on" => return Err(bad("this program is built without encryption (feature tls)")),
                _ => return Err(bad("tls is off or on")),
            },
            "sslmode" | "ssl-mode" | "ssl_mode" => {
                return Err(bad("write tls=on, which encrypts and checks the certificate, or off"));
            }
            "ca" => self.ca = Some(value.into()),
            "socket" if value.starts_with('/') => self.socket = Some(value.into()),
            "socket" => return Err(bad("socket is a whole path, such as /run/mysqld/mysqld.sock")),
            "user" => self.user = filled(value.to_owned()),
            "password" => self.password = filled(value.to_owned()),
            // It may be a secret that lost its name, so it is not repeated.
            _ => {
                return Err(bad(
                    "a database URL has no such parameter; there are strategy, prefix, schema, \
                     connect, command, connections, tls, ca, socket, user and password",
                ));
            }
        }
        Ok(self)
    }

    /// Logs in as this user.
    #[must_use]
    pub fn with_login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        (self.user, self.password) = (filled(user.into()), filled(password.into()));
        self
    }

    /// Makes locks of something else. Default: [`Strategy::Lease`].
    #[must_use]
    pub fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Starts the name of every table with `prefix`. Default: `lockkeeper_`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for one that is too
    /// long or holds anything but ASCII letters, digits and `_`.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Result<Self> {
        let prefix = prefix.into();
        if prefix.is_empty() || prefix.len() > MAX_PREFIX || !plain(&prefix) {
            return Err(bad(format!(
                "a prefix has 1 to {MAX_PREFIX} ASCII letters, digits and underscores"
            )));
        }
        self.prefix = prefix;
        Ok(self)
    }

    /// Keeps the tables in this schema (PostgreSQL).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a database without
    /// schemas, and for a schema with anything but ASCII letters, digits and `_`.
    pub fn with_schema(mut self, schema: impl Into<String>) -> Result<Self> {
        let schema = schema.into();
        if !self.dialect.has_schemas() {
            return Err(bad("a database of MySQL or MariaDB has no schemas: use a database"));
        }
        if schema.is_empty() || schema.len() > 63 || !plain(&schema) {
            return Err(bad("a schema has 1 to 63 ASCII letters, digits and underscores"));
        }
        self.schema = Some(schema);
        Ok(self)
    }

    /// Waits this long for a connection. Default: three seconds.
    #[must_use]
    pub fn with_connect_limit(mut self, limit: Duration) -> Self {
        self.connect = limit;
        self
    }

    /// Waits this long for an answer. Default: two seconds.
    #[must_use]
    pub fn with_command_limit(mut self, limit: Duration) -> Self {
        self.command = limit;
        self
    }

    /// Opens this many connections at most. Default: 4, or 32 locks with
    /// [`Strategy::Session`].
    #[must_use]
    pub fn with_connections(mut self, connections: usize) -> Self {
        self.connections = Some(connections.clamp(1, 1000));
        self
    }

    /// Encrypts; trusts the certificates in the file `ca`, or the system's.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, ca: Option<PathBuf>) -> Self {
        (self.tls, self.ca) = (true, ca);
        self
    }

    /// How many connections or sessions there may be.
    pub(super) fn limit(&self) -> usize {
        self.connections.unwrap_or(match self.strategy {
            Strategy::Lease => CONNECTIONS,
            Strategy::Session => SESSIONS,
        })
    }

    /// The whole name of a table of ours, quoted.
    pub(super) fn table(&self, name: &str) -> String {
        let table = self.dialect.quote(&format!("{}{name}", self.prefix));
        match &self.schema {
            Some(schema) => format!("{}.{table}", self.dialect.quote(schema)),
            None => table,
        }
    }
}

#[async_trait]
impl Connect for Sql {
    fn label(&self) -> Arc<str> {
        let place = match &self.socket {
            Some(path) => encode(&path.display().to_string()),
            None if self.host.contains(':') => format!("[{}]:{}", self.host, self.port),
            None => format!("{}:{}", self.host, self.port),
        };
        let mut label = format!("{}://{place}/{}", self.dialect.scheme(), encode(&self.database));
        let mut sign = '?';
        let mut add = |key: &str, value: &str| {
            label.push_str(&format!("{sign}{key}={value}"));
            sign = '&';
        };
        if let Some(schema) = &self.schema {
            add("schema", schema);
        }
        if self.prefix != PREFIX {
            add("prefix", &self.prefix);
        }
        if self.strategy == Strategy::Session {
            add("strategy", "session");
        }
        label.into()
    }

    async fn open(&self, seat: Seat) -> Result<Arc<dyn Engine>> {
        super::open(self.clone(), seat).await
    }
}

impl fmt::Debug for Sql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sql").field(&self.label()).finish()
    }
}

fn plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    /// The schemes that are built in.
    fn schemes() -> impl Iterator<Item = &'static str> {
        ["mysql", "postgres"].into_iter().filter(|scheme| Sql::knows(scheme))
    }

    #[test]
    fn a_url_names_everything() {
        for scheme in schemes() {
            let url = format!(
                "{scheme}://me:p%40ss@[::1]:7000/shop?prefix=shop_&connect=300ms&command=3s\
                 &connections=9&strategy=session"
            );
            let sql = Sql::parse(&url).unwrap();
            assert_eq!((sql.host.as_str(), sql.port), ("::1", 7000));
            assert_eq!(sql.user.as_deref(), Some("me"));
            assert_eq!(sql.password.as_deref(), Some("p@ss"));
            assert_eq!((sql.database.as_str(), sql.prefix.as_str()), ("shop", "shop_"));
            assert_eq!(sql.connect, Duration::from_millis(300));
            assert_eq!(sql.command, Duration::from_secs(3));
            assert_eq!((sql.limit(), sql.strategy), (9, Strategy::Session));
            let label = format!("{scheme}://[::1]:7000/shop?prefix=shop_&strategy=session");
            assert_eq!(*sql.label(), *label);
        }
    }

    #[test]
    fn a_short_url_has_defaults() {
        for scheme in schemes() {
            let sql = Sql::parse(&format!("{scheme}://host/db")).unwrap();
            assert_eq!(sql.port, sql.dialect.port());
            assert_eq!((sql.user, sql.password, sql.tls), (None, None, false));
            assert_eq!(sql.strategy, Strategy::Lease);
            let sql = Sql::parse(&format!("{scheme}://h/db?socket=/run/s")).unwrap();
            assert_eq!(*sql.label(), *format!("{scheme}:///run/s/db"));
        }
    }

    #[test]
    fn nonsense_is_refused_without_its_secrets() {
        for scheme in schemes() {
            for rest in [
                "",
                "u:hunter2@",
                "u:hunter2@h",
                "u:hunter2@h/",
                "u:hunter2@/db",
                "u:hunter2@h:x/db",
                "u:hun@ter2@h:99999/db",
                "u:hunter2@a,b/db",
                "u:hunter2@h/db/hunter2",
                "u:hunter2@h/db?what=hunter2",
                "u:hunter2@h/db?hunter2",
                "u:hunter2@h/db?connect=hunter2",
                "u:hunter2@h/db?command=2h",
                "u:hunter2@h/db?connections=0",
                "u:hunter2@h/db?strategy=hunter2",
                "u:hunter2@h/db?prefix=hunter2-",
                "u:hunter2@h/db?prefix=",
                "u:hunter2@h/db?schema=hunter2;",
                "u:hunter2@h/db?tls=hunter2",
                "u:hunter2@h/db?sslmode=require",
                "u:hunter2@h/db?ca=hunter2",
                "u:hunter2@h/db?socket=hunter2",
                "u:hunter2%@h/db",
            ] {
                let error = Sql::parse(&format!("{scheme}://{rest}")).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid, "{rest}");
                assert!(!format!("{error} {error:?}").contains("ter2"), "{error:?}");
            }
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for scheme in schemes() {
            let sql = Sql::parse(&format!("{scheme}://u:hunter2@h/d?password=hunter2")).unwrap();
            assert!(!format!("{sql:?} {}", sql.label()).contains("hunter2"));
        }
    }
}
