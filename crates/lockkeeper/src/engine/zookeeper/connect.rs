//! From a configuration to a session, or a sentence that says why there is none.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_client::{Client, Connector, Error as ZkError, SaslOptions};

use super::config::{ZooKeeper, place};
use super::fault::Trouble;
use crate::error::{Error, ErrorKind, Result};

/// How long finding out why there is no session may take.
const LOOK_LIMIT: Duration = Duration::from_millis(500);

/// What a member says of itself is short.
const MOST_SAID: u64 = 4096;

/// For how long a member may say nothing before another one is tried.
const LEAST_SILENCE: Duration = Duration::from_millis(700);

/// Opens a session.
pub(super) async fn connect(zookeeper: &ZooKeeper) -> Result<Client> {
    let connector = connector(zookeeper)?;
    let insist = async {
        loop {
            // The client gives up after one session's time.
            match dial(zookeeper, connector.clone()).await {
                Err(ZkError::Timeout) => {}
                opened => return opened,
            }
        }
    };
    match tokio::time::timeout(zookeeper.connect, insist).await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(ZkError::AuthFailed)) => Err(Trouble::from(ZkError::AuthFailed).into()),
        Ok(Err(error)) => Err(why_not(zookeeper).await.because(error)),
        Err(_) => Err(why_not(zookeeper).await),
    }
}

async fn dial(zookeeper: &ZooKeeper, connector: Connector) -> std::result::Result<Client, ZkError> {
    let cluster = zookeeper.cluster();
    #[cfg(feature = "tls")]
    if zookeeper.tls {
        return connector.secure_connect(&cluster).await;
    }
    connector.connect(&cluster).await
}

fn connector(zookeeper: &ZooKeeper) -> Result<Connector> {
    // A member that freezes is noticed so early that even when the next try
    // hits it again, the one after that comes before any guard is lost.
    let silence = (zookeeper.session / 4).max(LEAST_SILENCE);
    let mut connector = Client::connector()
        .with_session_timeout(zookeeper.session)
        .with_connection_timeout(silence);
    if let (Some(user), Some(password)) = (&zookeeper.user, &zookeeper.password) {
        connector = if zookeeper.sasl {
            connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.clone()))
        } else {
            connector.with_auth("digest", format!("{user}:{password}").as_bytes())
        };
    }
    if zookeeper.tls { encrypted(zookeeper, connector) } else { Ok(connector) }
}

#[cfg(feature = "tls")]
fn encrypted(zookeeper: &ZooKeeper, connector: Connector) -> Result<Connector> {
    use std::path::Path;

    use crate::error::invalid;
    use zookeeper_client::TlsOptions;

    crate::tls::choose_provider();
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|error| {
            invalid(format!("the file {} cannot be read", path.display())).because(error)
        })
    };
    let wrong = |error: ZkError| invalid("a certificate or key is not usable").because(error);
    let mut options = TlsOptions::new();
    if let Some(ca) = &zookeeper.ca {
        options = options.with_pem_ca(&read(ca)?).map_err(wrong)?;
    }
    if let (Some(cert), Some(key)) = &zookeeper.identity {
        options = options.with_pem_identity(&read(cert)?, &read(key)?).map_err(wrong)?;
    }
    Ok(connector.with_tls(options))
}

#[cfg(not(feature = "tls"))]
fn encrypted(_zookeeper: &ZooKeeper, _connector: Connector) -> Result<Connector> {
    Err(crate::error::invalid("this program is built without encryption (feature tls)"))
}

/// Finds out why no member opens a session.
async fn why_not(zookeeper: &ZooKeeper) -> Error {
    let (members, hosts) = (&zookeeper.members, zookeeper.hosts());
    let ask = members.iter().map(|(host, port)| ask(host, *port, zookeeper.tls));
    let said = futures_util::future::join_all(ask).await;
    let found = |words: &str| {
        let says = |said: &Option<String>| said.as_ref().is_some_and(|text| text.contains(words));
        said.iter().position(says).map(|index| {
            let (host, port) = &members[index];
            place(host, *port)
        })
    };
    // Where somebody serves there is a quorum, whatever another one says.
    let serving = ["leader", "follower", "standalone"]
        .into_iter()
        .find_map(|mode| found(&format!("Mode: {mode}")));
    let majority = "no quorum, and locks need one: a majority of the members has to be up and \
                    reach each other";
    let text = if said.iter().all(Option::is_none) {
        format!("nobody listens at {hosts}")
    } else if let (None, Some(member)) = (&serving, found("Mode: read-only")) {
        format!("the member {member} is read-only: its ensemble has {majority}")
    } else if let (None, Some(member)) = (&serving, found("not currently serving requests")) {
        format!("the member {member} serves nobody: its ensemble has {majority}")
    } else {
        let tls = if zookeeper.tls { ", or they do not accept our encryption" } else { "" };
        format!("no member of {hosts} opens a session: they have no quorum, or refuse us{tls}")
    };
    Error::new(ErrorKind::Unreachable, text)
}

/// What a member says of itself: the one question that servers answer
/// everybody by default, also without a quorum. `None` if nobody listens.
async fn ask(host: &str, port: u16, encrypted: bool) -> Option<String> {
    let dial = tokio::time::timeout(LOOK_LIMIT, TcpStream::connect((host, port)));
    let mut stream = dial.await.ok()?.ok()?;
    let mut said = Vec::new();
    // A port that is encrypted knows no such questions.
    if !encrypted {
        let question = async {
            stream.write_all(b"srvr").await?;
            stream.take(MOST_SAID).read_to_end(&mut said).await
        };
        // Whatever has been said by then counts.
        let _ = tokio::time::timeout(LOOK_LIMIT, question).await;
    }
    Some(String::from_utf8_lossy(&said).into_owned())
}
