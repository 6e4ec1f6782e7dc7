//! Bare connections to the database of a URL, the way this engine makes them:
//! for whoever measures what a lock costs beside them.

use std::fmt;

use tokio::sync::mpsc;

use super::config::{Sql, Strategy};
use super::fault::Stage;
use super::wire::{Connection, connect};
use crate::error::Result;
use crate::name::LockName;

/// One connection.
#[doc(hidden)]
pub struct Bare(Box<dyn Connection>);

impl Bare {
    /// Runs statements in one round trip, and gives the rows of the last.
    ///
    /// # Errors
    /// What the database says.
    ///
    /// # Cancel safety
    /// May have taken effect; the connection is of no use any more.
    pub async fn batch(&mut self, statements: &str) -> Result<Vec<Vec<String>>> {
        let tables = self.0.batch(statements).await.map_err(|fault| fault.at(Stage::Work))?;
        let text = |value: &Option<Vec<u8>>| {
            value.as_deref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        let rows = tables.last().map_or(&[][..], |table| &table.rows);
        Ok(rows
            .iter()
            .map(|row| row.0.iter().map(|v| text(v).unwrap_or_default()).collect())
            .collect())
    }

    /// What begins a transaction like those of the engine.
    pub fn begin(&self) -> &'static str {
        self.0.begin()
    }

    /// What ends it.
    pub fn commit(&self) -> &'static str {
        self.0.commit()
    }
}

impl fmt::Debug for Bare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bare").field(&self.0.session()).finish()
    }
}

#[doc(hidden)]
impl Sql {
    /// Connects as the engine would; `pushes` gets what the session is notified of.
    ///
    /// # Errors
    /// As connecting the engine.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn bare(&self, pushes: Option<mpsc::UnboundedSender<String>>) -> Result<Bare> {
        Ok(Bare(connect(self, pushes).await.map_err(|fault| fault.at(Stage::Open))?))
    }

    /// What locks are made of.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// How many connections the engine may have.
    pub fn most_connections(&self) -> usize {
        self.limit()
    }

    /// A table of ours that no other part of us uses.
    pub fn bench_table(&self) -> String {
        self.table("bench")
    }

    /// What makes the engine forget these names, whoever used them.
    pub fn forget_at_once(&self, names: &[LockName]) -> Vec<String> {
        let list: Vec<String> =
            names.iter().map(|name| self.dialect.bytes(name.as_str())).collect();
        let list = list.join(", ");
        let tables: &[&str] = match self.strategy {
            Strategy::Lease => &["claims", "names"],
            Strategy::Session => &["session_holders", "session_tokens", "session_locks"],
        };
        let forget =
            |table: &&str| format!("DELETE FROM {} WHERE name IN ({list})", self.table(table));
        tables.iter().map(forget).collect()
    }
}
