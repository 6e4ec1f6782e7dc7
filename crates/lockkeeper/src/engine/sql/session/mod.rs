//! Row locks: a lock is an open transaction that has a row locked, on a
//! connection of its own. The database frees it when that connection ends.
//!
//! - `words`: the statements;
//! - `control`: the one connection beside, for tokens, notes and ending sessions;
//! - `task`: one claim and its session, waiting, holding, letting go;
//! - `look`: who holds what, and taking it from them.
//!
//! The server ends a session that stands still for the length of its lease,
//! counted from the last heartbeat it got; the guard counts from before that
//! heartbeat was sent, and so ends first. Nothing but an answered heartbeat,
//! sent after the row was locked, makes or extends a grant.

mod control;
mod look;
mod task;
mod words;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};

use super::config::Sql;
use super::fault::{Class, Fault, Stage};
use super::schema::{LEASE_TABLE, other_strategy};
use super::wire::Wire;
use crate::cause::Cause;
use crate::clock::Moment;
use crate::engine::{
    BEAT, Belief, Cell, CellOp, Claim, Cursor, Engine, EngineInfo, Found, Holder, Intent, Keep,
    Kind, Page, Place, REMEMBER, Release, Revoke, Seat, Standing, Status, TICKET, TokenStrength,
};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::name::LockName;
use crate::token::{ClaimId, Token};
use control::{Control, unclear};
use task::{Order, Over, Stand, Task};
use words::{Tongue, Words};

/// How many sessions that nobody uses are kept for the next claim.
const SPARES: usize = 4;
/// How long they are kept.
const SPARE_TIME: Duration = Duration::from_secs(20);
/// How often the control session looks for broken grants.
const LOOK: Duration = Duration::from_millis(500);
/// How often it looks for dead sessions too, where the driver does not notice
/// the end of a connection by itself.
const WATCH: Duration = Duration::from_millis(100);

/// Opens the engine.
pub(super) async fn open(sql: Sql, seat: Seat) -> Result<Arc<dyn Engine>> {
    let at_open = |fault: Fault| fault.at(Stage::Open);
    let wire = Wire::open(&sql).await.map_err(at_open)?;
    let tongue = tongue(&sql, &wire).await.map_err(at_open)?;
    let words = Words::new(&sql, tongue);
    make_tables(&sql, &wire, &words).await?;
    let shared = Arc::new(Shared {
        info: info(&sql, tongue),
        control: Control::new(sql.clone(), words, wire),
        sql,
        seat,
        desk: Mutex::default(),
    });
    shared.refuse_pooler().await?;
    tokio::spawn(watch_over(Arc::downgrade(&shared)));
    Ok(Arc::new(SessionEngine(shared)))
}

/// The statements that make the tables, for people who run them by hand.
pub(super) fn schema(sql: &Sql) -> String {
    let tongue = match sql.dialect.scheme() {
        "postgres" => Tongue::Postgres,
        _ => Tongue::MariaDb,
    };
    let mut text = match &sql.schema {
        Some(schema) => {
            format!("CREATE SCHEMA IF NOT EXISTS {};\n\n", sql.dialect.quote(schema))
        }
        None => String::new(),
    };
    for statement in Words::new(sql, tongue).tables() {
        text.push_str(&statement);
        text.push_str(";\n");
    }
    text
}

async fn tongue(sql: &Sql, wire: &Wire) -> Result<Tongue, Fault> {
    if sql.dialect.scheme() == "postgres" {
        return Ok(Tongue::Postgres);
    }
    let tables = wire.ask("SELECT VERSION()", sql.command).await?;
    let row = tables.first().and_then(|table| table.rows.first()).ok_or_else(unclear)?;
    Ok(if row.text(0)?.contains("MariaDB") { Tongue::MariaDb } else { Tongue::MySql })
}

