//! MySQL and MariaDB.

use std::fmt::Write;

use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error as DriverError, OptsBuilder, Value};
use tokio::sync::{mpsc, watch};

use super::config::Sql;
use super::dialect::{Dialect, Hearing};
use super::fault::{Class, Fault};
use super::phrase::Phrase;
use super::wire::{Connection, Row, Table};
use super::{IDLE, LOCK_WAIT};
use crate::engine::REMEMBER;
use crate::error::ErrorKind;
use crate::model::Time;
use crate::name::LockName;
use crate::token::KeeperId;

/// MySQL 8 or MariaDB 10.6, or later.
#[derive(Debug)]
pub(super) struct Mysql;

#[async_trait]
impl Dialect for Mysql {
    fn scheme(&self) -> &'static str {
        "mysql"
    }

    fn port(&self) -> u16 {
        3306
    }

    fn has_schemas(&self) -> bool {
        false
    }

    fn quote(&self, identifier: &str) -> String {
        format!("`{identifier}`")
    }

    fn schema(&self) -> &'static str {
        include_str!("mysql.sql")
    }

    fn has_table(&self, sql: &Sql, table: &str) -> String {
        format!(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() \
             AND table_name = '{}{table}'",
            sql.prefix
        )
    }

    fn begin_making(&self, sql: &Sql) -> String {
        // Tables are made outside of transactions, so the lock is the session's.
        format!("DO GET_LOCK(MD5(CONCAT(DATABASE(), '.{}')), 10); ", sql.prefix)
    }

    fn end_making(&self, sql: &Sql) -> String {
        format!("DO RELEASE_LOCK(MD5(CONCAT(DATABASE(), '.{}')))", sql.prefix)
    }

    fn bytes(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() * 2 + 3);
        out.push_str("x'");
        for byte in text.bytes() {
            // Writing to a string cannot fail.
            let _ = write!(out, "{byte:02x}");
        }
        out.push('\'');
        out
    }

    fn text(&self, text: &str) -> String {
        format!("_utf8mb4 {}", self.bytes(text))
    }

    fn read(&self, stored: &str) -> Option<String> {
        Some(stored.to_owned())
    }

    fn clock(&self) -> &'static str {
        "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"
    }

    fn locking(&self, columns: &str, rest: &str) -> String {
        // Values are computed when a row is sent, which is after its lock.
        format!("SELECT {columns}, {} FROM {rest}", self.clock())
    }

    fn by_key(&self) -> &'static str {
        " FORCE INDEX (PRIMARY)"
    }

    fn insert_new(&self, table: &str, columns: &str, values: &str) -> String {
        let key = columns.split(',').next().unwrap_or(columns);
        format!(
            "INSERT INTO {table} ({columns}) VALUES {values} ON DUPLICATE KEY UPDATE {key} = {table}.{key}"
        )
    }

    fn post(&self, sql: &Sql, keeper: KeeperId, line: &str, now: Time) -> String {
        let until = (now + REMEMBER).0;
        format!(
            "INSERT INTO {} (keeper, line, until_us) VALUES ('{keeper}', {}, {until})",
            sql.table("mail"),
            self.text(line)
        )
    }

    fn post_listeners(&self, sql: &Sql, name: &LockName, line: &str, now: Time) -> String {
        let (until, listeners) = ((now + REMEMBER).0, sql.table("listeners"));
        let name = self.bytes(name.as_str());
        format!(
            "INSERT INTO {} (keeper, line, until_us) SELECT keeper, {}, {until} \
             FROM {listeners} WHERE name = {name}; DELETE FROM {listeners} WHERE name = {name}",
            sql.table("mail"),
            self.text(line)
        )
    }

    fn hearing(&self) -> Hearing {
        Hearing::Polled
    }

    fn prepare(&self, name: &str, statement: &str) -> String {
        let statement = statement.replace('\'', "''");
        format!("PREPARE {name} FROM '{}'", statement.replace("$1", "?"))
    }

    fn execute(&self, name: &str, values: &str) -> String {
        format!("EXECUTE {name} USING {values}")
    }

    async fn connect(
        &self,
        sql: &Sql,
        _pushes: Option<mpsc::UnboundedSender<String>>,
    ) -> Result<Box<dyn Connection>, Fault> {
        let options = OptsBuilder::default()
            .ip_or_hostname(sql.host.clone())
            .tcp_port(sql.port)
            .socket(sql.socket.as_ref().map(|path| path.display().to_string()))
            // A proxy in between must not be left out.
            .prefer_socket(false)
            .user(sql.user.clone())
            .pass(sql.password.clone())
            .db_name(Some(sql.database.clone()))
            .stmt_cache_size(0)
            .connect_attribute("program_name", "lockkeeper");
        let options = encrypted(sql, options)?;
        let conn = Conn::new(options).await.map_err(refused_connection)?;
        let mut connection = MysqlConnection { conn, maria: false, clock_apart: false };
        connection.begin_session().await?;
        Ok(Box::new(connection))
    }
}

