//! Looking without changing anything: one state of the database, no locks.

use tokio::sync::oneshot;

use super::config::Sql;
use super::fault::{Class, Fault};
use super::rows::{self, CLAIMS, NAMES};
use super::wire::{Connection, Table, ask};
use crate::ErrorKind;
use crate::engine::{Cursor, Page, Status};
use crate::model::Time;
use crate::name::LockName;

/// What to look at, and who wants to know.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) at: At,
    pub(super) reply: oneshot::Sender<crate::Result<Page>>,
}

/// What to look at.
#[derive(Debug)]
pub(super) enum At {
    /// One name: a page of one entry.
    Name(LockName),
    /// The names in use that start with `prefix`.
    List { prefix: String, from: Option<Cursor>, limit: usize },
}

impl At {
    pub(super) async fn look(
        &self,
        sql: &Sql,
        connection: &mut dyn Connection,
    ) -> Result<Page, Fault> {
        match self {
            At::Name(name) => {
                let entries = vec![status(sql, connection, name).await?];
                Ok(Page { entries, next: None })
            }
            At::List { prefix, from, limit } => {
                list(sql, connection, prefix, from.as_ref(), *limit).await
            }
        }
    }
}

/// Tells who holds and who waits for a name.
async fn status(
    sql: &Sql,
    connection: &mut dyn Connection,
    name: &LockName,
) -> Result<Status, Fault> {
    let (begin, commit) = (connection.snapshot(), connection.commit());
    let looks = looks(sql, &[sql.dialect.bytes(name.as_str())]);
    let statements =
        format!("{begin}; SELECT {clock}; {looks}; {commit}", clock = sql.dialect.clock());
    let tables = ask(connection, &statements, sql.command).await?;
    let asked = tables.iter().position(|table| !table.rows.is_empty()).ok_or_else(short)?;
    let now = clock(&tables[asked])?;
    let statuses = read(sql, tables.get(asked + 1..asked + 3).ok_or_else(short)?, now)?;
    Ok(statuses.into_iter().next().unwrap_or_else(|| Status::unused(name.clone())))
}

/// Lists names in use.
async fn list(
    sql: &Sql,
    connection: &mut dyn Connection,
    prefix: &str,
    from: Option<&Cursor>,
    limit: usize,
) -> Result<Page, Fault> {
    // A first look in SQL spares us the idle names.
    let clock_now = sql.dialect.clock();
    let start = match from {
        Some(Cursor(last)) => format!("n.name > {}", sql.dialect.bytes(last)),
        None => format!("n.name >= {}", sql.dialect.bytes(prefix)),
    };
    // A NUL is written in another place of the order; then the end is noticed
    // below.
    let end = match after(prefix) {
        Some(end) if !prefix.ends_with('\0') => format!("AND n.name < {}", sql.dialect.bytes(&end)),
        _ => String::new(),
    };
    let statements = format!(
        "{begin}; SELECT {clock_now}; SELECT n.name FROM {names} AS n WHERE {start} {end} \
         AND (n.kind IN ('semaphore', 'latch', 'fence') OR n.closed_until_us > {clock_now} \
         OR n.until_us > {clock_now} OR EXISTS (SELECT 1 FROM {claims} AS c WHERE c.name = n.name \
         AND c.state IN ('held', 'queued') AND c.until_us > {clock_now})) \
         ORDER BY n.name LIMIT {more}",
        begin = connection.snapshot(),
        names = sql.table("names"),
        claims = sql.table("claims"),
        more = limit.saturating_add(1).min(100_000),
    );
    let tables = ask(connection, &statements, sql.command).await?;
    let [time, names] = tables.last_chunk().ok_or_else(short)?;
    let now = clock(time)?;
    let mut found: Vec<LockName> =
        names.rows.iter().map(|row| rows::name(sql, row)).collect::<Result<_, _>>()?;
    let within = found.iter().take_while(|name| name.as_str().starts_with(prefix)).count();
    found.truncate(within);
    let more = found.len() > limit;
    found.truncate(limit);
    let mut entries = Vec::new();
    for names in found.chunks(200) {
        let list: Vec<String> = names.iter().map(|name| sql.dialect.bytes(name.as_str())).collect();
        let tables = ask(connection, &looks(sql, &list), sql.command).await?;
        entries.extend(read(sql, &tables, now)?);
    }
    let commit = connection.commit();
    ask(connection, commit, sql.command).await?;
    entries.retain(Status::is_in_use);
    let next = found.last().filter(|_| more).map(|last| Cursor(last.clone().into()));
    Ok(Page { entries, next })
}

/// Two questions: the rows of these names, and of their claims.
fn looks(sql: &Sql, list: &[String]) -> String {
    let list = list.join(", ");
    format!(
        "SELECT {NAMES} FROM {} WHERE name IN ({list}); \
         SELECT {CLAIMS} FROM {} WHERE name IN ({list})",
        sql.table("names"),
        sql.table("claims"),
    )
}

fn read(sql: &Sql, tables: &[Table], now: Time) -> Result<Vec<Status>, Fault> {
    let [names, claims] = tables else { return Err(short()) };
    let mut names = rows::names(sql, names)?;
    rows::claims(sql, claims, &mut names)?;
    Ok(names.into_iter().map(|(name, loaded)| loaded.record.status(name, now)).collect())
}

fn clock(table: &Table) -> Result<Time, Fault> {
    Ok(Time(table.rows.first().ok_or_else(short)?.number(0)? as u64))
}

fn short() -> Fault {
    Fault::new(Class::Refused(ErrorKind::Unexpected), "an answer lacks something")
}

/// The first text after all those that start with `prefix`, by code points.
fn after(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        let mut next = u32::from(last) + 1;
        if next == 0xD800 {
            next = 0xE000;
        }
        if let Some(next) = char::from_u32(next) {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(after("a").as_deref(), Some("b"));
        assert_eq!(after("a\u{10FFFF}").as_deref(), Some("b"));
        assert_eq!(after("\u{D7FF}").as_deref(), Some("\u{E000}"));
        assert_eq!(after("\0").as_deref(), Some("\u{1}"));
        assert_eq!(after(""), None);
        assert_eq!(after("\u{10FFFF}"), None);
    }
}
