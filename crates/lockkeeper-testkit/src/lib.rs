//! kit

pub mod explore;
