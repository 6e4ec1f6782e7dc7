//! What differs between the databases.

use std::fmt;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::config::Sql;
use super::fault::Fault;
use super::wire::Connection;
use crate::model::Time;
use crate::name::LockName;
use crate::token::KeeperId;

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

    /// The statements that make the tables; `{names}` stands for the table
    /// `names`.
    fn schema(&self) -> &'static str;

    /// Asks whether a table exists: one row if so.
    fn has_table(&self, sql: &Sql, table: &str) -> String;

    /// Begins the making of tables, which one keeper does at a time.
    fn begin_making(&self, sql: &Sql) -> String;

    /// Ends it.
    fn end_making(&self, sql: &Sql) -> String;

    /// A literal for a column that compares bytes.
    fn bytes(&self, text: &str) -> String;

    /// A literal for a column that people read.
    fn text(&self, text: &str) -> String;

    /// What a text was before it was written as a literal.
    fn read(&self, stored: &str) -> Option<String>;

    /// The clock, in microseconds since 1970, at the moment it is read.
    fn clock(&self) -> &'static str;

    /// Locks rows (`FROM rest`, which ends in `FOR UPDATE`) and reads them,
    /// each with the clock as one more column, read after the row was locked.
    /// See [`Connection::clock_apart`](super::wire::Connection::clock_apart).
    fn locking(&self, columns: &str, rest: &str) -> String;

    /// What makes an `UPDATE` find rows by their keys, however few there are:
    /// whoever looks at others' rows waits for their locks.
    fn by_key(&self) -> &'static str;

    /// Adds a row unless its key is there already.
    fn insert_new(&self, table: &str, columns: &str, values: &str) -> String;

    /// Tells a keeper a line, once the transaction is committed.
    fn post(&self, sql: &Sql, keeper: KeeperId, line: &str, now: Time) -> String;

    /// Tells those who listen to a name a line, and forgets that they do.
    fn post_listeners(&self, sql: &Sql, name: &LockName, line: &str, now: Time) -> String;

    /// How a keeper gets to know of lines.
    fn hearing(&self) -> Hearing;

    /// Prepares a statement with places `$1` and so on under a name.
    fn prepare(&self, name: &str, statement: &str) -> String;

    /// Runs what was prepared, with values; there is one at least.
    fn execute(&self, name: &str, values: &str) -> String;

    /// Connects, refuses a server that will not do, and prepares the session:
    /// its limits, isolation, time zone. What others notify the session of
    /// goes to `pushes`.
    async fn connect(
        &self,
        sql: &Sql,
        pushes: Option<mpsc::UnboundedSender<String>>,
    ) -> Result<Box<dyn Connection>, Fault>;
}

/// How a keeper gets to know of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hearing {
    /// The server pushes them to a session that listens.
    #[cfg(feature = "postgres")]
    Pushed,
    /// They are looked for in the table `mail`.
    #[cfg(feature = "mysql")]
    Polled,
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
