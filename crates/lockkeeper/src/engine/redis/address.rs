//! From a place to a connection: logins, encryption, sentinels.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, cmd,
};

use super::config::{Place, Redis};
use super::fault::refused_connection;
use crate::error::{Error, ErrorKind, Result, invalid};

/// How long one sentinel may take to answer before the next is asked.
const SENTINEL_LIMIT: Duration = Duration::from_millis(300);

/// Whom to log in to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum As {
    Server,
    Sentinel,
}

/// Connects to the server at `place`.
pub(super) async fn connect(
    redis: &Redis,
    place: &Place,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection> {
    let client = client(redis, place, As::Server)?;
    client.get_multiplexed_async_connection_with_config(config).await.map_err(refused_connection)
}

/// Asks the sentinels where the master is; the first answer counts.
pub(super) async fn master(redis: &Redis, sentinels: &[Place], name: &str) -> Result<Place> {
    let mut unknown = 0;
    for sentinel in sentinels {
        let asked = ask_sentinel(redis, sentinel, name);
        match tokio::time::timeout(SENTINEL_LIMIT.min(redis.connect), asked).await {
            Ok(Ok(Some(place))) => return Ok(place),
            Ok(Ok(None)) => unknown += 1,
            Ok(Err(error)) if error.kind() == ErrorKind::Invalid => return Err(error),
            Ok(Err(_)) | Err(_) => {}
        }
    }
    if unknown > 0 {
        return Err(invalid(format!("no sentinel knows a master named {name:?}")));
    }
    Err(Error::new(ErrorKind::Unreachable, "no sentinel answers"))
}

async fn ask_sentinel(redis: &Redis, sentinel: &Place, name: &str) -> Result<Option<Place>> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let client = client(redis, sentinel, As::Sentinel)?;
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    let mut connection = connected.map_err(refused_connection)?;
    let mut ask = cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer: Option<(String, u16)> =
        ask.query_async(&mut connection).await.map_err(refused_connection)?;
    Ok(answer.map(|(host, port)| Place::Tcp { host, port }))
}

fn client(redis: &Redis, place: &Place, r#as: As) -> Result<Client> {
    let address = match place {
        Place::Tcp { host, port } if redis.tls => ConnectionAddr::TcpTls {
            host: host.clone(),
            port: *port,
            insecure: false,
            tls_params: None,
        },
        Place::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
        Place::Unix(path) => ConnectionAddr::Unix(path.clone()),
    };
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let info = address.into_connection_info().map_err(refused_connection)?;
    let info = info.set_redis_settings(login(redis, r#as)).set_tcp_settings(tcp);
    if redis.tls { encrypted(redis, info) } else { Client::open(info).map_err(refused_connection) }
}

fn login(redis: &Redis, r#as: As) -> RedisConnectionInfo {
    let (user, password, mut login) = match r#as {
        As::Server => {
            let login = RedisConnectionInfo::default()
                // Pushes and answers on one connection.
                .set_protocol(ProtocolVersion::RESP3)
                .set_db(i64::from(redis.database))
                .set_lib_name("lockkeeper", env!("CARGO_PKG_VERSION"));
            (&redis.user, &redis.password, login)
        }
        As::Sentinel => {
            let login = RedisConnectionInfo::default().set_skip_set_lib_name();
            (&redis.sentinel_user, &redis.sentinel_password, login)
        }
    };
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

#[cfg(feature = "tls")]
fn encrypted(redis: &Redis, info: redis::ConnectionInfo) -> Result<Client> {
    crate::tls::choose_provider();
    let Some(path) = &redis.ca else { return Client::open(info).map_err(refused_connection) };
    let certificates = std::fs::read(path).map_err(|error| {
        invalid(format!("the certificates in {} cannot be read", path.display())).because(error)
    })?;
    let trust = redis::TlsCertificates { client_tls: None, root_cert: Some(certificates) };
    Client::build_with_tls(info, trust).map_err(refused_connection)
}

#[cfg(not(feature = "tls"))]
fn encrypted(_redis: &Redis, _info: redis::ConnectionInfo) -> Result<Client> {
    Err(invalid("this program is built without encryption (feature tls)"))
}
