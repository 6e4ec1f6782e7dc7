//! The embedded engine, with real processes that are killed, stopped and starved.

mod damage;
mod faults;
mod history;
mod kit;
mod primitives;
mod refusals;
