//! Bare connections to the servers of a URL, the way this engine makes them:
//! for whoever measures what a lock costs beside them.

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use redis::cmd;

use super::address;
use super::cluster::{SUFFIXES, owners, slot};
use super::config::{Place, Redis, Topology};
use super::fault::refused_connection;
use super::reply::strange;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// A connection to each master.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Bare {
    /// The connections.
    pub masters: Vec<MultiplexedConnection>,
    /// In a cluster, which of them has each slot.
    slots: Vec<usize>,
}

impl Bare {
    /// The connection to whoever has this key.
    pub fn having(&self, key: &str) -> &MultiplexedConnection {
        let slot = usize::from(slot(key.as_bytes()));
        &self.masters[self.slots.get(slot).copied().unwrap_or(0)]
    }

    /// Whether this is a cluster.
    pub fn is_cluster(&self) -> bool {
        !self.slots.is_empty()
    }
}

#[doc(hidden)]
impl Redis {
    /// Connects as the engine would; the limits are those of `config`.
    ///
    /// # Errors
    /// As connecting the engine.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn bare(&self, config: &AsyncConnectionConfig) -> Result<Bare> {
        let place = match &self.topology {
            Topology::Single(place) => place.clone(),
            Topology::Sentinel { sentinels, master } => {
                address::master(self, sentinels, master).await?
            }
            Topology::Cluster { nodes } => return self.bare_cluster(nodes, config).await,
        };
        let master = address::connect(self, &place, config).await?;
        Ok(Bare { masters: vec![master], slots: Vec::new() })
    }

    async fn bare_cluster(&self, seeds: &[Place], config: &AsyncConnectionConfig) -> Result<Bare> {
        let mut last = Error::new(ErrorKind::Unreachable, "no node of the cluster answers");
        for seed in seeds {
            let mut node = match address::connect(self, seed, config).await {
                Ok(node) => node,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            let mut ask = cmd("CLUSTER");
            ask.arg("SLOTS");
            let answer = ask.query_async(&mut node).await.map_err(refused_connection)?;
            let owners = owners(&answer, seed).ok_or_else(|| strange(&answer))?;
            let (mut places, mut masters, mut slots) = (Vec::new(), Vec::new(), Vec::new());
            for (slot, place) in owners {
                // A slot that nobody has is refused by whoever is asked.
                slots.resize(usize::from(slot) + 1, 0);
                let known = places.iter().position(|known| *known == place);
                slots[usize::from(slot)] = known.unwrap_or(places.len());
                if known.is_none() {
                    masters.push(address::connect(self, &place, config).await?);
                    places.push(place);
                }
            }
            return Ok(Bare { masters, slots });
        }
        Err(last)
    }

    /// The start of all keys and channels.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Every key that a name can have.
    pub fn keys_of(&self, name: &LockName) -> Vec<String> {
        let record = super::key(&self.prefix, name);
        SUFFIXES.iter().map(|suffix| format!("{record}{suffix}")).collect()
    }
}
