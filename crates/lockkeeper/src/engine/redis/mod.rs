//! Redis: one script per operation, a ticket queue in the server.
//!
//! The scripts do what the model says, on the server's clock; this side turns
//! claims into arguments and answers into standings. docs/engines/redis.md
//! tells the layout key by key.
//!
//! - `config`, `address`: where the servers are, from a URL or typed;
//! - `wire`: one connection to one server, re-made for ever;
//! - `route`, `cluster`: which server a name is asked for at;
//! - `scripts`: the scripts, put together from their files;
//! - `push`: what scripts tell keepers;
//! - `reply`, `inspect`: reading answers;
//! - `fault`: what errors mean;
//! - `bare`: connections without locks, to measure beside.

mod address;
mod bare;
mod cluster;
mod config;
mod fault;
mod inspect;
mod push;
mod reply;
mod route;
mod scripts;
mod wire;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::{FromRedisValue, Value, cmd};

pub use bare::Bare;
pub use config::{Confirm, Redis};

use super::{
    About, Belief, Cell, CellOp, Claim, Connect, Cursor, Engine, EngineInfo, Found, Grant, Holder,
    Intent, Keep, Kind, Mode, Page, Place, Release, Revoke, Seat, Standing, Status, TokenStrength,
};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Answer, Refusal, Time};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::token::{ClaimId, KeeperId, Token};
use crate::url::parts::encode;
use reply::Reply;
use route::{Route, Weight};
use scripts::{SCRIPTS, Script};

/// The highest token a script can count to.
const MAX_TOKEN: u64 = (1 << 53) - 1;
/// How many names one page of a listing looks at at most.
const LOOKS: usize = 2048;

/// An engine on Redis.
pub(super) struct RedisEngine {
    route: Arc<Route>,
    seat: Seat,
    info: EngineInfo,
    prefix: String,
}

impl RedisEngine {
    pub(super) async fn open(redis: Redis, seat: Seat) -> Result<Self> {
        let mut caveat = "a failover may forget the latest grants, and a lost disk all of them; \
                          tokens then still grow, by the server's clock"
            .to_owned();
        let (label, prefix) = (redis.label(), redis.prefix.clone());
        let route = Arc::new(Route::open(redis, seat.clone()).await?);
        if let Some(policy) = evicting(&route).await? {
            tracing::warn!(engine = %label, %policy, "the server may evict locks; use noeviction");
            caveat.push_str(&format!("; its eviction policy {policy} may drop locks"));
        }
        let info = EngineInfo {
            engine: "redis".into(),
            label,
            ordered: true,
            polled: false,
            tokens: TokenStrength::Clocked,
            caveat: caveat.into(),
            kinds: vec![Kind::Mutex, Kind::ReadWrite, Kind::Semaphore, Kind::Latch, Kind::Fence],
            min_lease: LockOptions::MIN_LEASE,
            lingers: true,
        };
        Ok(RedisEngine { route, seat, info, prefix })
    }

    /// Runs a script on a name; returns its answer and the shard it came from.
    async fn run(
        &self,
        script: &Script,
        name: &LockName,
        arguments: &[&str],
    ) -> Result<(Reply, u32)> {
        let key = key(&self.prefix, name);
        let answered = self.route.run(script, &key, arguments, Weight::Plain).await?;
        Ok((Reply::new(answered.value)?, answered.shard))
    }

    /// Runs a script that makes a guard. A grant that too few replicas confirm
    /// is given back.
    async fn run_firm(
        &self,
        script: &Script,
        claim: &Claim,
        arguments: &[&str],
    ) -> Result<(Reply, u32)> {
        let key = key(&self.prefix, &claim.name);
        let answered = self.route.run(script, &key, arguments, Weight::Firm).await?;
        if answered.confirmed {
            return Ok((Reply::new(answered.value)?, answered.shard));
        }
        // Its request was answered, so nothing of it is under way.
        let give_back = Release { linger: Duration::ZERO, unsure: false };
        self.release(claim, give_back).await?;
        let text = "too few replicas confirmed the grant in time, so it was given back";
        Err(Error::new(ErrorKind::Unreachable, text))
    }

    /// Goes on serving a queue that was too long for one call.
    fn serve_on(&self, name: &LockName) {
        let (route, key) = (self.route.clone(), key(&self.prefix, name));
        tokio::spawn(async move {
            let nobody = ClaimId { keeper: KeeperId::from_number(0), number: 0, turn: 0 };
            let nobody = nobody.to_string();
            let nothing = [&*nobody, "0", "0"];
            // Whoever waits asks again anyway, so a failure only costs time.
            while let Ok(answered) =
                route.run(&SCRIPTS.release, &key, &nothing, Weight::Plain).await
                && Reply::new(answered.value).is_ok_and(|reply| reply.has_more())
            {}
        });
    }

