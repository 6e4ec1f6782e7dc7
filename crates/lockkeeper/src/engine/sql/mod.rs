//! MySQL, MariaDB and PostgreSQL.
//!
//! - `config`: where the database is, from a URL or typed;
//! - `dialect`, `mysql`, `postgres`: what differs between the databases;
//! - `wire`: one connection and the task that owns it;
//! - `fault`: what errors mean;
//! - `session`: locks made of row locks.

mod config;
mod dialect;
mod fault;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod session;
#[cfg(feature = "tls")]
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

pub use config::{Sql, Strategy};

use super::{Engine, Seat};
use crate::error::Result;
use fault::Stage;

/// How long the server lets a session of ours stand still inside a
/// transaction: a process that was stopped there keeps its row no longer.
const IDLE: Duration = Duration::from_secs(2);
/// How long a statement waits for a row that another session has locked.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Opens the engine that the settings ask for.
async fn open(sql: Sql, seat: Seat) -> Result<Arc<dyn Engine>> {
    if sql.strategy == Strategy::Session {
        return session::open(sql, seat).await;
    }
    let wire = wire::Wire::open(&sql).await.map_err(|fault| fault.at(Stage::Open))?;
    let text = format!("no strategy {:?} yet", sql.strategy);
    drop(wire);
    Err(crate::Error::new(crate::ErrorKind::Unsupported, text))
}
