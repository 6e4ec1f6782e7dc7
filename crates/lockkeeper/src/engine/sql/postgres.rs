//! PostgreSQL.

use std::future::poll_fn;
use std::pin::pin;

use async_trait::async_trait;
use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, SimpleQueryMessage};

use super::config::Sql;
use super::dialect::{Dialect, Hearing};
use super::fault::{Class, Fault};
use super::phrase::Phrase;
use super::wire::{Connection, Row, Table};
use super::{IDLE, LOCK_WAIT};
use crate::error::ErrorKind;
use crate::model::Time;
use crate::name::LockName;
use crate::token::KeeperId;

/// The start of every keeper's channel.
const CHANNELS: &str = "lockkeeper_";

/// The channel on which a keeper is told lines.
pub(super) fn channel(keeper: KeeperId) -> String {
    format!("{CHANNELS}{keeper}")
}

/// PostgreSQL 14 or later.
#[derive(Debug)]
pub(super) struct Postgres;

#[async_trait]
impl Dialect for Postgres {
    fn scheme(&self) -> &'static str {
        "postgres"
    }

    fn port(&self) -> u16 {
        5432
    }

    fn has_schemas(&self) -> bool {
        true
    }

    fn quote(&self, identifier: &str) -> String {
        format!("\"{identifier}\"")
    }

    fn schema(&self) -> &'static str {
        include_str!("postgres.sql")
    }

    fn has_table(&self, sql: &Sql, table: &str) -> String {
        format!("SELECT 1 WHERE to_regclass('{}') IS NOT NULL", sql.table(table))
    }

    fn begin_making(&self, sql: &Sql) -> String {
        // The number is ours alone; the lock ends with the transaction.
        let schema = sql.schema.as_ref().map(|schema| {
            format!(
                "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{schema}') \
                 THEN CREATE SCHEMA {}; END IF; END $$; ",
                self.quote(schema)
            )
        });
        let schema = schema.unwrap_or_default();
        format!(
            "BEGIN; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(7809632041); {schema}"
        )
    }

    fn end_making(&self, _sql: &Sql) -> String {
        "COMMIT".to_owned()
    }

    fn bytes(&self, text: &str) -> String {
        self.text(text)
    }

    fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 2);
        out.push('\'');
        for character in text.chars() {
            match character {
                '\'' => out.push_str("''"),
                // PostgreSQL's texts hold no NUL.
                '\0' => out.push_str("\\0"),
                '\\' => out.push_str("\\\\"),
                other => out.push(other),
            }
        }
        out.push('\'');
        out
    }

    fn read(&self, stored: &str) -> Option<String> {
        let mut out = String::with_capacity(stored.len());
        let mut characters = stored.chars();
        while let Some(character) = characters.next() {
            out.push(match character {
                '\\' => match characters.next()? {
                    '0' => '\0',
                    '\\' => '\\',
                    _ => return None,
                },
                other => other,
            });
        }
        Some(out)
    }

    fn clock(&self) -> &'static str {
        "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    }

    fn locking(&self, columns: &str, rest: &str) -> String {
        // What stands beside FOR UPDATE is computed before the lock; what is
        // outside of a query with one, row by row after it: such a query is
        // never merged with the one around it.
        format!("SELECT locked.*, {} FROM (SELECT {columns} FROM {rest}) AS locked", self.clock())
    }

    fn by_key(&self) -> &'static str {
        // Readers wait for nobody here.
        ""
    }

    fn insert_new(&self, table: &str, columns: &str, values: &str) -> String {
        format!("INSERT INTO {table} ({columns}) VALUES {values} ON CONFLICT DO NOTHING")
    }

    fn post(&self, _sql: &Sql, keeper: KeeperId, line: &str, _now: Time) -> String {
        format!("SELECT pg_notify('{}', {})", channel(keeper), self.text(line))
    }

    fn post_listeners(&self, sql: &Sql, name: &LockName, line: &str, _now: Time) -> String {
        format!(
            "WITH told AS (DELETE FROM {} WHERE name = {} RETURNING keeper) \
             SELECT pg_notify('{CHANNELS}' || keeper, {}) FROM told",
            sql.table("listeners"),
            self.bytes(name.as_str()),
            self.text(line)
        )
    }

    fn hearing(&self) -> Hearing {
        Hearing::Pushed
    }

    fn prepare(&self, name: &str, statement: &str) -> String {
        format!("PREPARE {name} AS {statement}")
    }

    fn execute(&self, name: &str, values: &str) -> String {
        format!("EXECUTE {name}({values})")
    }

    async fn connect(
        &self,
        sql: &Sql,
        pushes: Option<mpsc::UnboundedSender<String>>,
    ) -> Result<Box<dyn Connection>, Fault> {
        let mut config = Config::new();
        config
            .port(sql.port)
            .dbname(&sql.database)
            .application_name("lockkeeper")
            .connect_timeout(sql.connect)
            // Sessions of a listener are idle for long.
            .keepalives_idle(std::time::Duration::from_secs(30));
        match &sql.socket {
            #[cfg(unix)]
            Some(folder) => config.host_path(folder),
            _ => config.host(&sql.host),
        };
        if let Some(user) = &sql.user {
            config.user(user);
        }
        if let Some(password) = &sql.password {
            config.password(password);
        }
        let mut connection = dial(sql, config, pushes).await?;
        connection.begin_session(sql).await?;
        Ok(Box::new(connection))
    }
}