impl MysqlConnection {
    /// Refuses a server that will not do, and prepares the session.
    async fn begin_session(&mut self) -> Result<(), Fault> {
        // Some servers are told that SYSDATE is NOW, the start of a statement.
        let asked = "SELECT VERSION(), @@read_only, SLEEP(0.001), SYSDATE(6) > NOW(6)";
        let asked = self.batch(asked).await?;
        let row = asked.first().and_then(|table| table.rows.first());
        let row =
            row.ok_or_else(|| Fault::new(Class::Lost, "the server says nothing of itself"))?;
        self.maria = is_supported(row.text(0)?)?;
        if row.text(1)? != "0" {
            return Err(Fault::new(Class::ReadOnly, "read_only is set"));
        }
        self.clock_apart = row.text(3)? != "1";
        let idle = IDLE.as_secs();
        // MySQL has no limit for transactions alone; see `begin`.
        let limits =
            if self.maria { format!(", idle_transaction_timeout = {idle}") } else { String::new() };
        let lock_wait = LOCK_WAIT.as_secs();
        // Reads see what others have committed once our row is locked, and no
        // gaps between rows are locked.
        let session = format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             SET NAMES utf8mb4; \
             SET SESSION time_zone = '+00:00', autocommit = 1, \
             sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
             innodb_lock_wait_timeout = {lock_wait}{limits}"
        );
        self.batch(&session).await?;
        if self.maria {
            // What was true before the last commit is of no use. Servers that
            // are built without such a cache do not know the setting.
            let _ = self.batch("SET SESSION query_cache_type = OFF").await;
        }
        Ok(())
    }
}

/// Whether it is MariaDB; an error if it is too old.
fn is_supported(version: &str) -> Result<bool, Fault> {
    let maria = version.contains("MariaDB");
    // Some say "5.5.5-10.11.2-MariaDB" to please old clients.
    let plain = version.strip_prefix("5.5.5-").filter(|_| maria).unwrap_or(version);
    let mut parts = plain.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    let found: (u32, u32) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let least = if maria { (10, 6) } else { (8, 0) };
    if found >= least {
        return Ok(maria);
    }
    let text = format!("the server is {version}; this needs MySQL 8 or MariaDB 10.6, or later");
    Err(Fault::new(Class::Refused(ErrorKind::Unsupported), text))
}

#[cfg(feature = "tls")]
fn encrypted(sql: &Sql, options: OptsBuilder) -> Result<OptsBuilder, Fault> {
    if !sql.tls {
        return Ok(options);
    }
    crate::tls::choose_provider();
    let roots = super::tls::roots(sql)?;
    let roots = roots.into_iter().map(|root| root.to_vec().into()).collect();
    let tls =
        mysql_async::SslOpts::default().with_disable_built_in_roots(true).with_root_certs(roots);
    Ok(options.ssl_opts(tls))
}

#[cfg(not(feature = "tls"))]
fn encrypted(_sql: &Sql, options: OptsBuilder) -> Result<OptsBuilder, Fault> {
    // A URL that asks for encryption was refused when it was read.
    Ok(options)
}

struct MysqlConnection {
    conn: Conn,
    maria: bool,
    clock_apart: bool,
}

#[async_trait]
impl Connection for MysqlConnection {
    async fn batch(&mut self, statements: &str) -> Result<Vec<Table>, Fault> {
        let mut answer = self.conn.query_iter(statements).await.map_err(told)?;
        let mut tables = Vec::new();
        loop {
            let changed = answer.affected_rows();
            let rows: Vec<mysql_async::Row> = answer.collect().await.map_err(told)?;
            tables.push(Table { rows: rows.into_iter().map(text_row).collect(), changed });
            if answer.is_empty() {
                // The error of a later statement is told only to who asks on.
                answer.drop_result().await.map_err(told)?;
                return Ok(tables);
            }
        }
    }

    fn begin(&self) -> &'static str {
        // MySQL limits only how long a connection is idle, so that limit is
        // short within transactions. (It is the one called `IDLE`.)
        if self.maria {
            "START TRANSACTION"
        } else {
            "SET SESSION wait_timeout = 2; START TRANSACTION"
        }
    }

    fn snapshot(&self) -> &'static str {
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
         START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
    }

    fn commit(&self) -> &'static str {
        if self.maria { "COMMIT" } else { "COMMIT; SET SESSION wait_timeout = 28800" }
    }

    fn rollback(&self) -> &'static str {
        if self.maria { "ROLLBACK" } else { "ROLLBACK; SET SESSION wait_timeout = 28800" }
    }

    fn prepares(&self) -> &'static [Phrase] {
        // MySQL takes no literals for values, and a statement more would cost
        // what is won. Those that change something are as soon read as their
        // values.
        if self.maria { Phrase::QUESTIONS } else { &[] }
    }

    fn clock_apart(&self) -> bool {
        self.clock_apart
    }

    fn session(&self) -> u64 {
        u64::from(self.conn.id())
    }

    fn ended(&self) -> Option<watch::Receiver<bool>> {
        None
    }

    async fn close(self: Box<Self>) {
        // Whether the server hears it or not, the socket is closed.
        let _ = self.conn.disconnect().await;
    }
}

