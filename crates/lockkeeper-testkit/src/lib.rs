//! Proves that an engine keeps Lockkeeper's promises.
//!
//! A case is a plain async function over a [`Stage`]: an engine that is up,
//! reached by its URL. [`conformance!`] names every case for one engine, so a
//! new engine needs one line to run them all; what it refuses by name is
//! checked to be refused.

pub mod cases;
pub mod child;
pub mod clock;
pub mod explore;
pub mod fleet;
pub mod hammer;
pub mod history;
pub mod parity;
pub mod proxy;
pub mod server;
pub mod sql;
mod stage;
pub mod start;
mod starved;
pub mod witness;
pub mod zookeeper;

pub use stage::{Stage, eventually, poll_once, seed, within};
pub use starved::lateness;
