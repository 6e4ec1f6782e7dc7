//! Redis: one script per operation, a ticket queue in the server.
//!
//! The scripts do what the model says, on the server's clock; this side turns
//! claims into arguments and answers into standings. docs/engines/redis.md
//! tells the layout key by key.
//!
//! - `config`, `url`, `address`: where the servers are, from a URL or typed;
//! - `wire`: one connection to one server, re-made for ever;
//! - `route`, `cluster`: which server a name is asked for at;
//! - `batch`: requests that arrive together leave together;
//! - `scripts`: the scripts, put together from their files;
//! - `keys`, `words`: how names and claims are put to them;
//! - `push`: what scripts tell keepers;
//! - `reply`, `inspect`, `list`: reading answers;
//! - `fault`: what errors mean;
//! - `bare`: connections without locks, to measure beside.

mod address;
mod bare;
mod batch;
mod cluster;
mod config;
mod fault;
mod inspect;
mod keys;
mod list;
mod push;
mod reply;
mod route;
mod scripts;
mod url;
mod wire;
mod words;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::{Value, cmd};

pub use bare::Bare;
pub use config::{Confirm, Redis};

use super::{
    Belief, Cell, CellOp, Claim, Connect, Cursor, Engine, EngineInfo, Found, Grant, Holder, Intent,
    Keep, Kind, Page, Place, Release, Revoke, Seat, Standing, Status, TokenStrength,
};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Answer, Time};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::token::{ClaimId, KeeperId, Token};
use crate::url::parts::encode;
use batch::Verb;
use keys::key;
use reply::Reply;
use route::{Ask, Route, Weight};
use scripts::{SCRIPTS, Script};
use words::{Words, number, token_text};

/// The highest token a script can count to.
const MAX_TOKEN: u64 = (1 << 53) - 1;

/// An engine on Redis.
pub(super) struct RedisEngine {
    route: Arc<Route>,
    seat: Seat,
    info: EngineInfo,
    prefix: String,
    words: Words,
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
        Ok(RedisEngine { route, seat, info, prefix, words: Words::default() })
    }

    /// Runs a script on a name.
    async fn run(&self, script: &Script, name: &LockName, arguments: &[&str]) -> Result<Reply> {
        let key = key(&self.prefix, name);
        Reply::new(self.route.run(script, &key, arguments).await?.value)
    }

    /// Runs a script for a claim; returns its answer and the shard it came from.
    async fn ask(
        &self,
        verb: Verb,
        claim: &Claim,
        words: Arc<str>,
        argument: Option<String>,
        weight: Weight,
    ) -> Result<(Reply, u32)> {
        let (key, id) = (key(&self.prefix, &claim.name), claim.id.to_string());
        let ask = Ask { key, words, claim: id, argument };
        let answered = self.route.ask(verb, ask, weight).await?;
        if answered.confirmed {
            return Ok((Reply::new(answered.value)?, answered.shard));
        }
        // A grant that too few replicas have is given back. Its request was
        // answered, so nothing of it is under way.
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
            let nothing = ["0", "0", &nobody];
            // Whoever waits asks again anyway, so a failure only costs time.
            while let Ok(answered) = route.run(&SCRIPTS.release, &key, &nothing).await
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
        let weight = match keep.belief {
            Belief::Held { .. } => Weight::Plain,
            // Answered "held", this is what makes the guard.
            Belief::Queued { .. } => Weight::Firm,
        };
        let (words, number) = (self.words.renew(keep)?, number(keep.belief));
        let reply = self.ask(Verb::Renew, claim, words, Some(number), weight).await?;
        self.standing(claim, sent, reply)
    }
}

#[async_trait]
impl Engine for RedisEngine {
    fn info(&self) -> EngineInfo {
        self.info.clone()
    }

    async fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing> {
        let sent = self.seat.clock.now();
        let words = self.words.acquire(claim, intent, floor)?;
        let reply = self.ask(Verb::Acquire, claim, words, None, Weight::Firm).await?;
        self.standing(claim, sent, reply)
    }

    async fn renew(&self, batch: &[Keep]) -> Vec<Result<Standing>> {
        // One connection writes them out together: a pipeline in effect.
        join_all(batch.iter().map(|keep| self.renew_one(keep))).await
    }

    async fn release(&self, claim: &Claim, how: Release) -> Result<Found> {
        let words = self.words.release(how);
        let (reply, _) = self.ask(Verb::Release, claim, words, None, Weight::Plain).await?;
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
        let arguments = [&*id, &token, how, &encode(reason)];
        let reply = self.run(&SCRIPTS.revoke, name, &arguments).await?;
        if reply.has_more() {
            self.serve_on(name);
        }
        reply.found()
    }

    async fn inspect(&self, name: &LockName) -> Result<Status> {
        inspect::status(name, &self.run(&SCRIPTS.inspect, name, &[]).await?)
    }

    async fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page> {
        list::page(self, prefix, from, limit).await
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
                let arguments = ["set", &count.to_string(), &keep.as_micros().to_string(), &by.0];
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
        reply?.cell()
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
