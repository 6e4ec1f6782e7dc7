//! How a keeper hears of what others did: one connection that listens, or one
//! that looks, for all its claims together, and only while there are any.

#[cfg(feature = "mysql")]
mod poll;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::config::Sql;
use super::dialect::Hearing;
#[cfg(feature = "postgres")]
use super::fault::{Class, Fault};
#[cfg(feature = "postgres")]
use super::wire::{ask, connect};
use crate::driver::backoff;
use crate::engine::{Event, Seat, TICKET, lines};
use crate::name::LockName;
use crate::token::ClaimId;
use crate::url::parts::decode;

/// How long something is held before it is worth a connection to hear of it.
const SETTLED: Duration = Duration::from_millis(500);
/// How long a connection is kept that nobody needs.
const SPARE: Duration = Duration::from_secs(60);

/// The ears of a keeper.
pub(super) struct Ears(Arc<Shared>);

struct Shared {
    sql: Sql,
    seat: Seat,
    state: Mutex<State>,
    wanted: Notify,
    /// Whether what is told now will be heard.
    ready: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    waiting: HashSet<ClaimId>,
    /// Somebody waits for a latch until then.
    watching: Option<Instant>,
    /// What is held: since when that is worth listening, and until when.
    held: HashMap<ClaimId, (Instant, Instant)>,
    /// Since when there is something new to hear of.
    news: Option<Instant>,
    started: bool,
    closed: bool,
}

/// How urgently something is to be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    None,
    Holding,
    Waiting,
}

impl Ears {
    pub(super) fn new(sql: Sql, seat: Seat) -> Self {
        let (state, wanted) = (Mutex::default(), Notify::new());
        // What is only looked for stays where it is until then.
        let ready = watch::Sender::new(is_polled(&sql));
        Ears(Arc::new(Shared { sql, seat, state, wanted, ready }))
    }

    /// Whether what is told now will be heard.
    pub(super) fn is_ready(&self) -> bool {
        *self.0.ready.borrow()
    }

    /// Waits until it will, but not for long: whoever waits asks again anyway.
    pub(super) async fn ready(&self) {
        let mut ready = self.0.ready.subscribe();
        let _ = tokio::time::timeout(TICKET / 4, ready.wait_for(|ready| *ready)).await;
    }

    /// A claim waits.
    pub(super) fn wait(&self, claim: ClaimId) {
        let mut state = self.0.lock();
        if state.waiting.insert(claim) {
            state.news = Some(Instant::now());
            self.start(state);
        }
    }

    /// A claim neither waits nor holds any longer.
    pub(super) fn done(&self, claim: ClaimId) {
        let mut state = self.0.lock();
        state.waiting.remove(&claim);
        state.held.remove(&claim);
    }

    /// Somebody waits for a change of a number, and looks again in time.
    pub(super) fn watch(&self) {
        let mut state = self.0.lock();
        let new = state.watching.replace(Instant::now() + TICKET * 4).is_none();
        if new {
            state.news = Some(Instant::now());
        }
        self.start(state);
    }

    /// A claim holds, unless renewed for so long. Whoever is broken wants to
    /// hear of it before the next renewal.
    pub(super) fn hold(&self, claim: ClaimId, lease: Duration) {
        let mut state = self.0.lock();
        let now = Instant::now();
        state.waiting.remove(&claim);
        let new = !state.held.contains_key(&claim);
        state.held.entry(claim).or_insert((now + SETTLED, now)).1 = now + lease;
        if new {
            self.start(state);
        }
    }

    /// Hears nothing any more.
    pub(super) fn close(&self) {
        self.0.lock().closed = true;
        self.0.wanted.notify_one();
    }

    fn start(&self, mut state: MutexGuard<'_, State>) {
        let first = !std::mem::replace(&mut state.started, true);
        drop(state);
        self.0.wanted.notify_one();
        if first {
            tokio::spawn(hear(self.0.clone()));
        }
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Ears {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ears").field("waiting", &self.0.lock().waiting.len()).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn need(&self) -> Need {
        let mut state = self.lock();
        let now = Instant::now();
        state.watching = state.watching.filter(|until| *until > now);
        state.held.retain(|_, (_, until)| *until > now);
        if !state.waiting.is_empty() || state.watching.is_some() {
            Need::Waiting
        } else if state.held.values().any(|(from, _)| *from <= now) {
            Need::Holding
        } else {
            Need::None
        }
    }

    /// Waits until something may be needed, that has not been before.
    async fn wanted(&self) {
        let settled = self.lock().held.values().map(|(from, _)| *from).min();
        match settled {
            Some(settled) => {
                let _ = tokio::time::timeout_at(settled, self.wanted.notified()).await;
            }
            None => self.wanted.notified().await,
        }
    }

    fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Passes a line on.
    fn hear(&self, line: &str) {
        let event = match line.strip_prefix("c ") {
            Some(name) => {
                decode(name).ok().and_then(|name| LockName::new(name).ok()).map(Event::Cell)
            }
            None => lines::read(line),
        };
        if let Some(event) = event {
            self.seat.events.push(event);
        }
    }
}

/// Whether lines are looked for, and not pushed.
pub(super) fn is_polled(sql: &Sql) -> bool {
    match sql.dialect.hearing() {
        #[cfg(feature = "postgres")]
        Hearing::Pushed => false,
        #[cfg(feature = "mysql")]
        Hearing::Polled => true,
    }
}

/// Hears, over one connection after another, until the keeper is closed.
async fn hear(shared: Arc<Shared>) {
    let mut failures = 0;
    while !shared.is_closed() {
        if shared.need() == Need::None {
            shared.wanted().await;
            continue;
        }
        let fault = match shared.sql.dialect.hearing() {
            #[cfg(feature = "postgres")]
            Hearing::Pushed => {
                let ended = listen(&shared, &mut failures).await;
                shared.ready.send_replace(false);
                ended
            }
            #[cfg(feature = "mysql")]
            Hearing::Polled => poll::poll(&shared, &mut failures).await,
        };
        if let Err(fault) = fault {
            failures += 1;
            tracing::debug!(error = %fault.at(super::fault::Stage::Work), "not listening");
            tokio::time::sleep(backoff(failures)).await;
        }
    }
}

/// Listens until nobody needs it any more.
#[cfg(feature = "postgres")]
async fn listen(shared: &Shared, failures: &mut u32) -> Result<(), Fault> {
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    let mut connection = connect(&shared.sql, Some(sender)).await?;
    let channel = super::postgres::channel(shared.seat.keeper);
    ask(&mut *connection, &format!("LISTEN {channel}"), shared.sql.command).await?;
    shared.ready.send_replace(true);
    // What was told while nobody listened is found by asking. Whoever begins
    // to wait does that by itself.
    if std::mem::take(failures) > 0 || !shared.lock().held.is_empty() {
        shared.seat.events.push(Event::Link { shard: 0, up: true });
    }
    let mut idle = Instant::now();
    loop {
        if shared.need() != Need::None {
            idle = Instant::now();
        }
        if idle.elapsed() > SPARE || shared.is_closed() {
            connection.close().await;
            return Ok(());
        }
        tokio::select! {
            line = lines.recv() => match line {
                Some(line) => shared.hear(&line),
                None => return Err(Fault::new(Class::Lost, "the server ended the connection")),
            },
            () = shared.wanted.notified() => {}
            () = tokio::time::sleep(SPARE) => {}
        }
    }
}
