//! What is shown on real database servers alone: what happens when servers,
//! connections and people fail, with leases in rows and with row locks.

mod costs;
mod faults;
mod fenced;
mod histories;
mod kit;
mod parity;
mod peers;
mod refusals;
mod rows;
mod servers;
mod session;