impl PostgresConnection {
    /// Refuses a server that will not do, and prepares the session.
    async fn begin_session(&mut self, sql: &Sql) -> Result<(), Fault> {
        let asked = "SELECT current_setting('server_version_num'), pg_is_in_recovery(), \
                     pg_backend_pid(), current_setting('server_encoding')";
        let asked = self.batch(asked).await?;
        let row = asked.first().and_then(|table| table.rows.first());
        let row =
            row.ok_or_else(|| Fault::new(Class::Lost, "the server says nothing of itself"))?;
        let version = row.number(0)?;
        if version < 140_000 {
            let text = format!(
                "the server is PostgreSQL {}.{}; this needs 14 or later",
                version / 10_000,
                version % 100
            );
            return Err(Fault::new(Class::Refused(ErrorKind::Unsupported), text));
        }
        if row.text(1)? != "f" {
            return Err(Fault::new(Class::ReadOnly, "it is in recovery"));
        }
        self.session = row.number(2)?.unsigned_abs();
        let encoding = row.text(3)?;
        // In the second one, bytes stay what they are.
        if !["UTF8", "SQL_ASCII"].contains(&encoding) {
            let text = format!("the database is encoded in {encoding}; names need one in UTF8");
            return Err(Fault::new(Class::Refused(ErrorKind::Unsupported), text));
        }
        let (idle, lock_wait, command) =
            (IDLE.as_millis(), LOCK_WAIT.as_millis(), sql.command.as_millis());
        // A commit that a crash forgets would be a lock that two hold. Plans
        // made while the tables are small are used when they are not.
        let session = format!(
            "SET idle_in_transaction_session_timeout = {idle}; \
             SET lock_timeout = {lock_wait}; \
             SET statement_timeout = {command}; \
             SET standard_conforming_strings = on; \
             SET plan_cache_mode = force_generic_plan; \
             SET enable_seqscan = off; \
             SET jit = off; \
             SELECT set_config('synchronous_commit', 'on', false) \
             WHERE current_setting('synchronous_commit') = 'off'"
        );
        self.batch(&session).await.map(drop)
    }
}

#[cfg(feature = "tls")]
async fn dial(
    sql: &Sql,
    mut config: Config,
    pushes: Option<mpsc::UnboundedSender<String>>,
) -> Result<PostgresConnection, Fault> {
    use tokio_postgres::config::SslMode;
    use tokio_postgres_rustls::MakeRustlsConnect;

    if !sql.tls {
        config.ssl_mode(SslMode::Disable);
        return Ok(run(config.connect(NoTls).await.map_err(refused_connection)?, pushes));
    }
    config.ssl_mode(SslMode::Require);
    let tls = MakeRustlsConnect::new(super::tls::client(sql)?);
    Ok(run(config.connect(tls).await.map_err(refused_connection)?, pushes))
}

#[cfg(not(feature = "tls"))]
async fn dial(
    _sql: &Sql,
    config: Config,
    pushes: Option<mpsc::UnboundedSender<String>>,
) -> Result<PostgresConnection, Fault> {
    // A URL that asks for encryption was refused when it was read.
    Ok(run(config.connect(NoTls).await.map_err(refused_connection)?, pushes))
}

/// Lets the connection work in a task of its own, until the client is dropped.
fn run<S, T>(
    (client, mut connection): (Client, tokio_postgres::Connection<S, T>),
    pushes: Option<mpsc::UnboundedSender<String>>,
) -> PostgresConnection
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (end, ended) = watch::channel(false);
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let (AsyncMessage::Notification(told), Some(pushes)) = (message, &pushes) {
                // Nobody left to tell.
                let _ = pushes.send(told.payload().to_owned());
            }
        }
        end.send_replace(true);
    });
    PostgresConnection { client, session: 0, ended }
}

