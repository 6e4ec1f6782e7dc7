//! The one future on the keeper's I/O thread.
//!
//! It owns every engine call. Callers post messages and get answers; engines
//! push events; time rings one alarm. Nothing here blocks, and all state is
//! plain data that only this future touches:
//!
//! - [`entry`]: one acquisition, from its message to the end of its claim;
//! - [`line`]: the acquisitions that wait for one name, in order;
//! - [`acquire`]: local queues, asking, waiting, granting;
//! - [`keep`]: keep-alive, earliest deadline first, in batches per shard;
//! - [`release`]: giving back, until it is answered or the lease is over;
//! - [`flight`]: engine calls under way, with a limit and a net for panics;
//! - [`awake`]: whether the thread sleeps while it waits.

mod acquire;
mod awake;
mod entry;
mod flight;
mod keep;
mod line;
pub(crate) mod link;
mod release;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};

use crate::cause::Cause;
use crate::clock::{Alarm, Clock, Moment};
use crate::engine::{Engine, EngineInfo, Event, Seat};
use crate::error::{ErrorKind, Result, invalid};
use crate::name::LockName;
use crate::token::KeeperId;

pub(crate) use acquire::backoff;
use awake::Awake;
use entry::Entry;
pub(crate) use flight::limited;
use flight::{Done, Flight, Pace};
use keep::{Rhythm, Shard};
use line::Line;
use link::{Footprint, Link, Message, Tally};

/// How long an engine may take to answer one call, and to be reached at all.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long closing may take.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// How often waiters ask again where no push tells them.
pub(crate) const REPOLL: Duration = Duration::from_millis(1500);
/// How many messages, events or answers are taken before time is looked at again.
const GULP: usize = 256;

/// Who wants to hear of changes to which latch; shared with waiting callers.
pub(crate) type CellWatch = Arc<Mutex<HashMap<LockName, watch::Sender<u64>>>>;

pub(crate) struct Driver {
    engine: Arc<dyn Engine>,
    info: Arc<EngineInfo>,
    keeper: KeeperId,
    clock: Clock,
    alarm: Alarm,
    link: Weak<Link>,
    inbox: mpsc::UnboundedReceiver<Message>,
    events: mpsc::UnboundedReceiver<Event>,
    cells: CellWatch,

    entries: HashMap<u64, Entry>,
    /// Per name, the acquisitions of this keeper that do not hold yet, in order.
    waiting: HashMap<LockName, Line>,
    shards: HashMap<u32, Shard>,
    rhythm: Rhythm,
    /// When to look at which entry.
    wakes: BTreeSet<(Moment, u64)>,
    flights: FuturesUnordered<Flight>,
    pace: Pace,
    awake: Awake,
    done: VecDeque<Done>,
    /// When the engine last answered an acquire.
    last_answer: Moment,
    /// How many entries are being given back.
    ending: usize,
    /// Numbers for claims that are cleaned up on their own.
    ghosts: u64,
    tally: Tally,

    flushes: Vec<std::sync::mpsc::SyncSender<()>>,
    closing: Option<Closing>,
    deserted: bool,
}

struct Closing {
    by: Moment,
    replies: Vec<oneshot::Sender<Result<()>>>,
}

/// What a new driver is made of.
pub(crate) struct Parts {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) seat: Seat,
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
    pub(crate) cells: CellWatch,
    /// Whether the runtime is there for this driver alone.
    pub(crate) own_thread: bool,
}

impl Driver {
    /// Makes a driver and the link to it. Must run inside its runtime.
    pub(crate) fn new(parts: Parts) -> Result<(Driver, Arc<Link>)> {
        let Parts { engine, seat, events, cells, own_thread } = parts;
        let info = Arc::new(engine.info());
        let (sender, inbox) = mpsc::unbounded_channel();
        let link = Arc::new(Link::new(sender, seat.keeper, seat.clock.clone(), info.clone()));
        let driver = Driver {
            engine,
            info,
            keeper: seat.keeper,
            alarm: Alarm::new(&seat.clock)?,
            rhythm: Rhythm(seat.clock.now()),
            clock: seat.clock,
            link: Arc::downgrade(&link),
            inbox,
            events,
            cells,
            entries: HashMap::new(),
            waiting: HashMap::new(),
            shards: HashMap::new(),
            wakes: BTreeSet::new(),
            flights: FuturesUnordered::new(),
            pace: Pace::default(),
            awake: Awake::new(own_thread),
            done: VecDeque::new(),
            last_answer: Moment::default(),
            ending: 0,
            ghosts: 0,
            tally: Tally::default(),
            flushes: Vec::new(),
            closing: None,
            deserted: false,
        };
        Ok((driver, link))
    }

