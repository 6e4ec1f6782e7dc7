//! The tables: made on first use where that is allowed, and known again.

use super::config::{Sql, Strategy};
use super::fault::{Class, Fault, Stage};
use super::rows::{CLAIMS, NAMES};
use super::wire::{Connection, ask};
use crate::error::{Error, ErrorKind, Result, invalid};

/// The version of the tables.
const VERSION: i64 = 1;
/// How often making the tables is tried again when others were in the way.
const TRIES: u32 = 5;
/// A table that only the session strategy has.
pub(super) const SESSION_TABLE: &str = "session_locks";
/// A table that only the lease strategy has.
pub(super) const LEASE_TABLE: &str = "meta";

/// The tables but `meta`, and columns that tell them from others of the name.
const TABLES: [(&str, &str); 4] =
    [("names", NAMES), ("claims", CLAIMS), ("counted", "name, id"), ("listeners", "name, keeper")];

/// The statements that make the tables, for people who run them by hand.
pub(super) fn statements(sql: &Sql) -> String {
    if sql.strategy == Strategy::Session {
        return super::session::schema(sql);
    }
    let mut text = sql.dialect.schema().to_owned();
    for table in ["meta", "names", "claims", "counted", "listeners", "mail"] {
        text = text.replace(&format!("{{{table}}}"), &sql.table(table));
    }
    match &sql.schema {
        Some(schema) => {
            let schema = sql.dialect.quote(schema);
            format!("CREATE SCHEMA IF NOT EXISTS {schema};\n\n{text}")
        }
        None => text,
    }
}

/// Makes sure that the tables are there, and ours.
pub(super) async fn ensure(sql: &Sql, connection: &mut dyn Connection) -> Result<()> {
    let mut tries = 0;
    loop {
        tries += 1;
        match check(sql, connection).await? {
            true => return Ok(()),
            false if tries > TRIES => {
                return Err(Error::new(ErrorKind::Unexpected, "the tables are gone once made"));
            }
            false => make(sql, connection).await?,
        }
    }
}

/// Whether the tables are there; an error if they are not ours.
async fn check(sql: &Sql, connection: &mut dyn Connection) -> Result<bool> {
    let mut look = format!("SELECT version FROM {} WHERE one = 1", sql.table("meta"));
    for (table, columns) in TABLES {
        look.push_str(&format!("; SELECT {columns} FROM {} WHERE 1 = 0", sql.table(table)));
    }
    let tables = match ask(connection, &look, sql.command).await {
        Ok(tables) => tables,
        Err(fault) if fault.class == Class::NoTable => return Ok(false),
        Err(fault) => return Err(foreign(sql, fault)),
    };
    let version = tables.first().and_then(|table| table.rows.first());
    let Some(version) = version else { return Ok(false) };
    match version.number(0).map_err(|fault| foreign(sql, fault))? {
        VERSION => Ok(true),
        newer => Err(invalid(format!(
            "the tables {}… are of version {newer}; this program knows {VERSION}",
            sql.prefix
        ))),
    }
}

async fn make(sql: &Sql, connection: &mut dyn Connection) -> Result<()> {
    let other = ask(connection, &sql.dialect.has_table(sql, SESSION_TABLE), sql.command).await;
    let other = other.map_err(|fault| fault.at(Stage::Open))?;
    if other.last().is_some_and(|table| !table.rows.is_empty()) {
        return Err(other_strategy(sql));
    }
    // A table of the same name that is not ours would not be made, and would
    // be noticed only after its neighbours are.
    for (table, columns) in TABLES {
        let found = ask(connection, &sql.dialect.has_table(sql, table), sql.command).await;
        let found = found.map_err(|fault| fault.at(Stage::Open))?;
        if found.last().is_some_and(|table| !table.rows.is_empty()) {
            let look = format!("SELECT {columns} FROM {} WHERE 1 = 0", sql.table(table));
            match ask(connection, &look, sql.command).await {
                Ok(_) => {}
                // Somebody else is making them just now, or unmaking.
                Err(fault) if fault.class == Class::NoTable => {}
                Err(fault) => return Err(foreign(sql, fault)),
            }
        }
    }
    let mut script = sql.dialect.begin_making(sql);
    for statement in bare(sql) {
        script.push_str(&statement);
        script.push_str("; ");
    }
    script.push_str(&sql.dialect.end_making(sql));
    let limit = sql.command.max(std::time::Duration::from_secs(15));
    match ask(connection, &script, limit).await {
        Ok(_) => Ok(()),
        Err(fault) => {
            let rollback = connection.rollback();
            if fault.leaves_connection() {
                let end = format!("{rollback}; {}", sql.dialect.end_making(sql));
                let _ = ask(connection, &end, sql.command).await;
            }
            match fault.class {
                Class::Forbidden => Err(invalid(format!(
                    "the tables are missing and this user may not make them; let somebody run \
                     what `lockkeeper schema` prints:\n{}",
                    statements(sql)
                ))
                .because(fault.at(Stage::Open))),
                // Two who make the same table at once.
                Class::Conflict => Ok(()),
                _ => Err(fault.at(Stage::Open)),
            }
        }
    }
}

/// Rows with leases and row locks do not exclude each other, so they do not
/// share a prefix either.
pub(super) fn other_strategy(sql: &Sql) -> Error {
    let (mine, theirs) = match sql.strategy {
        Strategy::Lease => ("lease", "session"),
        Strategy::Session => ("session", "lease"),
    };
    invalid(format!(
        "the tables {}… belong to strategy={theirs}, whose locks do not exclude those of \
         strategy={mine}: use that one, or another prefix=",
        sql.prefix
    ))
}

/// The statements one by one, without comments.
fn bare(sql: &Sql) -> Vec<String> {
    let text = statements(sql);
    let lines = text.lines().map(|line| line.split("--").next().unwrap_or_default().trim());
    let text: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let schema = |statement: &&str| !statement.trim_start().starts_with("CREATE SCHEMA");
    let text = text.join(" ");
    let statements = text.split(';').map(str::trim).filter(|statement| !statement.is_empty());
    statements.filter(schema).map(str::to_owned).collect()
}

fn foreign(sql: &Sql, fault: Fault) -> Error {
    match fault.class {
        Class::Refused(ErrorKind::Invalid | ErrorKind::Unexpected) => invalid(format!(
            "a table whose name starts with {} is not one of Lockkeeper's; choose another prefix=",
            sql.prefix
        ))
        .because(fault.at(Stage::Open)),
        _ => fault.at(Stage::Open),
    }
}
