//! Where a ZooKeeper ensemble is and how to talk to it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::ZooKeeperEngine;
use crate::engine::{Connect, Engine, Seat};
use crate::error::Result;
use crate::url::parts::{
    bad, decode, encode, filled, host_and_port, parameters, span, split_login, time,
};

/// What a session is, to whoever wrote something else.
const NO_SESSION: &str = "a session lasts from 1s to 1h";

/// The port of a member that a URL names without one.
const PORT: u16 = 2181;
/// The port of an encrypted member that a URL names without one.
const TLS_PORT: u16 = 2281;
/// The session asked for unless the URL says otherwise.
const SESSION: Duration = Duration::from_secs(10);
/// What a server's `tickTime` is unless the URL says otherwise: its default.
const TICK: Duration = Duration::from_secs(2);

/// Opens engines on a ZooKeeper ensemble, from a URL or from typed settings.
///
/// `zookeeper://[user:password@]h1[:port],h2,…[/chroot]`, encrypted as
/// `zookeepers://` (feature `tls`). The node behind the chroot must exist; below
/// it every lock name is one node, laid out as Apache Curator does it.
///
/// Parameters after `?`:
///
/// | | |
/// |---|---|
/// | `session` | the session to ask the server for, `10s`; no lease can be shorter |
/// | `tick` | at least the servers' `tickTime`, `2s`: the larger, the earlier a silent lock is lost |
/// | `strict` | `yes`: renew by a write that a majority commits instead of by a `sync` |
/// | `auth` | how user and password are shown: `digest`, or `sasl` (DIGEST-MD5) |
/// | `acl` | who may touch our nodes: `open`, or `creator` (see [`ZooKeeperAcl`]) |
/// | `user`, `password` | instead of those before the `@` |
/// | `connect`, `command` | limits, as in `300ms` or `2s`: `4s` to open a session, `2s` per request |
/// | `ca`, `cert`, `key` | files of an encrypted connection: whom to trust, and who we are |
///
/// Reserved characters in any part are written as `%XX`.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use lockkeeper::{Keeper, ZooKeeper};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let keeper = Keeper::connect("zookeeper://zk1,zk2,zk3/locks?session=6s").await?;
/// // The same, with typed settings:
/// let members = ["zk1", "zk2", "zk3"].map(|host| (host.to_owned(), 2181));
/// let zookeeper = ZooKeeper::at(members)?.with_chroot("/locks")?;
/// let keeper = Keeper::new(zookeeper.with_session(Duration::from_secs(6))?).await?;
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct ZooKeeper {
    pub(super) members: Vec<(String, u16)>,
    pub(super) chroot: String,
    pub(super) session: Duration,
    pub(super) tick: Duration,
    pub(super) strict: bool,
    pub(super) sasl: bool,
    pub(super) acl: ZooKeeperAcl,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) connect: Duration,
    pub(super) command: Duration,
    pub(super) tls: bool,
    pub(super) ca: Option<PathBuf>,
    pub(super) identity: (Option<PathBuf>, Option<PathBuf>),
}

/// Who may touch the nodes we make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZooKeeperAcl {
    /// Everybody who reaches the ensemble, as Curator does by default.
    #[default]
    Open,
    /// Whoever has shown the same user and password. Everybody who uses the
    /// locks must, and so must whoever wants to break them.
    Creator,
}

