//! Engines around engines.

pub mod faults;
