//! ZooKeeper servers that tests start: one alone, three that belong together,
//! ones that ask for TLS or a login; and programs that use the real Curator.
//!
//! Everything runs by the plain `java` program with the jars of Debian's
//! packages, which `scripts/setup` installs.

mod ensemble;
mod java;
mod peer;
mod server;

pub use ensemble::{Ensemble, Outpost};
pub use peer::{curator, preset_counter};
pub use server::{Settings, USUAL, ZooKeeper, url};