impl ZooKeeper {
    /// The ensemble of these members.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) without members.
    pub fn at(members: impl IntoIterator<Item = (String, u16)>) -> Result<Self> {
        let members: Vec<_> = members.into_iter().collect();
        if members.is_empty() || members.iter().any(|(host, _)| !is_host(host)) {
            return Err(bad("a zookeeper needs a host"));
        }
        Ok(ZooKeeper {
            members,
            chroot: "/".to_owned(),
            session: SESSION,
            tick: TICK,
            strict: false,
            sasl: false,
            acl: ZooKeeperAcl::Open,
            user: None,
            password: None,
            connect: Duration::from_secs(4),
            command: Duration::from_secs(2),
            tls: false,
            ca: None,
            identity: (None, None),
        })
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that makes no
    /// sense; the message never repeats a secret.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("not a zookeeper URL"))?;
        let tls = match scheme {
            "zookeeper" => false,
            "zookeepers" if cfg!(feature = "tls") => true,
            "zookeepers" => {
                return Err(bad("this program is built without encryption (feature tls)"));
            }
            _ => return Err(bad("not a zookeeper URL")),
        };
        let (body, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, body) = split_login(body)?;
        let (hosts, chroot) = match body.split_once('/') {
            Some((hosts, path)) => (hosts, format!("/{path}")),
            None => (body, "/".to_owned()),
        };
        let port = if tls { TLS_PORT } else { PORT };
        let members = hosts.split(',').map(|place| member(place, port));
        let mut zookeeper = ZooKeeper::at(members.collect::<Result<Vec<_>>>()?)?;
        zookeeper = zookeeper.with_chroot(decode(&chroot)?)?;
        zookeeper.tls = tls;
        (zookeeper.user, zookeeper.password) = login;
        for parameter in parameters(query) {
            let (key, value) = parameter?;
            zookeeper = zookeeper.with_parameter(key, &value)?;
        }
        zookeeper.check()?;
        Ok(zookeeper)
    }

    fn with_parameter(self, key: &str, value: &str) -> Result<Self> {
        let file = |path: &str| Some(PathBuf::from(path));
        match (key, value) {
            ("session", _) => self.with_session(time(value).ok_or_else(|| bad(NO_SESSION))?),
            ("tick", _) => Ok(self.with_tick(span("tick", value)?)),
            ("connect", _) => Ok(self.with_connect_limit(span("connect", value)?)),
            ("command", _) => Ok(self.with_command_limit(span("command", value)?)),
            ("strict", "yes" | "no") => Ok(self.with_strict(value == "yes")),
            ("strict", _) => Err(bad("strict is yes or no")),
            ("auth", "digest" | "sasl") => Ok(ZooKeeper { sasl: value == "sasl", ..self }),
            ("auth", _) => Err(bad("auth is digest or sasl")),
            ("acl", "open") => Ok(self.with_acl(ZooKeeperAcl::Open)),
            ("acl", "creator") => Ok(self.with_acl(ZooKeeperAcl::Creator)),
            ("acl", _) => Err(bad("acl is open or creator")),
            ("user", _) => Ok(ZooKeeper { user: filled(value.to_owned()), ..self }),
            ("password", _) => Ok(ZooKeeper { password: filled(value.to_owned()), ..self }),
            ("ca" | "cert" | "key", _) if !self.tls => {
                Err(bad("certificates are for encrypted connections: zookeepers://"))
            }
            ("ca", _) => Ok(ZooKeeper { ca: file(value), ..self }),
            ("cert", _) => Ok(ZooKeeper { identity: (file(value), self.identity.1), ..self }),
            ("key", _) => Ok(ZooKeeper { identity: (self.identity.0, file(value)), ..self }),
            // It may be a secret that lost its name, so it is not repeated.
            _ => Err(bad(
                "a zookeeper URL has no such parameter; there are session, tick, strict, auth, \
                 acl, user, password, connect, command, ca, cert and key",
            )),
        }
    }

    /// What only makes sense together.
    pub(super) fn check(&self) -> Result<()> {
        if self.user.is_some() != self.password.is_some() {
            return Err(bad("a zookeeper login is a user and a password"));
        }
        if self.user.is_none() && (self.sasl || self.acl == ZooKeeperAcl::Creator) {
            return Err(bad("auth=sasl and acl=creator need a user and a password"));
        }
        if self.tls && self.ca.is_none() {
            return Err(bad("zookeepers:// needs ca, a file of the certificates to trust"));
        }
        if self.identity.0.is_some() != self.identity.1.is_some() {
            return Err(bad("cert and key belong together"));
        }
        Ok(())
    }

