//! Distributed locking that is honest and hard to misuse.
//!
//! A [`Keeper`] is a connection to an engine; the engine is chosen by URL.
//! Through it you get a [`Mutex`], a [`RwLock`], a [`Semaphore`], a [`Latch`],
//! several mutexes at once ([`Multi`]), and a [`Fence`] that checks tokens.
//!
//! ```
//! use lockkeeper::Keeper;
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let keeper = Keeper::connect("memory:").await?;
//! let guard = keeper.mutex("orders/42").lock().await?;
//!
//! guard.check()?;               // still ours? before each write, without I/O
//! let token = guard.token();    // send it along: the resource refuses older ones
//! # let _ = token;
//!
//! tokio::select! {
//!     cause = guard.lost() => println!("stop: {cause}"),
//!     _ = async { /* the work */ } => {}
//! }
//! let _ = guard.release().await?;   // or just drop it
//! # Ok::<(), lockkeeper::Error>(())
//! # }).unwrap();
//! ```
//!
//! What sets it apart:
//!
//! - **Told before it is too late.** A guard is held, at risk or lost; it is
//!   lost by its own clock before the engine can give the name to another,
//!   even if the engine is silent and the process was stopped in between.
//! - **A token with every exclusive grant**, larger than every one before it.
//! - **Cancel anywhere.** Dropping any future, at any await, leaves no lock and
//!   no place in a queue behind.
//! - **First come, first served**, by push; a try never overtakes.
//! - **Repeatable.** A request whose answer was lost is asked again: granted
//!   once, counted once.
//!
//! A lock is a lease. What it cannot do, and what the token is for, is said in
//! `docs/safety.md`. Code without async finds the same calls in [`blocking`].
//!
//! Whoever writes an engine implements the two traits of [`engine`]; whoever
//! wants to see a program lose its lock wraps one in [`layer::faults`].

#![forbid(unsafe_code)]

pub mod blocking;
mod cause;
mod clock;
mod driver;
pub mod engine;
mod error;
mod fence;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod fenced;
mod guard;
mod hold;
mod keeper;
mod latch;
pub mod layer;
pub mod model;
mod multi;
mod mutex;
mod name;
mod options;
mod reentry;
mod request;
mod rwlock;
mod semaphore;
mod status;
#[cfg(all(feature = "tls", any(feature = "mysql", feature = "redis", feature = "zookeeper")))]
mod tls;
mod token;
mod url;

pub use cause::Cause;
pub use clock::{Clock, Moment};
pub use driver::link::Waiting;
#[cfg(all(unix, feature = "local"))]
pub use engine::local::Local;
pub use engine::memory::Memory;
#[cfg(feature = "redis")]
pub use engine::redis::{Confirm, Redis};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use engine::sql::{Sql, Strategy};
#[cfg(feature = "zookeeper")]
pub use engine::zookeeper::{ZooKeeper, ZooKeeperAcl};
pub use engine::{Connect, Engine};
pub use error::{Error, ErrorKind, Result};
pub use fence::Fence;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use fenced::FencedTable;
pub use guard::{Guard, Permits, ReadGuard, RunError, Scope, WriteGuard};
pub use hold::{Hold, Released, State};
pub use keeper::Keeper;
pub use latch::{Latch, Opened};
pub use multi::{Multi, MultiGuard};
pub use mutex::Mutex;
pub use name::LockName;
pub use options::LockOptions;
pub use reentry::Reentry;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use token::{ClaimId, KeeperId, Token};
pub use url::redact;

/// What the program measures with: bare connections, and what a keeper asked for.
#[doc(hidden)]
pub mod bench {
    pub use crate::driver::link::Tally;
    #[cfg(feature = "redis")]
    pub use crate::engine::redis::Bare as RedisBare;
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub use crate::engine::sql::Bare as SqlBare;
}
