//! Opening the engine: tables, what it promises, and proxies that will not do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::config::Sql;
use super::super::fault::{Class, Fault, Stage};
use super::super::schema::{LEASE_TABLE, other_strategy};
use super::super::wire::{Table, Wire};
use super::alive::watch_over;
use super::control::{Control, unclear};
use super::words::{Tongue, Words};
use super::{SessionEngine, Shared};
use crate::engine::{Connect, Engine, EngineInfo, Kind, Seat, TokenStrength};
use crate::error::{Error, ErrorKind, Result, invalid};

/// Opens the engine.
pub(in super::super) async fn open(sql: Sql, seat: Seat) -> Result<Arc<dyn Engine>> {
    let at_open = |fault: Fault| fault.at(Stage::Open);
    let wire = Wire::open(&sql).await.map_err(at_open)?;
    let tongue = tongue(&sql, &wire).await.map_err(at_open)?;
    let words = Words::new(&sql, tongue);
    make_tables(&sql, &wire, &words).await?;
    let shared = Arc::new(Shared {
        info: info(&sql, tongue),
        control: Control::new(sql.clone(), words, wire),
        sql,
        seat,
        desk: Mutex::default(),
    });
    shared.refuse_pooler().await?;
    tokio::spawn(watch_over(Arc::downgrade(&shared)));
    Ok(Arc::new(SessionEngine(shared)))
}

/// The statements that make the tables, for people who run them by hand.
pub(in super::super) fn schema(sql: &Sql) -> String {
    let tongue = match sql.dialect.scheme() {
        "postgres" => Tongue::Postgres,
        _ => Tongue::MariaDb,
    };
    let mut text = match &sql.schema {
        Some(schema) => {
            format!("CREATE SCHEMA IF NOT EXISTS {};\n\n", sql.dialect.quote(schema))
        }
        None => String::new(),
    };
    for statement in Words::new(sql, tongue).tables() {
        text.push_str(&statement);
        text.push_str(";\n");
    }
    text
}

pub(super) async fn tongue(sql: &Sql, wire: &Wire) -> Result<Tongue, Fault> {
    if sql.dialect.scheme() == "postgres" {
        return Ok(Tongue::Postgres);
    }
    let tables = wire.ask("SELECT VERSION()", sql.command).await?;
    let row = tables.first().and_then(|table| table.rows.first()).ok_or_else(unclear)?;
    Ok(if row.text(0)?.contains("MariaDB") { Tongue::MariaDb } else { Tongue::MySql })
}

/// Makes sure that the tables are there, and ours.
pub(super) async fn make_tables(sql: &Sql, wire: &Wire, words: &Words) -> Result<()> {
    let at_open = |fault: Fault| fault.at(Stage::Open);
    let shape = words.shape();
    match wire.ask(shape.clone(), sql.command).await {
        Ok(_) => return Ok(()),
        Err(fault) if fault.class == Class::NoTable => {}
        Err(fault) => return Err(not_ours(sql, fault)),
    }
    let other = sql.dialect.has_table(sql, LEASE_TABLE);
    let other = wire.ask(other, sql.command).await.map_err(at_open)?;
    if other.last().is_some_and(|table| !table.rows.is_empty()) {
        return Err(other_strategy(sql));
    }
    let end = sql.dialect.end_making(sql);
    let script = format!("{}{}; {end}", sql.dialect.begin_making(sql), words.tables().join("; "));
    let made = wire.ask(script, sql.command.max(Duration::from_secs(15))).await;
    if let Err(fault) = made {
        if fault.leaves_connection() {
            let _ = wire.ask(format!("ROLLBACK; {end}"), sql.command).await;
        }
        if fault.class == Class::Forbidden {
            let text = format!(
                "the tables are missing and this user may not make them; let somebody run what \
                 `lockkeeper schema` prints:\n{}",
                schema(sql)
            );
            return Err(invalid(text).because(fault.at(Stage::Open)));
        }
        // Somebody else may have been quicker.
        if fault.class != Class::Conflict {
            return Err(at_open(fault));
        }
    }
    wire.ask(shape, sql.command).await.map(drop).map_err(|fault| not_ours(sql, fault))
}

/// The error of tables that are not as we make them.
fn not_ours(sql: &Sql, fault: Fault) -> Error {
    match fault.class {
        Class::Refused(ErrorKind::Invalid | ErrorKind::Unexpected) => invalid(format!(
            "a table whose name starts with {} is not one of Lockkeeper's; choose another prefix=",
            sql.prefix
        ))
        .because(fault.at(Stage::Open)),
        _ => fault.at(Stage::Open),
    }
}

fn info(sql: &Sql, tongue: Tongue) -> EngineInfo {
    EngineInfo {
        engine: sql.dialect.scheme().into(),
        label: sql.label(),
        ordered: false,
        polled: false,
        tokens: TokenStrength::Durable,
        caveat: "a lock is an open transaction: who ends its session by hand (KILL, \
                 pg_terminate_backend) or cuts it off frees the name, and the holder is told at \
                 once; a failover to a replica frees every name"
            .into(),
        kinds: vec![Kind::Mutex, Kind::ReadWrite],
        // MySQL and MariaDB count in whole seconds.
        min_lease: match tongue {
            Tongue::Postgres => Duration::from_millis(500),
            _ => Duration::from_secs(1),
        },
        lingers: true,
    }
}

impl Shared {
    /// Refuses to work through something that shares sessions among clients.
    async fn refuse_pooler(&self) -> Result<()> {
        let pooled = self.is_pooled().await.map_err(|fault| fault.at(Stage::Open))?;
        if !pooled {
            return Ok(());
        }
        let text = "there is a proxy in between that gives one session of the server to several \
                    clients (transaction pooling); strategy=session needs sessions of its own: \
                    connect to the server itself, or to a port of the proxy with session pooling";
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    async fn is_pooled(&self) -> Result<bool, Fault> {
        let who = self.control.words.who_am_i();
        let number = |tables: Vec<Table>| {
            let row = tables.last().and_then(|table| table.rows.first());
            row.ok_or_else(unclear)?.number(0).map(i64::unsigned_abs)
        };
        let session = self.open_session().await?;
        let before = number(self.control.look(who).await?)?;
        // While this transaction is open, nobody else can have its session.
        let begun = match session.ask(format!("BEGIN; {who}"), self.sql.command).await {
            Ok(tables) => tables,
            // The proxy says so itself.
            Err(fault) if fault.to_string().contains("pooling") => return Ok(true),
            Err(fault) => return Err(fault),
        };
        let inside = number(begun)?;
        let after = number(self.control.look(who).await?)?;
        session.ask("ROLLBACK", self.sql.command).await?;
        let known = session.session();
        self.keep_spare(session);
        Ok(before != after || inside == after || inside != known)
    }
}