    /// Keeps everything below this node, which must exist. Default: `/`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for what is no absolute path of nodes.
    pub fn with_chroot(mut self, path: impl Into<String>) -> Result<Self> {
        let path = path.into();
        let path = if path.len() > 1 { path.trim_end_matches('/') } else { &path };
        let odd = |part: &str| {
            part.is_empty() || part == "." || part == ".." || part.chars().any(char::is_control)
        };
        let parts = path.strip_prefix('/').ok_or_else(|| bad("a chroot starts with /"))?;
        if (!parts.is_empty() && parts.split('/').any(odd)) || path.len() > 512 {
            return Err(bad("the chroot of a zookeeper URL is no path of nodes"));
        }
        self.chroot = path.to_owned();
        Ok(self)
    }

    /// Asks the server for a session of this length. Default: ten seconds.
    ///
    /// The server may make it longer or shorter; what it grants is the shortest
    /// lease of this keeper, and how long a dead one blocks its names.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) below one second or above an hour.
    pub fn with_session(mut self, session: Duration) -> Result<Self> {
        if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&session) {
            return Err(bad(NO_SESSION));
        }
        self.session = session;
        Ok(self)
    }

    /// Says what the servers' `tickTime` is at most. Default: two seconds.
    #[must_use]
    pub fn with_tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Renews by a write, which a majority commits, instead of by a `sync`,
    /// which a leader that was just deposed could still answer. Default: no.
    #[must_use]
    pub fn with_strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Shows this user and password, by the scheme `digest`.
    #[must_use]
    pub fn with_login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        (self.user, self.password, self.sasl) = (Some(user.into()), Some(password.into()), false);
        self
    }

    /// Logs in as this user by SASL, with DIGEST-MD5.
    #[must_use]
    pub fn with_sasl(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        (self.user, self.password, self.sasl) = (Some(user.into()), Some(password.into()), true);
        self
    }

    /// Says who may touch our nodes. Default: everybody.
    #[must_use]
    pub fn with_acl(mut self, acl: ZooKeeperAcl) -> Self {
        self.acl = acl;
        self
    }

    /// Encrypts, and trusts the certificates in the file `ca`.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, ca: impl Into<PathBuf>) -> Self {
        (self.tls, self.ca) = (true, Some(ca.into()));
        self
    }

    /// Shows the certificate in the file `cert`, with the key in `key`.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_identity(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = (Some(cert.into()), Some(key.into()));
        self
    }

    /// Waits this long for a session. Default: four seconds.
    #[must_use]
    pub fn with_connect_limit(mut self, limit: Duration) -> Self {
        self.connect = limit;
        self
    }

    /// Waits this long for the answer to a request. Default: two seconds.
    #[must_use]
    pub fn with_command_limit(mut self, limit: Duration) -> Self {
        self.command = limit;
        self
    }

    /// The members and the chroot, as the client wants them.
    pub(super) fn cluster(&self) -> String {
        let chroot = if self.chroot == "/" { "" } else { &self.chroot };
        format!("{}{chroot}", self.hosts())
    }

    /// The members, for people.
    pub(super) fn hosts(&self) -> String {
        let places = self.members.iter().map(|(host, port)| place(host, *port));
        places.collect::<Vec<_>>().join(",")
    }
}

