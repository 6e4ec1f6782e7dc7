//! A cluster: which node has which slot, and a wire to each.
//!
//! Nothing is retried that may have been carried out: a node that answers
//! "moved" or "ask" has done nothing, so only then the request goes elsewhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, RedisError, Value, cmd};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::config::{Confirm, Place, Redis};
use super::fault::told;
use super::push;
use super::reply::strange;
use super::route::{Answered, Call, Weight};
use super::scripts::Script;
use super::url::tcp;
use super::wire::{Target, Wire};
use crate::engine::{Event, Seat};
use crate::error::{Error, ErrorKind, Result};

const SLOTS: u16 = 16384;
/// How often a request follows a slot that moves.
const HOPS: usize = 5;
/// The shortest time between two looks at the map.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest time between two looks at the map.
const ROUND: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Cluster {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    redis: Redis,
    seat: Seat,
    seeds: Vec<Place>,
    map: Mutex<Map>,
    /// Held while a wire is made, so that there is one per node.
    making: tokio::sync::Mutex<()>,
    news: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Map {
    /// The master of each slot.
    owners: BTreeMap<u16, Place>,
    wires: HashMap<Place, Arc<Wire>>,
    /// A number for every node ever seen.
    shards: HashMap<Place, u32>,
}

impl Cluster {
    pub(super) async fn open(redis: Redis, seat: Seat, seeds: Vec<Place>) -> Result<Self> {
        let shared = Arc::new(Shared {
            redis,
            seat,
            seeds,
            map: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            news: Arc::new(Notify::new()),
        });
        shared.look().await?;
        let task = tokio::spawn(shared.clone().watch()).abort_handle();
        let cluster = Cluster { shared, task };
        // A node that cannot be used at all is told now, not at the first lock.
        for place in cluster.shared.masters() {
            cluster.shared.wire(&place).await?;
        }
        Ok(cluster)
    }

    /// Runs a script on the name behind `key`, wherever its slot is.
    pub(super) async fn run(
        &self,
        script: &Script,
        key: &str,
        arguments: &[&str],
        weight: Weight,
    ) -> Result<Answered> {
        let shared = &self.shared;
        let slot = slot(key.as_bytes());
        let channels = push::slot_channels(&shared.redis.prefix, &TAGS[usize::from(slot)]);
        let channel = push::channel(&channels, shared.seat.keeper);
        // All keys are named here, so that a slot that is half moved is
        // refused instead of read in part.
        let keys: Vec<String> = SUFFIXES.iter().map(|suffix| format!("{key}{suffix}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let call = Call { script, keys, channels: &channels, arguments: arguments.to_vec() };
        let mut place = shared.owner(slot)?;
        for _ in 0..HOPS {
            let wire = shared.wire(&place).await?;
            // Where nobody answers, the map may know better soon.
            let silent = |_: &Error| shared.news.notify_one();
            let error = match wire.subscribe(&channel).await.inspect_err(silent)? {
                Ok(()) => match call.run(&wire, weight).await.inspect_err(silent)? {
                    Ok((value, confirmed)) => {
                        return Ok(Answered { value, shard: wire.shard(), confirmed });
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let Some((next, asks)) = redirected(&error, &place) else {
                shared.news.notify_one();
                return Err(wire.judge(error, key));
            };
            if asks {
                let answer = shared.wire(&next).await?.send_asking(&call.by_hash()).await?;
                let value = answer.map_err(|error| asked(error, key))?;
                // Not where replicas could be asked: a grant is given back.
                let confirmed = weight == Weight::Plain || shared.redis.confirm == Confirm::None;
                return Ok(Answered { value, shard: wire.shard(), confirmed });
            }
            shared.moved(slot, next.clone());
            place = next;
        }
        Err(Error::new(ErrorKind::Unreachable, "the slot of this name keeps moving"))
    }

    pub(super) async fn send_all(&self, command: &Cmd) -> Result<Vec<Value>> {
        let mut values = Vec::new();
        for place in self.shared.masters() {
            let wire = self.shared.wire(&place).await?;
            let value = wire.send(command).await?;
            values.push(value.map_err(|error| wire.judge(error, ""))?);
        }
        Ok(values)
    }

    pub(super) async fn send_to(&self, index: usize, command: &Cmd) -> Result<Option<Value>> {
        let Some(place) = self.shared.masters().into_iter().nth(index) else { return Ok(None) };
        let wire = self.shared.wire(&place).await?;
        let value = wire.send(command).await?;
        value.map(Some).map_err(|error| wire.judge(error, ""))
    }

    pub(super) fn close(&self) {
        self.task.abort();
        for wire in self.shared.map().wires.values() {
            wire.close();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owner(&self, slot: u16) -> Result<Place> {
        self.map().owners.get(&slot).cloned().ok_or_else(|| {
            self.news.notify_one();
            Error::new(ErrorKind::Unreachable, "no node of the cluster has this name's slot")
        })
    }

    /// The masters, in a stable order.
    fn masters(&self) -> BTreeSet<Place> {
        self.map().owners.values().cloned().collect()
    }

    fn moved(&self, slot: u16, to: Place) {
        self.map().owners.insert(slot, to);
        self.news.notify_one();
    }

    /// The wire to a node; made if there is none.
    async fn wire(&self, place: &Place) -> Result<Arc<Wire>> {
        if let Some(wire) = self.map().wires.get(place) {
            return Ok(wire.clone());
        }
        let _making = self.making.lock().await;
        let shard = {
            let mut map = self.map();
            if let Some(wire) = map.wires.get(place) {
                return Ok(wire.clone());
            }
            let next = u32::try_from(map.shards.len()).unwrap_or(u32::MAX);
            *map.shards.entry(place.clone()).or_insert(next)
        };
        let target = Target::Node { place: place.clone(), news: self.news.clone() };
        let opened = Wire::open(self.redis.clone(), self.seat.clone(), target, shard).await;
        let wire = Arc::new(opened.inspect_err(|_| self.news.notify_one())?);
        self.map().wires.insert(place.clone(), wire.clone());
        Ok(wire)
    }

    /// Keeps the map true.
    async fn watch(self: Arc<Self>) {
        loop {
            let _ = tokio::time::timeout(ROUND, self.news.notified()).await;
            while let Err(error) = self.look().await {
                tracing::debug!(%error, "no map of the cluster");
                tokio::time::sleep(PAUSE).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Asks the nodes, one after the other, for the map.
    async fn look(&self) -> Result<()> {
        let known: Vec<Place> = self.map().wires.keys().cloned().collect();
        let mut last = Error::new(ErrorKind::Unreachable, "no node of the cluster answers");
        for place in known.iter().chain(&self.seeds) {
            match self.look_at(place).await {
                Ok(owners) => {
                    self.apply(owners);
                    return Ok(());
                }
                // A mistake is worth more than the next node's silence.
                Err(error) if last.is_silence() => last = error,
                Err(_) => {}
            }
        }
        Err(last)
    }

    async fn look_at(&self, place: &Place) -> Result<BTreeMap<u16, Place>> {
        let wire = self.wire(place).await?;
        let mut ask = cmd("CLUSTER");
        ask.arg("SLOTS");
        let answer = wire.send(&ask).await?.map_err(|error| told(error, ""))?;
        owners(&answer, place).ok_or_else(|| strange(&answer))
    }

    fn apply(&self, owners: BTreeMap<u16, Place>) {
        let mut map = self.map();
        let before: BTreeSet<&Place> = map.owners.values().collect();
        let after: BTreeSet<&Place> = owners.values().collect();
        // Claims of a node that lost slots are asked for anew at once; their
        // answers tell where they are now.
        let changed = map.owners.iter().filter(|(slot, place)| owners.get(slot) != Some(place));
        let changed: BTreeSet<Place> = changed.map(|(_, place)| place.clone()).collect();
        let gone: Vec<Place> = before.difference(&after).map(|&place| place.clone()).collect();
        let shards: Vec<u32> =
            changed.iter().filter_map(|place| map.shards.get(place).copied()).collect();
        let keep: BTreeSet<Place> = after.into_iter().cloned().collect();
        let dropped: Vec<Arc<Wire>> = map
            .wires
            .extract_if(|place, _| !keep.contains(place) && gone.contains(place))
            .map(|(_, wire)| wire)
            .collect();
        map.owners = owners;
        drop(map);
        // Not under the lock: dropping a wire ends its task.
        drop(dropped);
        for shard in shards {
            self.seat.events.push(Event::Link { shard, up: true });
        }
    }
}

/// The record and all keys beside it.
pub(super) const SUFFIXES: [&str; 12] =
    ["", ":q", ":e", ":t", ":l", ":h", ":x", ":y", ":w", ":v", ":d", ":c"];

/// Where an error sends a request, and whether only this once.
fn redirected(error: &RedisError, from: &Place) -> Option<(Place, bool)> {
    let (address, _) = error.redirect_node()?;
    // Node addresses are written host:port, also where the host has colons.
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let place = match host {
        "" => at_port(from, port)?,
        host => Place::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port },
    };
    Some((place, error.code() == Some("ASK")))
}

/// Another port of the same host.
fn at_port(place: &Place, port: u16) -> Option<Place> {
    match place {
        Place::Tcp { host, .. } => Some(Place::Tcp { host: host.clone(), port }),
        Place::Unix(_) => None,
    }
}

/// The error of a request that a node was asked to carry out for another.
fn asked(error: RedisError, key: &str) -> Error {
    let half_moved = error.to_string().contains("TRYAGAIN") || error.is_cluster_error();
    let within = error.clone().into_server_errors().unwrap_or_default();
    let known = within.iter().any(|(_, error)| ["TRYAGAIN", "MOVED"].contains(&error.code()));
    if half_moved || known {
        return Error::new(ErrorKind::Unreachable, "the slot of this name is moving");
    }
    told(error, key)
}

/// The master of every slot, from the answer of CLUSTER SLOTS.
pub(super) fn owners(answer: &Value, asked: &Place) -> Option<BTreeMap<u16, Place>> {
    let Value::Array(ranges) = answer else { return None };
    let mut owners = BTreeMap::new();
    for range in ranges {
        let Value::Array(range) = range else { return None };
        let (Some(Value::Int(start)), Some(Value::Int(end)), Some(Value::Array(master))) =
            (range.first(), range.get(1), range.get(2))
        else {
            return None;
        };
        let Some(Value::Int(port)) = master.get(1) else { return None };
        let port = u16::try_from(*port).ok()?;
        let place = match master.first() {
            Some(Value::BulkString(host)) if !host.is_empty() && host != b"?" => {
                let host = String::from_utf8_lossy(host);
                tcp(&format!("[{host}]:{port}"), port).ok()?
            }
            _ => at_port(asked, port)?,
        };
        for slot in u16::try_from(*start).ok()?..=u16::try_from(*end).ok()? {
            owners.insert(slot, place.clone());
        }
    }
    Some(owners)
}

/// The slot of a key: of its hash tag, if it has one.
pub(super) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |mut crc, &byte| {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
        crc
    })
}

/// A short text for every slot that hashes to it: the tag of its channels.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut tags = vec![String::new(); usize::from(SLOTS)];
    let mut missing = tags.len();
    for number in 0_u32.. {
        let text = format!("{number:x}");
        let tag = &mut tags[usize::from(crc16(text.as_bytes()) % SLOTS)];
        if tag.is_empty() {
            *tag = text;
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    tags
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_servers() {
        // CLUSTER KEYSLOT of Redis 7.0.15.
        assert_eq!(slot(b"123456789"), 12739);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"lk:{foo}:q"), 12182);
        assert_eq!(slot(b"{}foo"), crc16(b"{}foo") % SLOTS);
    }

    #[test]
    fn every_slot_has_a_tag() {
        for (number, tag) in TAGS.iter().enumerate() {
            let channel = push::slot_channels("lk:", tag);
            assert_eq!(usize::from(slot(channel.as_bytes())), number, "{channel}");
        }
    }
}
