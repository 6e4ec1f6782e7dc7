//! Where a Redis is and how to talk to it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::RedisEngine;
use crate::engine::{Connect, Engine, Seat};
use crate::error::Result;
use crate::url::parts::{bad, encode};

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
/// | `redis+sentinel://[user:password@]h1[:port],h2,…/master[/database]` | the master that these sentinels name |
/// | `redis+cluster://[user:password@]h1[:port],h2,…` | a cluster, found through any of these nodes |
/// | `rediss://`, `rediss+sentinel://`, `rediss+cluster://` | the same, encrypted (feature `tls`) |
///
/// Parameters after `?`: `prefix` (of all keys and channels, `lk:`), `connect` and
/// `command` (limits as in `300ms` or `2s`, one second each), `db`, `user`, `password`,
/// `sentinel_user` and `sentinel_password`, `confirm` (`none`, `one`, `majority` or `all`
/// replicas, see [`Confirm`]), and `ca` (a file of certificates to trust instead of the
/// system's). Reserved characters in any part are written as `%XX`.
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
    pub(super) topology: Topology,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) sentinel_user: Option<String>,
    pub(super) sentinel_password: Option<String>,
    pub(super) database: u32,
    pub(super) prefix: String,
    pub(super) connect: Duration,
    pub(super) command: Duration,
    pub(super) tls: bool,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "only encryption reads it"))]
    pub(super) ca: Option<PathBuf>,
    pub(super) confirm: Confirm,
}

/// How many replicas must have a grant before a guard is made of it.
///
/// A grant that fewer confirm in time is given back and asked for anew. A
/// failover to a replica that has not confirmed it can still forget it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confirm {
    /// None: the master's word is enough.
    #[default]
    None,
    /// One.
    One,
    /// So many that they and the master are a majority of the servers.
    Majority,
    /// All that the master has had since this keeper met it.
    All,
}

impl Confirm {
    /// How many of a master's replicas must confirm; never none.
    pub(super) fn needed(self, replicas: u32) -> u32 {
        match self {
            Confirm::None => 0,
            Confirm::One => 1,
            Confirm::Majority => replicas.div_ceil(2).max(1),
            Confirm::All => replicas.max(1),
        }
    }
}

/// Which servers there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    Single(Place),
    Sentinel { sentinels: Vec<Place>, master: String },
    Cluster { nodes: Vec<Place> },
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Place::Tcp { host, port } => write!(f, "{host}:{port}"),
            Place::Unix(path) => write!(f, "{}", path.display()),
        }
    }
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
        Ok(Redis::new(Topology::Single(Place::Tcp { host, port })))
    }

    /// The server behind a Unix socket.
    pub fn at_socket(path: impl Into<PathBuf>) -> Self {
        Redis::new(Topology::Single(Place::Unix(path.into())))
    }

    /// The master of this name, wherever these sentinels say it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) without sentinels or a name.
    pub fn behind_sentinels(
        sentinels: impl IntoIterator<Item = (String, u16)>,
        master: impl Into<String>,
    ) -> Result<Self> {
        let (sentinels, master) = (places(sentinels)?, master.into());
        if master.is_empty() {
            return Err(bad("a master behind sentinels has a name"));
        }
        Ok(Redis::new(Topology::Sentinel { sentinels, master }))
    }

    /// The cluster that these nodes belong to.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) without nodes.
    pub fn cluster(nodes: impl IntoIterator<Item = (String, u16)>) -> Result<Self> {
        Ok(Redis::new(Topology::Cluster { nodes: places(nodes)? }))
    }

    pub(super) fn new(topology: Topology) -> Self {
        Redis {
            topology,
            user: None,
            password: None,
            sentinel_user: None,
            sentinel_password: None,
            database: 0,
            prefix: PREFIX.to_owned(),
            connect: Duration::from_secs(1),
            command: Duration::from_secs(1),
            tls: false,
            ca: None,
            confirm: Confirm::None,
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

    /// Makes a guard only of grants that so many replicas have. Default: none.
    #[must_use]
    pub fn with_confirm(mut self, confirm: Confirm) -> Self {
        self.confirm = confirm;
        self
    }

    /// Encrypts; trusts the certificates in the file `ca`, or the system's.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, ca: Option<PathBuf>) -> Self {
        (self.tls, self.ca) = (true, ca);
        self
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
        let scheme = if self.tls { "rediss" } else { "redis" };
        let listed = |places: &[Place]| {
            let places: Vec<String> = places.iter().map(Place::to_string).collect();
            places.join(",")
        };
        let (base, sign) = match &self.topology {
            Topology::Single(Place::Unix(path)) => {
                (format!("redis+unix://{}?db={}", path.display(), self.database), '&')
            }
            Topology::Single(place) => (format!("{scheme}://{place}/{}", self.database), '?'),
            Topology::Sentinel { sentinels, master } => {
                let (hosts, master) = (listed(sentinels), encode(master));
                (format!("{scheme}+sentinel://{hosts}/{master}/{}", self.database), '?')
            }
            Topology::Cluster { nodes } => (format!("{scheme}+cluster://{}", listed(nodes)), '?'),
        };
        if prefix.is_empty() { base.into() } else { format!("{base}{sign}{prefix}").into() }
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

fn places(hosts: impl IntoIterator<Item = (String, u16)>) -> Result<Vec<Place>> {
    let places: Vec<Place> =
        hosts.into_iter().map(|(host, port)| Place::Tcp { host, port }).collect();
    let empty = |place: &Place| matches!(place, Place::Tcp { host, .. } if host.is_empty());
    if places.is_empty() || places.iter().any(empty) {
        return Err(bad("a redis needs a host"));
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirmation_never_asks_for_nobody() {
        for (confirm, expected) in [
            (Confirm::None, [0, 0, 0, 0, 0]),
            (Confirm::One, [1, 1, 1, 1, 1]),
            (Confirm::Majority, [1, 1, 1, 2, 2]),
            (Confirm::All, [1, 1, 2, 3, 4]),
        ] {
            assert_eq!([0, 1, 2, 3, 4].map(|replicas| confirm.needed(replicas)), expected);
        }
        assert_eq!(Redis::parse("redis://h?confirm=majority").unwrap().confirm, Confirm::Majority);
        assert!(Redis::parse("redis://h?confirm=2").is_err());
    }
}
