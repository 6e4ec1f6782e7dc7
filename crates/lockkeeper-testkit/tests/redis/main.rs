//! What is shown on real Redis servers alone: that the scripts do what the
//! model says, and what happens when servers, connections and people fail.

mod clocks;
mod confirm;
mod counts;
mod failover;
mod faults;
mod histories;
mod parity;
mod people;
mod refusals;
mod short_cuts;
