//! What is shown on real database servers alone: what happens when servers,
//! connections and people fail, with leases in rows and with row locks.

mod parity;
mod refusals;
mod rows;
mod servers;