/// Makes sure that the tables are there, and ours.
async fn make_tables(sql: &Sql, wire: &Wire, words: &Words) -> Result<()> {
    let at_open = |fault: Fault| fault.at(Stage::Open);
    let shape = words.shape();
    match wire.ask(shape.clone(), sql.command).await {
        Ok(_) => return Ok(()),
        Err(fault) if fault.class == Class::NoTable => {}
        Err(fault) => return Err(not_ours(sql, fault)),
    }
    let other = sql.dialect.has_table(sql, LEASE_TABLE);
    let other = wire.ask(other, sql.command).await.map_err(at_open)?;
    if other.last().is_some_and(|table| !table.rows.is_empty()) {
        return Err(other_strategy(sql));
    }
    let end = sql.dialect.end_making(sql);
    let script = format!("{}{}; {end}", sql.dialect.begin_making(sql), words.tables().join("; "));
    let made = wire.ask(script, sql.command.max(Duration::from_secs(15))).await;
    if let Err(fault) = made {
        if fault.leaves_connection() {
            let _ = wire.ask(format!("ROLLBACK; {end}"), sql.command).await;
        }
        if fault.class == Class::Forbidden {
            let text = format!(
                "the tables are missing and this user may not make them; let somebody run what \
                 `lockkeeper schema` prints:\n{}",
                schema(sql)
            );
            return Err(invalid(text).because(fault.at(Stage::Open)));
        }
        // Somebody else may have been quicker.
        if fault.class != Class::Conflict {
            return Err(at_open(fault));
        }
    }
    wire.ask(shape, sql.command).await.map(drop).map_err(|fault| not_ours(sql, fault))
}

/// The error of tables that are not as we make them.
fn not_ours(sql: &Sql, fault: Fault) -> Error {
    match fault.class {
        Class::Refused(ErrorKind::Invalid | ErrorKind::Unexpected) => invalid(format!(
            "a table whose name starts with {} is not one of Lockkeeper's; choose another prefix=",
            sql.prefix
        ))
        .because(fault.at(Stage::Open)),
        _ => fault.at(Stage::Open),
    }
}

fn info(sql: &Sql, tongue: Tongue) -> EngineInfo {
    use crate::engine::Connect;
    EngineInfo {
        engine: sql.dialect.scheme().into(),
        label: sql.label(),
        ordered: false,
        polled: false,
        tokens: TokenStrength::Durable,
        caveat: "a lock is an open transaction: who ends its session by hand (KILL, \
                 pg_terminate_backend) or cuts it off frees the name, and the holder is told at \
                 once; a failover to a replica frees every name"
            .into(),
        kinds: vec![Kind::Mutex, Kind::ReadWrite],
        // MySQL and MariaDB count in whole seconds.
        min_lease: match tongue {
            Tongue::Postgres => Duration::from_millis(500),
            _ => Duration::from_secs(1),
        },
        lingers: true,
    }
}

/// What the engine and the tasks of its claims share.
pub(super) struct Shared {
    sql: Sql,
    seat: Seat,
    info: EngineInfo,
    control: Control,
    desk: Mutex<Desk>,
}

#[derive(Default)]
struct Desk {
    posts: HashMap<ClaimId, Post>,
    /// Claims that are over: why, and since when.
    finished: HashMap<ClaimId, (Cause, Moment)>,
    /// Which shards are in use; a shard is a session.
    shards: Vec<bool>,
    spares: Vec<(Wire, Moment)>,
}

/// The way to the task of a claim.
#[derive(Clone)]
struct Post {
    /// The claim whose task it is; another one's for whoever stepped down.
    main: ClaimId,
    orders: mpsc::UnboundedSender<Order>,
    stand: watch::Receiver<Stand>,
    session: watch::Receiver<u64>,
    shard: u32,
    /// When the keeper last said that it still waits.
    asked: Moment,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a session that can wait and hold.
    async fn open_session(&self) -> Result<Wire, Fault> {
        let wire = Wire::open(&self.sql).await?;
        wire.ask(self.control.words.prepare(), self.sql.command).await?;
        Ok(wire)
    }

    /// Takes a session that nobody uses.
    fn spare(&self) -> Option<Wire> {
        let mut desk = self.desk();
        while let Some((wire, _)) = desk.spares.pop() {
            if !wire.is_over() {
                return Some(wire);
            }
        }
        None
    }

    /// Keeps a session without a transaction for the next claim.
    fn keep_spare(&self, wire: Wire) {
        let now = self.seat.clock.now();
        let mut desk = self.desk();
        if desk.spares.len() < SPARES.min(self.sql.limit()) && !wire.is_over() {
            desk.spares.push((wire, now));
        }
    }

    /// Who holds by the session of this claim.
    fn owners(&self, main: ClaimId) -> Vec<ClaimId> {
        let desk = self.desk();
        let of_it = desk.posts.iter().filter(|(_, post)| post.main == main);
        of_it.map(|(claim, _)| *claim).collect()
    }

