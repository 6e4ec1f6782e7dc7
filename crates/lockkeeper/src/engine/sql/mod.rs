//! MySQL, MariaDB and PostgreSQL.
//!
//! - `config`: where the database is, from a URL or typed;
//! - `dialect`, `mysql`, `postgres`: what differs between the databases;
//! - `wire`: one connection and the task that owns it; `fault`: what errors mean;
//! - `schema`: the tables, made on first use;
//! - `lease`: the engine on lease rows; `desk`: its workers; `step`: one
//!   transaction; `phrase`: its statements; `rows`: how records are stored; `store`: writing
//!   what changed; `look`: reading without locks; `hint`: what to read
//!   along; `hear`: being told of what others did; `gc`: forgetting idle names;
//! - `session`: the engine on row locks.

mod bare;
mod config;
mod desk;
mod dialect;
mod fault;
mod gc;
mod hear;
mod hint;
mod lease;
mod look;
#[cfg(feature = "mysql")]
mod mysql;
mod phrase;
#[cfg(feature = "postgres")]
mod postgres;
mod rows;
mod schema;
mod session;
mod step;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

pub use bare::Bare;
pub use config::{Sql, Strategy};

use super::{Engine, Seat};
use crate::error::Result;

/// How long the server lets a session of ours stand still inside a
/// transaction: a process that was stopped there keeps its row no longer.
const IDLE: Duration = Duration::from_secs(2);
/// How long a statement waits for a row that another session has locked.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Opens the engine that the settings ask for.
async fn open(sql: Sql, seat: Seat) -> Result<Arc<dyn Engine>> {
    match sql.strategy {
        Strategy::Lease => Ok(Arc::new(lease::LeaseEngine::open(sql, seat).await?)),
        Strategy::Session => session::open(sql, seat).await,
    }
}
