//! Reads the URLs of servers.

use super::config::{Confirm, Place, Redis, Topology};
use crate::error::Result;
use crate::url::parts::{bad, decode, filled, host_and_port, parameters, span, split_login};

/// The port of a URL that names none.
const PORT: u16 = 6379;
/// The port of a sentinel that a URL names without one.
const SENTINEL_PORT: u16 = 26379;

impl Redis {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that makes no
    /// sense; the message never repeats a secret.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("not a redis URL"))?;
        let (body, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (scheme, tls) = match scheme.strip_prefix("rediss") {
            Some(rest) => (format!("redis{rest}"), true),
            None => (scheme.to_owned(), false),
        };
        let mut redis = match scheme.as_str() {
            "redis" | "redis+sentinel" | "redis+cluster" => Redis::parse_tcp(&scheme, body)?,
            "redis+unix" if !tls => Redis::parse_unix(body)?,
            _ => return Err(bad("not a redis URL")),
        };
        if tls && cfg!(not(feature = "tls")) {
            return Err(bad("this program is built without encryption (feature tls)"));
        }
        redis.tls = tls;
        for parameter in parameters(query) {
            let (key, value) = parameter?;
            redis = redis.with_parameter(key, &value)?;
        }
        if matches!(redis.topology, Topology::Cluster { .. }) && redis.database != 0 {
            return Err(bad("a cluster has no databases but 0"));
        }
        Ok(redis)
    }

    fn parse_tcp(scheme: &str, body: &str) -> Result<Self> {
        let (login, body) = split_login(body)?;
        let (hosts, path) = body.split_once('/').unwrap_or((body, ""));
        let port = if scheme == "redis+sentinel" { SENTINEL_PORT } else { PORT };
        let places: Vec<Place> =
            hosts.split(',').map(|place| tcp(place, port)).collect::<Result<_>>()?;
        let (topology, database) = match scheme {
            "redis+sentinel" => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                let master = decode(master)?;
                if master.is_empty() {
                    return Err(bad("a sentinel URL ends in the name of its master"));
                }
                (Topology::Sentinel { sentinels: places, master }, database)
            }
            "redis+cluster" => (Topology::Cluster { nodes: places }, path),
            _ => match <[Place; 1]>::try_from(places) {
                Ok([place]) => (Topology::Single(place), path),
                Err(_) => return Err(bad("redis:// names one server; see redis+cluster://")),
            },
        };
        let mut redis = Redis::new(topology);
        if !database.is_empty() {
            redis = redis.with_parameter("db", &decode(database)?)?;
        }
        (redis.user, redis.password) = login;
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
            "sentinel_user" => Ok(Redis { sentinel_user: filled(value.to_owned()), ..self }),
            "sentinel_password" => {
                Ok(Redis { sentinel_password: filled(value.to_owned()), ..self })
            }
            "confirm" => {
                let confirm = match value {
                    "none" => Confirm::None,
                    "one" => Confirm::One,
                    "majority" => Confirm::Majority,
                    "all" => Confirm::All,
                    _ => return Err(bad("confirm is none, one, majority or all")),
                };
                Ok(self.with_confirm(confirm))
            }
            "ca" if self.tls => Ok(Redis { ca: Some(value.into()), ..self }),
            "ca" => Err(bad("certificates are for encrypted connections: rediss://")),
            // It may be a secret that lost its name, so it is not repeated.
            _ => Err(bad(
                "a redis URL has no such parameter; there are prefix, connect, command, db, user, \
                 password, sentinel_user, sentinel_password, confirm and ca",
            )),
        }
    }
}

/// Reads `host`, `host:port`, `[address]` or `[address]:port`.
pub(super) fn tcp(place: &str, default: u16) -> Result<Place> {
    let (host, port) = host_and_port(place, default)?;
    Ok(Place::Tcp { host, port })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ErrorKind;
    use crate::engine::Connect;

    #[test]
    fn a_url_names_everything() {
        let url = "redis://me:p%40ss@[::1]:7000/3?prefix=shop%3A&connect=300ms&command=2s";
        let redis = Redis::parse(url).unwrap();
        assert_eq!(redis.topology, Topology::Single(tcp("[::1]:7000", PORT).unwrap()));
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
        assert_eq!(redis.topology, Topology::Single(tcp("host", PORT).unwrap()));
        assert_eq!(&*redis.label(), "redis://host:6379/0");
        let redis = Redis::parse("redis+unix:///run/r.sock?db=2").unwrap();
        assert_eq!(redis.topology, Topology::Single(Place::Unix("/run/r.sock".into())));
        assert_eq!(&*redis.label(), "redis+unix:///run/r.sock?db=2");
        assert_eq!(Redis::parse("redis://:pw@h").unwrap().password.as_deref(), Some("pw"));
    }

    #[test]
    fn several_servers_are_named_by_one_url() {
        let redis = Redis::parse("redis+sentinel://:pw@a,b:1,[::1]/main/2").unwrap();
        assert_eq!(redis.database, 2);
        let label = "redis+sentinel://a:26379,b:1,[::1]:26379/main/2";
        assert_eq!(&*redis.label(), label);
        assert_eq!(&*Redis::parse(label).unwrap().label(), label);
        let redis = Redis::parse("redis+cluster://u:pw@a:7000,b?prefix=x").unwrap();
        assert_eq!(&*redis.label(), "redis+cluster://a:7000,b:6379?prefix=x");
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
            "redis://u:hunter2@a,b",
            "redis+sentinel://u:hunter2@a,b",
            "redis+cluster://u:hunter2@a,b/3",
            "redis+cluster://u:hunter2@a,,b",
            "redis://u:hunter2@h?ca=hunter2",
            "redis+what://u:hunter2@h",
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
}