    /// Whether the keeper of a waiting claim has said nothing for too long.
    fn is_forgotten(&self, claim: ClaimId) -> bool {
        let now = self.seat.clock.now();
        self.desk().posts.get(&claim).is_none_or(|post| post.asked + 2 * TICKET < now)
    }

    /// Takes down that the task of a claim is over.
    fn finish(&self, claim: &Claim, shard: u32, over: &Over) {
        let now = self.seat.clock.now();
        let owners = self.owners(claim.id);
        let mut desk = self.desk();
        for owner in owners {
            desk.posts.remove(&owner);
            if let Over::Gone(cause) = over {
                desk.finished.insert(owner, (cause.clone(), now));
            }
        }
        if let Some(used) = desk.shards.get_mut(shard as usize) {
            *used = false;
        }
    }

    /// Finds the task of a claim, or starts it.
    fn post(
        self: &Arc<Self>,
        claim: &Claim,
        intent: Intent,
        floor: Token,
    ) -> Result<Post, Refusal> {
        let now = self.seat.clock.now();
        let mut desk = self.desk();
        desk.finished.retain(|_, (_, since)| *since + REMEMBER > now);
        if let Some((cause, _)) = desk.finished.get(&claim.id) {
            return Err(Refusal::Gone(cause.clone()));
        }
        if let Some(post) = desk.posts.get_mut(&claim.id) {
            post.asked = now;
            return Ok(post.clone());
        }
        if let Some(above) = claim.under {
            return desk.step_down(claim, above).ok_or(Refusal::Gone(Cause::Expired));
        }
        let shard = desk.shard(self.sql.limit()).ok_or_else(|| {
            let text = format!(
                "all {} connections of this keeper are taken by locks that are held or waited \
                 for (connections= in the URL)",
                self.sql.limit()
            );
            Refusal::Failed(Error::new(ErrorKind::TooMany, text))
        })?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let (stand, stands) = watch::channel(Stand::Asking);
        let (session, sessions) = watch::channel(0);
        let post =
            Post { main: claim.id, orders, stand: stands, session: sessions, shard, asked: now };
        desk.posts.insert(claim.id, post.clone());
        let claim = Arc::new(claim.clone());
        let task = Task {
            shared: self.clone(),
            claim,
            intent,
            floor,
            shard,
            orders: inbox,
            stand,
            session,
            stale: false,
            noted: false,
        };
        tokio::spawn(task.run());
        Ok(post)
    }

    /// Refuses to work through something that shares sessions among clients.
    async fn refuse_pooler(&self) -> Result<()> {
        let pooled = self.is_pooled().await.map_err(|fault| fault.at(Stage::Open))?;
        if !pooled {
            return Ok(());
        }
        let text = "there is a proxy in between that gives one session of the server to several \
                    clients (transaction pooling); strategy=session needs sessions of its own: \
                    connect to the server itself, or to a port of the proxy with session pooling";
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    async fn is_pooled(&self) -> Result<bool, Fault> {
        let who = self.control.words.who_am_i();
        let number = |tables: Vec<super::wire::Table>| {
            let row = tables.last().and_then(|table| table.rows.first());
            row.ok_or_else(unclear)?.number(0).map(i64::unsigned_abs)
        };
        let session = self.open_session().await?;
        let before = number(self.control.look(who).await?)?;
        // While this transaction is open, nobody else can have its session.
        let inside = number(session.ask(format!("BEGIN; {who}"), self.sql.command).await?)?;
        let after = number(self.control.look(who).await?)?;
        session.ask("ROLLBACK", self.sql.command).await?;
        let known = session.session();
        self.keep_spare(session);
        Ok(before != after || inside == after || inside != known)
    }
}

/// Why there is no task.
enum Refusal {
    Gone(Cause),
    Failed(Error),
}

impl Desk {
    /// A shard that is free, up to `limit`.
    fn shard(&mut self, limit: usize) -> Option<u32> {
        let free = self.shards.iter().position(|used| !used);
        let index = match free {
            Some(index) => index,
            None if self.shards.len() < limit => {
                self.shards.push(false);
                self.shards.len() - 1
            }
            None => return None,
        };
        self.shards[index] = true;
        u32::try_from(index).ok()
    }

