//! The embedded engine, with real processes that are killed, stopped and starved.

mod faults;
mod history;
mod primitives;
mod refusals;
mod worker;
