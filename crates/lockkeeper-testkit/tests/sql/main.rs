//! What is shown on real database servers alone: what happens when servers,
//! connections and people fail, with leases in rows and with row locks.

mod faults;
mod fenced;
mod histories;
mod kit;
mod peers;
mod servers;
mod session;
