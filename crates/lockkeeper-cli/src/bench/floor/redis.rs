//! Beside `redis:` stand SET NX PX with a compare-and-delete script, and
//! PUBLISH, on the client library's own multiplexed connection.

use std::collections::HashMap;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, FromRedisValue, PushInfo, PushKind, RedisError, Script, cmd};
use async_trait::async_trait;
use lockkeeper::bench::RedisBare;
use lockkeeper::{LockName, Redis};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Counters, Floor, Ring, Side, Words, broken};
use crate::bench::meter::Meter;
use crate::exit::Failure;

const LEASE_MS: u64 = 30_000;

/// Ends a lock only if it is still the caller's.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// Our own looks at the counters, and what replicas send.
const OTHERS: [&str; 3] = ["info", "replconf", "psync"];

/// What the release above runs inside; the server counts it like the rest.
const INSIDE_FLOOR: [&str; 2] = ["get", "del"];

/// What the engine's scripts run inside. The engine sends none of these itself.
const INSIDE_ENGINE: [&str; 25] = [
    "time",
    "get",
    "set",
    "del",
    "exists",
    "pexpire",
    "pttl",
    "publish",
    "spublish",
    "zadd",
    "zcard",
    "zrange",
    "zrangebyscore",
    "zrank",
    "zrem",
    "zscore",
    "hdel",
    "hexists",
    "hget",
    "hgetall",
    "hmget",
    "hset",
    "hsetnx",
    "hvals",
    "hlen",
];

pub(super) struct RedisFloor {
    url: String,
    redis: Redis,
    bare: RedisBare,
    release: Script,
}

impl RedisFloor {
    pub(super) async fn open(url: &str) -> Result<Self, Failure> {
        let redis = Redis::parse(url).map_err(Failure::connecting)?;
        let bare = redis.bare(&config()).await.map_err(Failure::connecting)?;
        Ok(RedisFloor { url: url.to_owned(), redis, bare, release: Script::new(RELEASE) })
    }

    async fn info(
        &self,
        master: &MultiplexedConnection,
        section: &str,
    ) -> Result<HashMap<String, String>, Failure> {
        let mut ask = cmd("INFO");
        ask.arg(section);
        let text: String = ask.query_async(&mut master.clone()).await.map_err(told)?;
        let line = |line: &str| {
            let (field, value) = line.trim_end().split_once(':')?;
            Some((field.to_owned(), value.to_owned()))
        };
        Ok(text.lines().filter_map(line).collect())
    }

    /// A key of our own in the slot of the name.
    fn key(&self, name: &str) -> Result<String, Failure> {
        let record = self.redis.keys_of(&LockName::new(name)?).swap_remove(0);
        Ok(format!("{record}:floor"))
    }
}

#[async_trait]
impl Floor for RedisFloor {
    fn url(&self) -> &str {
        &self.url
    }

    fn words(&self) -> Words {
        Words {
            pair: "SET NX PX, then a script that compares and deletes",
            hand_over: Some("PUBLISH, received by the next process"),
        }
    }

    fn counts_claims(&self) -> bool {
        true
    }

    async fn server(&self) -> Result<Option<String>, Failure> {
        let info = self.info(&self.bare.masters[0], "server").await?;
        Ok(info.get("redis_version").map(|version| format!("Redis {version}")))
    }

    async fn counters(&self, side: Side) -> Result<Option<Counters>, Failure> {
        let inside: &[&str] = match side {
            Side::Lockkeeper => &INSIDE_ENGINE,
            Side::Floor => &INSIDE_FLOOR,
        };
        let (mut commands, mut cpu) = (0, Duration::ZERO);
        for master in &self.bare.masters {
            let stats = self.info(master, "commandstats").await?;
            for (field, value) in &stats {
                let Some(command) = field.strip_prefix("cmdstat_") else { continue };
                if OTHERS.contains(&command) || inside.contains(&command) {
                    continue;
                }
                let calls = value.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
                commands += calls.and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0);
            }
            let used = self.info(master, "cpu").await?;
            for field in ["used_cpu_user", "used_cpu_sys"] {
                let seconds = used.get(field).and_then(|seconds| seconds.parse().ok());
                cpu += Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default();
            }
        }
        Ok(Some(Counters { commands, cpu: Some(cpu) }))
    }

    async fn pairs(&self, name: &str, meter: &mut Meter) -> Result<(), Failure> {
        let key = self.key(name)?;
        let mut server = self.bare.having(&key).clone();
        let mut number = 0_u64;
        while meter.runs() {
            // As unique as a claim's id.
            let owner = format!("{name}-{number}");
            let mut set = cmd("SET");
            set.arg(&key).arg(&owner).arg("NX").arg("PX").arg(LEASE_MS);
            let got: Option<String> = set.query_async(&mut server).await.map_err(told)?;
            let mut release = self.release.prepare_invoke();
            release.key(&key).arg(&owner);
            let released: u64 = release.invoke_async(&mut server).await.map_err(told)?;
            if got.is_none() || released != 1 {
                return Err(broken(format!("somebody else uses the key {key}")));
            }
            meter.tick();
            number += 1;
        }
        Ok(())
    }

    async fn sit(&self, ring: &str, seat: usize) -> Result<Option<Box<dyn Ring>>, Failure> {
        let (pushed, messages) = unbounded_channel();
        let config = config().set_push_sender(move |push: PushInfo| {
            let is_message = matches!(push.kind, PushKind::Message | PushKind::SMessage);
            let text = push.data.get(1).map(String::from_redis_value_ref);
            match text {
                Some(Ok(text)) if is_message => pushed.send(text).map_err(drop),
                _ => Ok::<(), ()>(()),
            }
        });
        let bare = self.redis.bare(&config).await.map_err(Failure::connecting)?;
        // One slot for the whole ring; under our prefix, as users may be limited to it.
        let channel = format!("{}{{{ring}}}:ring:", self.redis.prefix());
        let (subscribe, publish) = match bare.is_cluster() {
            true => ("SSUBSCRIBE", "SPUBLISH"),
            false => ("SUBSCRIBE", "PUBLISH"),
        };
        let mut server = bare.having(&channel).clone();
        let mut command = cmd(subscribe);
        command.arg(format!("{channel}{seat}"));
        command.exec_async(&mut server).await.map_err(told)?;
        Ok(Some(Box::new(Seat { server, channel, publish, messages })))
    }

    async fn clean(&self, names: &[String]) -> Result<(), Failure> {
        for name in names {
            let mut keys = self.redis.keys_of(&LockName::new(name)?);
            keys.push(self.key(name)?);
            let mut unlink = cmd("UNLINK");
            unlink.arg(&keys);
            let mut server = self.bare.having(&keys[0]).clone();
            unlink.exec_async(&mut server).await.map_err(told)?;
        }
        Ok(())
    }
}

struct Seat {
    server: MultiplexedConnection,
    channel: String,
    publish: &'static str,
    messages: UnboundedReceiver<String>,
}

#[async_trait]
impl Ring for Seat {
    async fn pass(&mut self, to: usize, what: &str) -> Result<(), Failure> {
        let mut publish = cmd(self.publish);
        publish.arg(format!("{}{to}", self.channel)).arg(what);
        publish.exec_async(&mut self.server).await.map_err(told)
    }

    async fn receive(&mut self) -> Result<String, Failure> {
        let gone = || broken("the connection of a waiter is gone");
        self.messages.recv().await.ok_or_else(gone)
    }
}

/// Without limits per command: those of lockkeeper are its own.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(None)
}

fn told(error: RedisError) -> Failure {
    broken(error.to_string())
}