    fn standing(
        &self,
        claim: &Claim,
        sent: Moment,
        (reply, shard): (Reply, u32),
    ) -> Result<Standing> {
        let (answer, more) = reply.answer()?;
        if more {
            self.serve_on(&claim.name);
        }
        Ok(match answer {
            Answer::Held { token } => Standing::Held(Grant::leased(claim, sent, token, shard)),
            Answer::Queued { ticket, ahead, look_at } => {
                let mut place = Place::ticketed(claim, sent, ticket, ahead, shard);
                if let Some(Time(micros)) = look_at {
                    let soon = Duration::from_micros(micros).max(Duration::from_millis(1));
                    place.renew_at = place.renew_at.min(self.seat.clock.now() + soon);
                }
                Standing::Queued(place)
            }
            Answer::Busy => Standing::Busy,
            Answer::Gone(cause) => Standing::Gone(cause),
        })
    }

    async fn renew_one(&self, keep: &Keep) -> Result<Standing> {
        let sent = self.seat.clock.now();
        let claim = &keep.claim;
        let (believed, what) = match keep.belief {
            Belief::Held { token } => ("h", token_text(token)),
            Belief::Queued { ticket } => ("q", ticket.to_string()),
        };
        let floor = floor_text(keep.floor)?;
        let (id, lease) = (claim.id.to_string(), micros(claim.lease));
        let arguments = [&*id, believed, &what, &lease, &floor];
        let reply = match keep.belief {
            Belief::Held { .. } => self.run(&SCRIPTS.renew, &claim.name, &arguments).await?,
            // Answered "held", this is what makes the guard.
            Belief::Queued { .. } => self.run_firm(&SCRIPTS.renew, claim, &arguments).await?,
        };
        self.standing(claim, sent, reply)
    }

    /// The names from `from` on that have a record, in order, and whether
    /// there are more than one page looks at.
    async fn names(&self, prefix: &str, from: Option<&str>) -> Result<(Vec<LockName>, bool)> {
        let pattern = format!("{}{{{}*}}", glob(&self.prefix), glob(&escaped(prefix.as_bytes())));
        let mut names = BTreeSet::new();
        let (mut server, mut cursor, mut more) = (0, 0_u64, false);
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
            let Some(value) = self.route.send_to(server, &scan).await? else {
                return Ok((names.into_iter().collect(), more));
            };
            let (next, keys) = <(u64, Vec<String>)>::from_redis_value(value)
                .map_err(|error| Error::new(ErrorKind::Unexpected, error.to_string()))?;
            let found = keys.iter().filter_map(|key| name_of(&self.prefix, key));
            names.extend(found.filter(|name| from.is_none_or(|from| name.as_str() > from)));
            while names.len() > LOOKS {
                names.pop_last();
                more = true;
            }
            cursor = next;
            if cursor == 0 {
                server += 1;
            }
        }
    }
}

#[async_trait]
impl Engine for RedisEngine {
    fn info(&self) -> EngineInfo {
        self.info.clone()
    }

    async fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing> {
        let sent = self.seat.clock.now();
        let (mode, count, of) = match claim.mode {
            Mode::Exclusive => ("x", 0, 0),
            Mode::Write => ("w", 0, 0),
            Mode::Read => ("r", 0, 0),
            Mode::Permits { count, of } => ("p", count, of),
        };
        let intent = match intent {
            Intent::Try => "t",
            Intent::Watch => "w",
            Intent::Queue => "q",
        };
        let arguments = [
            &*claim.id.to_string(),
            mode,
            &count.to_string(),
            &of.to_string(),
            &micros(claim.lease),
            &micros(claim.lock_delay),
            &claim.max_waiters.to_string(),
            &claim.under.map_or_else(|| "-".to_owned(), |under| under.to_string()),
            &about(&claim.about),
            intent,
            &floor_text(floor)?,
        ];
        let reply = self.run_firm(&SCRIPTS.acquire, claim, &arguments).await?;
        self.standing(claim, sent, reply)
    }

    async fn renew(&self, batch: &[Keep]) -> Vec<Result<Standing>> {
        // One connection writes them out together: a pipeline in effect.
        join_all(batch.iter().map(|keep| self.renew_one(keep))).await
    }

    async fn release(&self, claim: &Claim, how: Release) -> Result<Found> {
        let unsure = if how.unsure { "1" } else { "0" };
        let (id, linger) = (claim.id.to_string(), micros(how.linger));
        let (reply, _) = self.run(&SCRIPTS.release, &claim.name, &[&id, &linger, unsure]).await?;
        if reply.has_more() {
            self.serve_on(&claim.name);
        }
        reply.found()
    }