struct PostgresConnection {
    client: Client,
    session: u64,
    ended: watch::Receiver<bool>,
}

#[async_trait]
impl Connection for PostgresConnection {
    async fn batch(&mut self, statements: &str) -> Result<Vec<Table>, Fault> {
        let answer = self.client.simple_query_raw(statements).await.map_err(told)?;
        let mut answer = pin!(answer);
        let (mut tables, mut rows) = (Vec::new(), Vec::new());
        while let Some(message) = answer.next().await {
            match message.map_err(told)? {
                SimpleQueryMessage::Row(row) => {
                    let text = |column| row.get(column).map(|text| text.as_bytes().to_vec());
                    rows.push(Row((0..row.len()).map(text).collect()));
                }
                SimpleQueryMessage::CommandComplete(changed) => {
                    tables.push(Table { rows: std::mem::take(&mut rows), changed });
                }
                _ => {}
            }
        }
        Ok(tables)
    }

    fn begin(&self) -> &'static str {
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
    }

    fn snapshot(&self) -> &'static str {
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    }

    fn commit(&self) -> &'static str {
        "COMMIT"
    }

    fn rollback(&self) -> &'static str {
        "ROLLBACK"
    }

    fn prepares(&self) -> &'static [Phrase] {
        Phrase::ALL
    }

    fn clock_apart(&self) -> bool {
        false
    }

    fn session(&self) -> u64 {
        self.session
    }

    fn ended(&self) -> Option<watch::Receiver<bool>> {
        Some(self.ended.clone())
    }

    async fn close(self: Box<Self>) {
        // The client's end makes its task say good-bye.
        let PostgresConnection { client, mut ended, .. } = *self;
        drop(client);
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

/// The error of a connection that could not be made.
fn refused_connection(error: tokio_postgres::Error) -> Fault {
    let invalid = Class::Refused(ErrorKind::Invalid);
    if let Some(code) = error.code() {
        let code = code.clone();
        if code == SqlState::INVALID_PASSWORD
            || code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION
        {
            return Fault::new(invalid, "the server refuses the user or password").because(error);
        }
        if code == SqlState::INVALID_CATALOG_NAME {
            return Fault::new(invalid, "the server has no such database").because(error);
        }
        return told(error);
    }
    let text = error.to_string();
    if text.contains("TLS") {
        let text = format!("no encrypted connection: {}", innermost(&error));
        return Fault::new(invalid, text).because(error);
    }
    if text.contains("authentication") || text.contains("invalid configuration") {
        let text = format!("the server wants another login: {}", innermost(&error));
        return Fault::new(invalid, text).because(error);
    }
    Fault::new(Class::NotNow, format!("no connection: {}", innermost(&error))).because(error)
}

/// The error of a statement.
fn told(error: tokio_postgres::Error) -> Fault {
    let Some(server) = error.as_db_error() else {
        let text = format!("the connection broke: {}", innermost(&error));
        return Fault::new(Class::Lost, text).because(error);
    };
    let code = server.code().code();
    let class = match code {
        // Serialisation failure, deadlock.
        "40001" | "40P01" => Class::Conflict,
        "55P03" => Class::Locked,
        // No such table or schema.
        "42P01" | "3F000" => Class::NoTable,
        "25006" => Class::ReadOnly,
        "42501" => Class::Forbidden,
        // Starting or stopping.
        "57P03" => Class::NotNow,
        // No such prepared statement, or one more than we made: the session is
        // not the one we prepared.
        "26000" | "42P05" => Class::Refused(ErrorKind::Unsupported),
        // Unknown column, a value of another type.
        "42703" | "42804" | "23502" => Class::Refused(ErrorKind::Invalid),
        "53300" => Class::Full,
        // No memory or disk, or beyond another limit.
        _ if code.starts_with("53") || code.starts_with("54") => Class::NotNow,
        // Shut down, ended by an administrator, out of time; the connection failed.
        _ if code.starts_with("57") || code.starts_with("08") => Class::Lost,
        "25P03" | "25P04" | "57014" | "40003" => Class::Lost,
        _ => Class::Refused(ErrorKind::Unexpected),
    };
    let text = match code {
        "53300" => "the server has no connection left".to_owned(),
        "26000" | "42P05" => super::fault::POOLED.to_owned(),
        code => format!("the server says: {} ({code})", server.message()),
    };
    Fault::new(class, text).because(error)
}

fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}