    /// Runs until the keeper is closed, or nobody is left who could use it.
    pub(crate) async fn run(mut self) {
        let mut messages = Vec::with_capacity(GULP);
        let mut events = Vec::new();
        loop {
            self.work();
            if self.is_over() {
                break;
            }
            let next = self.next_wake();
            self.awake.begin(self.clock.now());
            self.gather(next, &mut messages, &mut events).await;
            self.awake.end(self.clock.now());
            for event in events.drain(..) {
                self.on_event(event);
            }
            for message in messages.drain(..) {
                self.on_message(message);
            }
        }
        self.say_goodbye().await;
    }

    /// Waits for anything to happen, and takes in what has.
    async fn gather(&mut self, next: Moment, messages: &mut Vec<Message>, events: &mut Vec<Event>) {
        let Driver {
            inbox,
            events: pushes,
            flights,
            pace,
            awake,
            clock,
            done,
            alarm,
            deserted,
            ..
        } = self;
        let mut alarm = pin!(alarm.ring(next));
        std::future::poll_fn(|context| {
            let mut any = false;
            if !*deserted && let Poll::Ready(count) = inbox.poll_recv_many(context, messages, GULP)
            {
                *deserted = count == 0;
                any = true;
            }
            // A closed event channel means an engine without pushes; the
            // safety re-poll carries on.
            if let Poll::Ready(count) = pushes.poll_recv_many(context, events, GULP) {
                any |= count > 0;
            }
            while let Poll::Ready(Some(answer)) = flights.poll_next_unpin(context) {
                done.push_back(answer);
                any = true;
                if done.len() >= GULP {
                    break;
                }
            }
            if any || alarm.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            pace.poll(context);
            if awake.stays(|| clock.now()) {
                // Looked at again as soon as sockets have been.
                let _ = pin!(tokio::task::yield_now()).poll(context);
            }
            Poll::Pending
        })
        .await;
    }

    /// Handles answers and due deadlines until there is nothing left to do now.
    fn work(&mut self) {
        loop {
            while let Some(done) = self.done.pop_front() {
                self.on_done(done);
            }
            let now = self.clock.now();
            while let Some(&(at, number)) = self.wakes.first()
                && at <= now
            {
                self.wakes.pop_first();
                self.on_wake(number, now);
            }
            self.renew_due(now);
            if self.done.is_empty() {
                return;
            }
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Acquire(ask) if self.closing.is_some() => {
                let _ = ask.reply.send(Err(invalid("the keeper is closed")));
            }
            Message::Acquire(ask) => self.on_ask(*ask),
            Message::Withdraw { number } => self.withdraw(number),
            Message::Release { claim, reply } => self.on_release(claim, reply),
            Message::Verify { claim, reply } => self.on_verify(claim, reply),
            Message::Call(call) => self.start_call(call),
            Message::Flush(sender) => self.flushes.push(sender),
            Message::Close { reply } => self.on_close(reply),
            Message::Measure(reply) => {
                let _ = reply.send(self.footprint());
            }
            Message::Count(reply) => {
                let _ = reply.send(self.tally);
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Is(claim, standing) => self.on_standing(claim, standing),
            Event::HandedOver { claim, ticket, token } => self.on_handed_over(claim, ticket, token),
            Event::Nudge(claim) => self.on_nudge(claim),
            Event::Link { shard, up } => self.on_link(shard, up),
            Event::Cell(name) => {
                let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(sender) = cells.get(&name) {
                    sender.send_modify(|changes| *changes += 1);
                }
            }
        }
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Asked { claim, result } => self.on_asked(claim, result),
            Done::Renewed { shard, claims, results } => self.on_renewed(shard, claims, results),
            Done::Released { number, result } => self.on_released(number, result),
            Done::Inspected { number, result } => self.on_inspected(number, result),
            Done::Called => {}
        }
    }

