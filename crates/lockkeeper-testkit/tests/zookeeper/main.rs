//! What is shown on real ZooKeeper servers alone, beside the real Curator, and
//! what happens when servers, connections and people fail.

mod cancel;
mod counts;
mod cuts;
mod delays;
mod histories;
mod interop;
mod kit;
mod lost;
mod members;
mod nodes;
mod people;
mod refusals;
mod secure;