/// Where a member is.
pub(super) fn place(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

#[async_trait]
impl Connect for ZooKeeper {
    fn label(&self) -> Arc<str> {
        let scheme = if self.tls { "zookeepers" } else { "zookeeper" };
        format!("{scheme}://{}{}", self.hosts(), encode(&self.chroot).replace('@', "%40")).into()
    }

    async fn open(&self, seat: Seat) -> Result<Arc<dyn Engine>> {
        self.check()?;
        Ok(Arc::new(ZooKeeperEngine::open(self.clone(), self.label(), seat).await?))
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ZooKeeper").field(&self.label()).finish()
    }
}

/// Whether this can be the name or address of a host.
fn is_host(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    !host.is_empty() && host.len() <= 253 && host.bytes().all(plain)
}

/// Reads `host`, `host:port`, `[address]` or `[address]:port`.
fn member(place: &str, default: u16) -> Result<(String, u16)> {
    match host_and_port(place, default)? {
        (_, 0) => Err(bad("a port is a number from 1 to 65535")),
        member => Ok(member),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_url_names_everything() {
        let url = "zookeeper://me:p%40ss@zk1,zk2:2182,[::1]:7/a/b?session=6s&tick=500ms\
                   &strict=yes&auth=sasl&acl=creator&connect=300ms&command=1s";
        let zookeeper = ZooKeeper::parse(url).unwrap();
        assert_eq!(zookeeper.cluster(), "zk1:2181,zk2:2182,[::1]:7/a/b");
        assert_eq!(zookeeper.user.as_deref(), Some("me"));
        assert_eq!(zookeeper.password.as_deref(), Some("p@ss"));
        assert_eq!(zookeeper.session, Duration::from_secs(6));
        assert_eq!(zookeeper.tick, Duration::from_millis(500));
        assert!(zookeeper.strict && zookeeper.sasl);
        assert_eq!(zookeeper.acl, ZooKeeperAcl::Creator);
        assert_eq!(zookeeper.connect, Duration::from_millis(300));
        assert_eq!(zookeeper.command, Duration::from_secs(1));
        assert_eq!(&*zookeeper.label(), "zookeeper://zk1:2181,zk2:2182,[::1]:7/a/b");
    }

    #[test]
    fn a_short_url_has_defaults() {
        let zookeeper = ZooKeeper::parse("zookeeper://zk1").unwrap();
        assert_eq!(zookeeper.cluster(), "zk1:2181");
        assert_eq!(&*zookeeper.label(), "zookeeper://zk1:2181/");
        assert_eq!(zookeeper.session, Duration::from_secs(10));
        let slash = ZooKeeper::parse("zookeeper://zk1/a/").unwrap();
        assert_eq!(slash.label(), ZooKeeper::parse("zookeeper://zk1/a").unwrap().label());
    }

    #[test]
    fn nonsense_is_refused_without_its_secrets() {
        for url in [
            "zookeeper://",
            "zookeeper:host",
            "zookeeper://u:hunter2@",
            "zookeeper://u:hunter2@h:x",
            "zookeeper://u:hunter2@h:0",
            "zookeeper://u:hun@ter2@h:99999",
            "zookeeper://u:hunter2@h,,i",
            "zookeeper://u:hunter2@h i",
            "zookeeper://u:hunter2@h//hunter2",
            "zookeeper://u:hunter2@h/../hunter2",
            "zookeeper://u:hunter2@h?what=hunter2",
            "zookeeper://u:hunter2@h?hunter2",
            "zookeeper://u:hunter2@h?session=hunter2",
            "zookeeper://u:hunter2@h?session=10ms",
            "zookeeper://u:hunter2@h?auth=hunter2",
            "zookeeper://u:hunter2@h?ca=hunter2",
            "zookeeper://hunter2@h",
            "zookeeper://h?auth=sasl",
            "zookeeper://h?acl=creator",
            "zookeeper://u:hunter2%@h",
            "zookeepers://u:hunter2@h",
        ] {
            let error = ZooKeeper::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!format!("{error} {error:?}").contains("ter2"), "{error:?}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let zookeeper = ZooKeeper::parse("zookeeper://u:hunter2@h?password=hunter2").unwrap();
        assert!(!format!("{zookeeper:?} {}", zookeeper.label()).contains("hunter2"));
    }
}