    fn footprint(&self) -> Footprint {
        Footprint {
            entries: self.entries.len(),
            queues: self.waiting.len(),
            wakes: self.wakes.len(),
            flights: self.flights.len(),
            due: self.shards.values().map(Shard::len).sum(),
            watches: self.cells.lock().unwrap_or_else(PoisonError::into_inner).len(),
        }
    }

    fn next_wake(&self) -> Moment {
        let entries = self.wakes.first().map_or(Moment::NEVER, |&(at, _)| at);
        let shards = self.shards.values().map(Shard::next_try).min().unwrap_or(Moment::NEVER);
        let closing = self.closing.as_ref().map_or(Moment::NEVER, |closing| closing.by);
        entries.min(shards).min(closing)
    }

    /// Puts an entry's next deadline on the alarm.
    fn schedule(&mut self, number: u64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let next = entry.next_wake();
        if next != entry.wake {
            self.wakes.remove(&(entry.wake, number));
            entry.wake = next;
            if next != Moment::NEVER {
                self.wakes.insert((next, number));
            }
        }
    }

    fn forget(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.wakes.remove(&(entry.wake, number));
        Some(entry)
    }

    fn on_close(&mut self, reply: oneshot::Sender<Result<()>>) {
        let by = self.clock.now() + CLOSE_LIMIT;
        self.closing.get_or_insert_with(|| Closing { by, replies: Vec::new() }).replies.push(reply);
        let numbers: Vec<u64> = self.entries.keys().copied().collect();
        for number in numbers {
            self.close_entry(number);
        }
    }

    /// Whether there is nothing left to do, ever.
    fn is_over(&mut self) -> bool {
        // Looked at all of them only while somebody waits for it.
        if self.ending == 0
            && !self.flushes.is_empty()
            && !self.entries.values().any(Entry::is_orphan)
        {
            for flush in self.flushes.drain(..) {
                let _ = flush.send(());
            }
        }
        match &self.closing {
            Some(closing) => self.entries.is_empty() || self.clock.now() >= closing.by,
            None => self.deserted && self.entries.is_empty(),
        }
    }

    async fn say_goodbye(mut self) {
        // From here on nobody can post; what was posted before is answered.
        self.inbox.close();
        while let Ok(message) = self.inbox.try_recv() {
            self.on_message(message);
        }
        let left = self.entries.len();
        // The engine has what is left of the time for closing, and a second
        // at least: it may have to put its files in order.
        let now = self.clock.now();
        let by = self.closing.as_ref().map_or(now, |closing| closing.by);
        let limit = by.since(now).max(Duration::from_secs(1));
        let close = flight::caught(self.engine.close(now + limit));
        let closed = match tokio::time::timeout(limit, close).await {
            Ok(Ok(closed)) => closed,
            Ok(Err(error)) => Err(error),
            Err(_) => Err(flight::unanswered(limit)),
        };
        let answer = match left {
            0 => closed,
            _ => Err(crate::Error::new(
                ErrorKind::Unknown,
                format!("{left} claims could not be given back in time; their leases end them"),
            )),
        };
        for reply in self.closing.take().into_iter().flat_map(|closing| closing.replies) {
            let _ = reply.send(answer.clone().map_err(|e| e.during("close").on(&self.info.label)));
        }
    }
}

impl Drop for Driver {
    /// A driver that ends, even by a panic, leaves no guard in the belief
    /// that somebody renews it.
    fn drop(&mut self) {
        for entry in self.entries.values() {
            if let Some(shared) = entry.shared()
                && shared.lose(Cause::EngineGone)
            {
                tracing::warn!(name = %entry.claim.name, "lost: the keeper ended");
            }
        }
    }
}