fn text_row(row: mysql_async::Row) -> Row {
    let text = |value| match value {
        Value::NULL => None,
        Value::Bytes(bytes) => Some(bytes),
        other => Some(other.as_sql(true).into_bytes()),
    };
    Row(row.unwrap_raw().into_iter().map(|value| value.and_then(text)).collect())
}

/// The error of a connection that could not be made.
fn refused_connection(error: DriverError) -> Fault {
    let invalid = Class::Refused(ErrorKind::Invalid);
    match &error {
        DriverError::Server(server) => match server.code {
            // ER_ACCESS_DENIED, …_NO_PASSWORD, ER_PLUGIN_IS_NOT_LOADED, the
            // account is locked or its password has expired.
            1045 | 1698 | 1524 | 3118 | 4151 | 1820 | 1862 | 3159 => {
                Fault::new(invalid, "the server refuses the user or password").because(error)
            }
            1044 => Fault::new(invalid, "the user may not use this database").because(error),
            1049 => Fault::new(invalid, "the server has no such database").because(error),
            _ => told(error),
        },
        #[cfg(feature = "tls")]
        DriverError::Io(io) if is_tls(io) => {
            let text = format!("no encrypted connection: {}", innermost(&error));
            Fault::new(invalid, text).because(error)
        }
        DriverError::Io(_) => {
            Fault::new(Class::NotNow, format!("no connection: {}", innermost(&error)))
                .because(error)
        }
        DriverError::Driver(mysql_async::DriverError::NoClientSslFlagFromServer) => {
            Fault::new(invalid, "the server does not speak TLS").because(error)
        }
        other => Fault::new(Class::NotNow, format!("no connection: {other}")).because(error),
    }
}

/// Whether encryption failed, and not the network.
#[cfg(feature = "tls")]
fn is_tls(error: &mysql_async::IoError) -> bool {
    match error {
        mysql_async::IoError::Tls(_) => true,
        mysql_async::IoError::Io(error) => {
            error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
        }
    }
}

/// The error of a statement.
fn told(error: DriverError) -> Fault {
    let DriverError::Server(server) = &error else {
        let text = format!("the connection broke: {}", innermost(&error));
        return Fault::new(Class::Lost, text).because(error);
    };
    let class = match server.code {
        // A deadlock, a certification conflict in a cluster, a row that
        // changed since it was read.
        1213 | 1020 => Class::Conflict,
        // NOWAIT and SKIP LOCKED have numbers of their own in MySQL.
        1205 | 3572 => Class::Locked,
        // No such table.
        1146 => Class::NoTable,
        // The server, the session or the transaction only reads.
        1290 | 1792 | 1836 | 3906 => Class::ReadOnly,
        // Privileges for a database, table, column, routine or at all.
        1044 | 1142 | 1143 | 1227 | 1370 => Class::Forbidden,
        1040 | 1203 | 1226 => Class::Full,
        // No memory, threads, disk, prepared statements; not part of a cluster.
        1461 | 1037 | 1038 | 1041 | 1114 | 1135 | 1021 | 1047 => Class::NotNow,
        // Shut down, killed, interrupted, out of time: who knows when.
        1053 | 1317 | 1927 | 1969 | 3024 | 4031 | 3168 | 3169 => Class::Lost,
        // No such prepared statement: the session is not the one we prepared.
        1243 => Class::Refused(ErrorKind::Unsupported),
        // Statements cannot be logged as such at our isolation level.
        1665 => Class::Refused(ErrorKind::Unsupported),
        // Unknown column, or a table of another shape.
        1054 | 1136 | 1364 => Class::Refused(ErrorKind::Invalid),
        _ => Class::Refused(ErrorKind::Unexpected),
    };
    let text = match server.code {
        1665 => "binlog_format is STATEMENT; locks need ROW or MIXED".to_owned(),
        1040 | 1203 | 1226 => "the server has no connection left".to_owned(),
        1243 => super::fault::POOLED.to_owned(),
        code => format!("the server says: {} ({code})", server.message),
    };
    Fault::new(class, text).because(error)
}

fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused() {
        for (version, maria) in [
            ("8.0.36", false),
            ("9.1.0-log", false),
            ("10.6.0-MariaDB", true),
            ("5.5.5-10.11.6-MariaDB-0+deb12u1", true),
            ("11.4.2-MariaDB", true),
        ] {
            assert_eq!(is_supported(version).unwrap(), maria, "{version}");
        }
        for version in ["5.7.44", "5.5.5-10.5.9-MariaDB", "10.5.1-MariaDB", "", "what"] {
            let fault = is_supported(version).unwrap_err();
            assert_eq!(fault.class, Class::Refused(ErrorKind::Unsupported), "{version}");
        }
    }
}
