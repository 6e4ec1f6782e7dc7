//! Explores the model: every state of small worlds, long histories of large ones.
//!
//! A [`World`] is one name's record, a few clients that follow the rules of
//! the design, and the messages between them, which arrive late, out of order,
//! more than once or never, while time passes in steps of a second. Every step
//! and every state is held against the [`Law`]s.
//!
//! A checker that finds nothing proves nothing by itself, so [`mutants`] holds
//! wrong variants, of servers and of clients, each of which it has to catch.

mod action;
mod belief;
mod check;
mod client;
mod fingerprint;
mod future;
mod law;
mod machine;
pub mod mutants;
mod rows;
mod search;
mod setup;
mod wake;
mod walk;
mod world;

pub use action::Action;
pub use law::{Breach, Ghost, Law, Snapshot};
pub use machine::{Honest, Machine};
pub use search::{Order, Report, search};
pub use setup::{Limits, Rules, Setup, Validity, Wish};
pub use walk::walk;
pub use world::{Body, Client, Hand, Message, Phase, Said, Scratch, World};
