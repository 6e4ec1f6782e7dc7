//! Forgetting names that nobody has used for a long time.

use std::time::Duration;

use super::config::Sql;
use super::fault::{Class, Fault, Stage};
use super::rows::{self, CLAIMS, NAMES};
use super::schema;
use super::step::pause;
use super::wire::{Connection, ask, connect};
use crate::error::{ErrorKind, Result, invalid};
use crate::model::{Record, Time};
use crate::name::LockName;

/// How many names are looked at in one transaction.
const AT_ONCE: usize = 200;
/// How often a transaction is tried again when others were in the way.
const TRIES: u32 = 8;

impl Sql {
    /// The statements that make the tables, for those who run them by hand.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "postgres")] {
    /// use lockkeeper::Sql;
    ///
    /// let sql = Sql::parse("postgres://localhost/shop?schema=locks")?;
    /// assert!(sql.schema().contains(r#"CREATE TABLE IF NOT EXISTS "locks"."lockkeeper_names""#));
    /// # }
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn schema(&self) -> String {
        schema::statements(self)
    }

    /// Forgets the names that nobody has used for `idle`, and what dead
    /// keepers left behind; returns how many names that were.
    ///
    /// Their tokens are not forgotten: whoever uses such a name again gets a
    /// higher one. Their kind and capacity are. Fences are kept for ever.
    /// Safe at any time, beside any number of users. Must run inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for less than a day, else what the database says.
    ///
    /// # Cancel safety
    /// May have forgotten some of the names; repeating it is harmless.
    pub async fn forget_idle(&self, idle: Duration) -> Result<u64> {
        if idle < Record::RETENTION {
            return Err(invalid("names are kept for a day at least (24h)"));
        }
        let mut connection =
            connect(self, None).await.map_err(|fault| fault.at(Stage::Open).during("gc"))?;
        schema::ensure(self, &mut *connection).await?;
        let forgotten = forget(self, &mut *connection, idle).await;
        let forgotten = forgotten.map_err(|fault| fault.at(Stage::Work).during("gc"))?;
        connection.close().await;
        Ok(forgotten)
    }
}

async fn forget(sql: &Sql, connection: &mut dyn Connection, idle: Duration) -> Result<u64, Fault> {
    let idle = u64::try_from(idle.as_micros()).unwrap_or(u64::MAX >> 1) as i64;
    let (mut forgotten, mut tries) = (0, 0);
    let mut last: Option<LockName> = None;
    loop {
        let found = candidates(sql, connection, idle, last.as_ref()).await?;
        let Some(end) = found.last().cloned() else { break };
        match forget_some(sql, connection, &found, idle).await {
            Ok(count) => {
                forgotten += count;
                (last, tries) = (Some(end), 0);
            }
            Err(fault) if fault.class == Class::Conflict && tries < TRIES => {
                tries += 1;
                let rollback = connection.rollback();
                ask(connection, rollback, sql.command).await?;
                tokio::time::sleep(pause(tries)).await;
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(forgotten)
}

/// The next names that seem to be idle.
async fn candidates(
    sql: &Sql,
    connection: &mut dyn Connection,
    idle: i64,
    last: Option<&LockName>,
) -> Result<Vec<LockName>, Fault> {
    let after = last.map_or_else(String::new, |last| {
        format!("AND name > {}", sql.dialect.bytes(last.as_str()))
    });
    let look = format!(
        "SELECT name FROM {} WHERE fence IS NULL AND used_us <= {} - {idle} {after} \
         ORDER BY name LIMIT {AT_ONCE}",
        sql.table("names"),
        sql.dialect.clock(),
    );
    let tables = ask(connection, &look, sql.command).await?;
    let rows = tables.last().map_or(&[][..], |table| &table.rows);
    rows.iter().map(|row| rows::name(sql, row)).collect()
}

/// Forgets those of the names that are idle indeed, in one transaction.
async fn forget_some(
    sql: &Sql,
    connection: &mut dyn Connection,
    names: &[LockName],
    idle: i64,
) -> Result<u64, Fault> {
    let short = || Fault::new(Class::Refused(ErrorKind::Unexpected), "an answer lacks something");
    let list: Vec<String> = names.iter().map(|name| sql.dialect.bytes(name.as_str())).collect();
    let list = list.join(", ");
    // The floor is locked before names are gone: whoever makes one of them
    // anew reads it after that.
    let statements = format!(
        "{}; SELECT {NAMES} FROM {} WHERE name IN ({list}) ORDER BY name FOR UPDATE SKIP LOCKED; \
         SELECT {CLAIMS} FROM {} WHERE name IN ({list}); \
         SELECT {}, floor FROM {} FOR UPDATE",
        connection.begin(),
        sql.table("names"),
        sql.table("claims"),
        sql.dialect.clock(),
        sql.table("meta"),
    );
    let tables = ask(connection, &statements, sql.command).await?;
    let [locked, claims, meta] = tables.last_chunk().ok_or_else(short)?;
    let mut loaded = rows::names(sql, locked)?;
    rows::claims(sql, claims, &mut loaded)?;
    let meta = meta.rows.first().ok_or_else(short)?;
    let (now, old) = (Time(meta.number(0)? as u64), meta.number(1)? as u64);
    loaded.retain(|_, loaded| {
        let unused = now.0.saturating_sub(loaded.record.used.0);
        loaded.record.is_forgettable(now) && unused >= idle as u64
    });
    let floor = loaded.values().map(|loaded| loaded.record.counter.get()).fold(old, u64::max);
    let list: Vec<String> = loaded.keys().map(|name| sql.dialect.bytes(name.as_str())).collect();
    let list = list.join(", ");
    let mut script = String::new();
    if floor != old {
        script = format!("UPDATE {} SET floor = {}; ", sql.table("meta"), floor as i64);
    }
    if !loaded.is_empty() {
        for table in ["claims", "counted", "listeners", "names"] {
            let table = sql.table(table);
            script.push_str(&format!("DELETE FROM {table} WHERE name IN ({list}); "));
        }
    }
    script.push_str(connection.commit());
    ask(connection, &script, sql.command).await?;
    Ok(loaded.len() as u64)
}