    /// Lets a reader hold by the session of the write claim it steps down from.
    fn step_down(&mut self, claim: &Claim, above: ClaimId) -> Option<Post> {
        let post = self.posts.get(&above)?.clone();
        let held = matches!(*post.stand.borrow(), Stand::Held(_));
        if !held {
            return None;
        }
        self.posts.insert(claim.id, post.clone());
        Some(post)
    }
}

struct SessionEngine(Arc<Shared>);

impl SessionEngine {
    /// Renews the grant of a claim and says what it is.
    async fn beat(&self, claim: &Claim, post: &Post) -> Result<Standing> {
        let (reply, answer) = oneshot::channel();
        let _ = post.orders.send(Order::Beat(reply));
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Ok(Standing::Gone(self.why_gone(claim.id))),
        }
    }

    fn why_gone(&self, claim: ClaimId) -> Cause {
        let desk = self.0.desk();
        desk.finished.get(&claim).map_or(Cause::Expired, |(cause, _)| cause.clone())
    }

    fn place(&self, claim: &Claim, post: &Post) -> Standing {
        let now = self.0.seat.clock.now();
        Standing::Queued(Place {
            ticket: claim.id.number,
            ahead: None,
            until: now + TICKET,
            renew_at: now + BEAT,
            shard: post.shard,
        })
    }

    async fn keep(&self, keep: &Keep) -> Result<Standing> {
        let claim = &keep.claim;
        let post = {
            let mut desk = self.0.desk();
            let post = desk.posts.get_mut(&claim.id);
            if let Some(post) = post {
                post.asked = self.0.seat.clock.now();
                Some(post.clone())
            } else {
                None
            }
        };
        let Some(post) = post else { return Ok(Standing::Gone(self.why_gone(claim.id))) };
        let stand = post.stand.borrow().clone();
        match stand {
            Stand::Asking | Stand::Waiting => Ok(self.place(claim, &post)),
            Stand::Held(grant) => {
                if let Belief::Held { token } = keep.belief
                    && token != grant.token
                {
                    return Ok(Standing::Gone(Cause::TakenOver));
                }
                self.beat(claim, &post).await
            }
            Stand::Over(_) => Ok(Standing::Gone(self.why_gone(claim.id))),
        }
    }
}

#[async_trait]
impl Engine for SessionEngine {
    fn info(&self) -> EngineInfo {
        self.0.info.clone()
    }

    async fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing> {
        let mut post = match self.0.post(claim, intent, floor) {
            Ok(post) => post,
            Err(Refusal::Gone(cause)) => return Ok(Standing::Gone(cause)),
            Err(Refusal::Failed(error)) => return Err(error),
        };
        // A grant that was there before is renewed, as any other question would.
        let known = matches!(*post.stand.borrow(), Stand::Held(_));
        loop {
            let stand = post.stand.borrow_and_update().clone();
            match stand {
                Stand::Asking => {}
                Stand::Waiting => return Ok(self.place(claim, &post)),
                Stand::Held(grant) if !known => return Ok(Standing::Held(grant)),
                Stand::Held(_) => return self.beat(claim, &post).await,
                Stand::Over(Over::Busy) => return Ok(Standing::Busy),
                Stand::Over(Over::Failed(error)) => return Err(error),
                Stand::Over(Over::Gone(cause)) => return Ok(Standing::Gone(cause)),
                Stand::Over(Over::Released) => return Ok(Standing::Gone(Cause::Expired)),
            }
            if post.stand.changed().await.is_err() {
                return Err(Error::new(ErrorKind::Unknown, "the task of the claim ended"));
            }
        }
    }

    async fn renew(&self, batch: &[Keep]) -> Vec<Result<Standing>> {
        futures_util::future::join_all(batch.iter().map(|keep| self.keep(keep))).await
    }

    async fn release(&self, claim: &Claim, how: Release) -> Result<Found> {
        let shared = &self.0;
        let now = shared.seat.clock.now();
        let (post, lost) = {
            let mut desk = shared.desk();
            let lost = desk.finished.contains_key(&claim.id);
            if how.unsure {
                desk.finished.insert(claim.id, (Cause::Expired, now));
            }
            let post = desk.posts.get(&claim.id).cloned();
            let owners = |main| desk.posts.values().filter(|post| post.main == main).count();
            let shared_with = post.as_ref().map_or(0, |post| owners(post.main));
            if shared_with > 1 {
                desk.posts.remove(&claim.id);
                return Ok(Found::Held);
            }
            (post, lost)
        };
        let Some(post) = post else {
            if lost {
                // Its session is over; whoever let go needs no lock-delay.
                let forget = shared.control.words.forget(&claim.name, claim.id);
                let cleared = tokio::time::timeout(TICKET, shared.control.ask(&forget)).await;
                tracing::debug!(name = %claim.name, ?cleared, "cleared after the loss");
            }
            return Ok(Found::Nothing);
        };
        let (reply, answer) = oneshot::channel();
        let _ = post.orders.send(Order::End(how.linger, reply));
        answer.await.unwrap_or(Ok(Found::Nothing))
    }

