//! What differs between the databases.

use std::fmt;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::config::Sql;
use super::fault::Fault;
use super::wire::Connection;

/// One database's way of saying things.
#[async_trait]
pub(super) trait Dialect: fmt::Debug + Send + Sync + 'static {
    /// The scheme of its URLs, and what the engine calls itself.
    fn scheme(&self) -> &'static str;

    /// The port of a URL that names none.
    fn port(&self) -> u16;

    /// Whether a database has schemas of its own.
    fn has_schemas(&self) -> bool;

    /// Quotes an identifier that holds nothing but letters, digits and `_`.
    fn quote(&self, identifier: &str) -> String;

    /// Connects, refuses a server that will not do, and prepares the session:
    /// its limits, isolation, time zone. What others notify the session of
    /// goes to `pushes`.
    async fn connect(
        &self,
        sql: &Sql,
        pushes: Option<mpsc::UnboundedSender<String>>,
    ) -> Result<Box<dyn Connection>, Fault>;
}

/// The database behind a scheme, if it is built in.
pub(super) fn of(scheme: &str) -> Option<&'static dyn Dialect> {
    match scheme {
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Some(&super::mysql::Mysql),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Some(&super::postgres::Postgres),
        _ => None,
    }
}
