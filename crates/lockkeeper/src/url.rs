//! Engine URLs: which engine, and how to print one without its secrets.

#[cfg(any(feature = "redis", feature = "mysql", feature = "postgres", feature = "zookeeper"))]
pub(crate) mod parts;

use std::sync::Arc;

use crate::engine::Connect;
use crate::engine::memory::Memory;
use crate::error::{Result, invalid};

/// Finds the engine behind a URL.
pub(crate) fn parse(url: &str) -> Result<Arc<dyn Connect>> {
    if ["/", "./", "../"].iter().any(|start| url.starts_with(start)) {
        return local(url);
    }
    let Some((scheme, rest)) = url.split_once(':') else {
        let text = format!("{:?} is not an engine URL; try local: or memory:", redact(url));
        return Err(invalid(text).during("connect"));
    };
    match (scheme, rest) {
        ("local", dir) => local(dir),
        ("memory", "") => Ok(Arc::new(Memory::private())),
        ("memory", name) if name.len() <= 256 => Ok(Arc::new(Memory::shared(name))),
        ("memory", _) => Err(invalid("the name of a memory engine may have 256 bytes at most")),
        #[cfg(feature = "redis")]
        (scheme, _) if scheme.starts_with("redis") => {
            Ok(Arc::new(crate::engine::redis::Redis::parse(url)?))
        }
        #[cfg(feature = "zookeeper")]
        ("zookeeper" | "zookeepers", _) => {
            Ok(Arc::new(crate::engine::zookeeper::ZooKeeper::parse(url)?))
        }
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        (scheme, _) if crate::engine::sql::Sql::knows(scheme) => {
            Ok(Arc::new(crate::engine::sql::Sql::parse(url)?))
        }
        _ => Err(invalid(format!(
            "{:?} names no engine of this program; it knows local:, memory:, redis:, \
             zookeeper:, mysql: and postgres: as far as they are built in",
            redact(url)
        ))
        .during("connect")),
    }
}

/// The embedded engine in a directory; an empty one is the user's.
#[cfg(all(unix, feature = "local"))]
fn local(dir: &str) -> Result<Arc<dyn Connect>> {
    use crate::engine::local::Local;

    match dir {
        "" => Ok(Arc::new(Local::of_user())),
        // Two slashes would name a host, and there is none to ask.
        _ if dir.starts_with("//") && !dir.starts_with("///") => {
            Err(invalid(format!("local:{dir} names a host; write local:/some/directory"))
                .during("connect"))
        }
        _ => Ok(Arc::new(Local::at(dir))),
    }
}

#[cfg(not(all(unix, feature = "local")))]
fn local(_: &str) -> Result<Arc<dyn Connect>> {
    Err(invalid("this program was built without the embedded engine (local:)").during("connect"))
}

/// A URL without user information and without the values of parameters.
///
/// What is left may go into logs, errors and process lists.
///
/// # Examples
/// ```
/// use lockkeeper::redact;
///
/// assert_eq!(redact("redis://me:secret@host:6379/0?password=x&db=1"),
///            "redis://host:6379/0?password=…&db=…");
/// ```
pub fn redact(url: &str) -> String {
    let (body, query) = match url.split_once('?') {
        Some((body, query)) => (body, Some(query)),
        None => (url, None),
    };
    // An unescaped @ in a password is wrong, but must not leak half of it.
    let mut out = match (body.split_once("://"), body.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        _ => body.to_owned(),
    };
    if let Some(query) = query {
        let hide = |pair: &str| match pair.split_once('=') {
            Some((key, _)) => format!("{key}=…"),
            None => "…".to_owned(),
        };
        out.push('?');
        out.push_str(&query.split('&').map(hide).collect::<Vec<_>>().join("&"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_survives() {
        for url in [
            "redis://user:hunter2@host/0",
            "redis://user:hun@ter2@host/0",
            "redis+sentinel://:hunter2@a:1,b:2/m",
            "postgres://host/db?password=hunter2",
            "user:hunter2@host",
            "mysql://u:hunter2@host?x=hunter2",
            "zookeeper://u:hunter2@host,other/locks",
            "zookeeper://u:hun@ter2@host?auth=hunter2",
            "redis://host?hunter2",
        ] {
            let shown = redact(url);
            assert!(!shown.contains("ter2"), "{shown}");
            assert!(shown.contains("host") || shown.contains("a:1"), "{shown}");
            // With its engine built in, a URL may well be good.
            let said = match parse(url) {
                Ok(connect) => format!("{} {connect:?}", connect.label()),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!said.contains("ter2"), "{said:?}");
        }
    }

    #[test]
    fn the_same_memory_name_is_the_same_engine() {
        let one = parse("memory:a").unwrap();
        assert_eq!(one.label(), parse("memory:a").unwrap().label());
        assert_ne!(one.label(), parse("memory:b").unwrap().label());
        assert_ne!(parse("memory:").unwrap().label(), parse("memory:").unwrap().label());
    }

    #[cfg(all(unix, feature = "local"))]
    #[test]
    fn a_path_is_the_embedded_engine() {
        for url in ["local:/var/locks", "/var/locks", "local:///var/locks"] {
            let label = parse(url).unwrap().label();
            assert!(label.ends_with("/var/locks") && label.starts_with("local:"), "{label}");
        }
        assert_eq!(&*parse("local:").unwrap().label(), "local:");
        assert!(parse("./locks").unwrap().label().starts_with("local:/"));
        assert!(parse("local://host/locks").is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        for url in ["", "memory", "nothing:x", &format!("memory:{}", "x".repeat(300))] {
            assert_eq!(parse(url).unwrap_err().kind(), crate::ErrorKind::Invalid, "{url}");
        }
    }
}