    async fn revoke(
        &self,
        name: &LockName,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Result<Found> {
        self.0.revoke(name, victim, how, reason).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status> {
        self.0.inspect(name).await
    }

    async fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page> {
        self.0.list(prefix, from, limit).await
    }

    async fn cell(&self, _name: &LockName, op: CellOp) -> Result<Cell> {
        let text = format!("row locks cannot do a {}; strategy=lease can", op.kind());
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    async fn close(&self, _by: Moment) -> Result<()> {
        let posts: Vec<Post> = self.0.desk().posts.values().cloned().collect();
        for post in posts {
            let (reply, answer) = oneshot::channel();
            let _ = post.orders.send(Order::End(Duration::ZERO, reply));
            let _ = answer.await;
        }
        self.0.desk().spares.clear();
        Ok(())
    }
}

/// Looks after the grants of a keeper, as long as there is one: whether they
/// are broken, and where nobody else notices, whether their sessions live.
async fn watch_over(shared: Weak<Shared>) {
    let pause = match shared.upgrade() {
        Some(shared) if shared.control.words.alive(&[]).is_some() => WATCH,
        _ => LOOK,
    };
    let every = (LOOK.as_millis() / pause.as_millis()).max(1);
    let mut round = 0;
    loop {
        tokio::time::sleep(pause).await;
        let Some(shared) = shared.upgrade() else { return };
        round += 1;
        shared.look_after(round % every == 0).await;
    }
}

impl Shared {
    async fn look_after(&self, breaks_too: bool) {
        let now = self.seat.clock.now();
        let held: Vec<(ClaimId, Post)> = {
            let mut desk = self.desk();
            desk.spares.retain(|(wire, since)| !wire.is_over() && *since + SPARE_TIME > now);
            let held = desk.posts.iter().filter(|(claim, post)| {
                post.main == **claim && matches!(*post.stand.borrow(), Stand::Held(_))
            });
            held.map(|(claim, post)| (*claim, post.clone())).collect()
        };
        if held.is_empty() {
            return;
        }
        if let Err(fault) = self.look_at(&held, breaks_too).await {
            tracing::debug!(error = %fault.at(Stage::Work), "the control session failed");
            // What ended it may have ended the others.
            for (_, post) in &held {
                let _ = post.orders.send(Order::Check);
            }
        }
    }

    async fn look_at(&self, held: &[(ClaimId, Post)], breaks_too: bool) -> Result<(), Fault> {
        let words = &self.control.words;
        if breaks_too {
            let claims: Vec<ClaimId> = held.iter().map(|(claim, _)| *claim).collect();
            let tables = self.control.ask(&words.broken(&claims)).await?;
            for row in tables.iter().flat_map(|table| &table.rows) {
                let (claim, reason) = (row.text(0)?, words.read(row.text(1)?)?);
                let post = held.iter().find(|(held, _)| held.to_string() == claim);
                if let Some((_, post)) = post {
                    let _ = post.orders.send(Order::Broken(reason.into()));
                }
            }
        }
        let sessions: Vec<u64> = held.iter().map(|(_, post)| *post.session.borrow()).collect();
        let Some(alive) = words.alive(&sessions) else { return Ok(()) };
        let tables = self.control.ask(&alive).await?;
        let rows = tables.iter().flat_map(|table| &table.rows);
        let alive: Vec<u64> =
            rows.map(|row| row.number(0).map(i64::unsigned_abs)).collect::<Result<_, _>>()?;
        for (_, post) in held.iter().filter(|(_, post)| !alive.contains(&post.session.borrow())) {
            let _ = post.orders.send(Order::Check);
        }
        Ok(())
    }
}

impl fmt::Debug for SessionEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionEngine({})", self.0.info.label)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({})", self.info.label)
    }
}