    async fn revoke(
        &self,
        name: &LockName,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Result<Found> {
        let how = match how {
            Revoke::Orderly => "o",
            Revoke::Now => "n",
        };
        let (id, token) = (victim.claim.to_string(), token_text(victim.token));
        let (reply, _) =
            self.run(&SCRIPTS.revoke, name, &[&id, &token, how, &encode(reason)]).await?;
        if reply.has_more() {
            self.serve_on(name);
        }
        reply.found()
    }

    async fn inspect(&self, name: &LockName) -> Result<Status> {
        inspect::status(name, &self.run(&SCRIPTS.inspect, name, &[]).await?.0)
    }

    async fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page> {
        let from = from.map(|Cursor(from)| from);
        let (names, more) = self.names(prefix, from.as_deref()).await?;
        let mut entries = Vec::new();
        for batch in names.chunks(256) {
            let looks = join_all(batch.iter().map(|name| self.inspect(name))).await;
            for (name, status) in batch.iter().zip(looks) {
                let status = status?;
                if !status.is_in_use() {
                    continue;
                }
                if entries.len() == limit {
                    let last = entries.last().map(|last: &Status| last.name.clone());
                    let last = last.unwrap_or_else(|| name.clone());
                    return Ok(Page { entries, next: Some(Cursor(last.into())) });
                }
                entries.push(status);
            }
        }
        let next = names.last().filter(|_| more).map(|last| Cursor(last.clone().into()));
        Ok(Page { entries, next })
    }

    async fn cell(&self, name: &LockName, op: CellOp) -> Result<Cell> {
        let keeper = self.seat.keeper.to_string();
        let reply = match &op {
            CellOp::Look { kind, watch } => {
                let kind = match kind {
                    Kind::Mutex => "m",
                    Kind::ReadWrite => "r",
                    Kind::Semaphore => "s",
                    Kind::Latch => "l",
                    Kind::Fence => "f",
                };
                let keeper = if *watch { &*keeper } else { "-" };
                self.run(&SCRIPTS.cell, name, &["look", kind, keeper]).await
            }
            CellOp::SetLatch { count, keep, by } => {
                let arguments = ["set", &count.to_string(), &micros(*keep), &by.0];
                self.run(&SCRIPTS.cell, name, &arguments).await
            }
            CellOp::CountDown { by } => self.run(&SCRIPTS.cell, name, &["count", &by.0]).await,
            CellOp::RemoveLatch => self.run(&SCRIPTS.cell, name, &["remove"]).await,
            CellOp::SetCapacity { to } => {
                self.run(&SCRIPTS.cell, name, &["capacity", &to.to_string()]).await
            }
            CellOp::Fence { token } => {
                let digits = format!("{:020}", token.get());
                self.run(&SCRIPTS.cell, name, &["fence", &digits]).await
            }
        };
        reply?.0.cell()
    }

    async fn close(&self, _by: Moment) -> Result<()> {
        self.route.close();
        Ok(())
    }
}

impl fmt::Debug for RedisEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisEngine").field(&self.info.label).finish()
    }
}

/// The policy by which a server drops keys when memory ends, if it may.
async fn evicting(route: &Route) -> Result<Option<String>> {
    let mut info = cmd("INFO");
    info.arg("memory");
    let values = match route.send_all(&info).await {
        Ok(values) => values,
        // Whoever may not look is not warned.
        Err(error) if error.kind() == ErrorKind::Invalid => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(values.iter().find_map(policy))
}

fn policy(info: &Value) -> Option<String> {
    let Value::VerbatimString { text, .. } = info else { return None };
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    let policy = field("maxmemory_policy");
    let bounded = field("maxmemory") != "0";
    (bounded && !policy.is_empty() && policy != "noeviction").then_some(policy)
}

/// The key of a name's record. Its braces are the cluster's hash tag.
fn key(prefix: &str, name: &LockName) -> String {
    format!("{prefix}{{{}}}", escaped(name.as_str().as_bytes()))
}

/// The name behind the key of a record.
fn name_of(prefix: &str, key: &str) -> Option<LockName> {
    let name = key.strip_prefix(prefix)?.strip_prefix('{')?.strip_suffix('}')?;
    LockName::unescape(name).ok()
}

/// A name, or the start of one, as keys have it.
fn escaped(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_graphic() && !b"%{}".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// A text that matches itself in a pattern of SCAN.
fn glob(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn micros(span: Duration) -> String {
    span.as_micros().to_string()
}

fn token_text(token: Option<Token>) -> String {
    token.map_or_else(|| "-".to_owned(), |token| token.to_string())
}

fn floor_text(floor: Token) -> Result<String> {
    if floor.get() > MAX_TOKEN {
        return Err(Refusal::NoTokensLeft.into());
    }
    Ok(floor.to_string())
}

/// Whom to show, in printable words.
fn about(about: &About) -> String {
    let About { who, host, pid, note } = about;
    format!("{} {} {pid} {}", encode(who), encode(host), encode(note))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_injective_and_keep_one_hash_tag() {
        for name in ["orders/42", "a b", "{a}", "}", "%7B", "é", "a:q", "*?[", "\0"] {
            let name = LockName::new(name).unwrap();
            let key = key("lk:", &name);
            assert_eq!(key.matches(['{', '}']).count(), 2, "{key}");
            assert_eq!(name_of("lk:", &key), Some(name));
        }
        assert_eq!(key("lk:", &LockName::new("orders/42").unwrap()), "lk:{orders/42}");
        assert_eq!(name_of("lk:", "lk:{a}:q"), None);
    }

    #[test]
    fn people_read_back() {
        let who = About {
            who: "a b".to_owned(),
            host: String::new(),
            pid: 7,
            note: "100 % é".to_owned(),
        };
        assert_eq!(*reply::about(&about(&who)), who);
    }
}
