//! Who does what is asked, on which connection.
//!
//! A few workers, each with a connection of its own, take what is ready:
//! everything that is asked about one name at a time goes into one
//! transaction, and no name has more than one worker. So a name whose row is
//! locked for long by somebody else costs one connection, not all of them.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::config::Sql;
use super::fault::{Class, Stage};
use super::hint::Company;
use super::look::Look;
use super::step::{Desk, Patience, Step, Stopped, pause};
use super::wire::{Connection, connect_prepared};
use crate::clock::Moment;
use crate::driver::backoff;
use crate::engine::{Event, Seat};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// How many steps one transaction takes at most.
const BATCH: usize = 128;
/// How often a transaction is tried again when others were in the way.
const TRIES: u32 = 8;
/// How long a worker without work keeps its connection.
const SPARE: Duration = Duration::from_secs(60);

/// The workers of a keeper.
pub(super) struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    sql: Sql,
    seat: Seat,
    state: Mutex<State>,
    /// There is something to do.
    work: Notify,
    /// How many workers there are.
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    names: HashMap<LockName, Queue>,
    company: Company,
    ready: VecDeque<Unit>,
    /// How many workers wait for work.
    idle: usize,
    /// How many workers have a connection.
    connected: usize,
    closed: bool,
    link_down: bool,
    /// No new connection before then, after one failed, and why.
    trouble: Option<(Instant, Error)>,
    failures: u32,
}

/// What is asked about a name.
#[derive(Default)]
struct Queue {
    steps: VecDeque<Step>,
    /// Whether it is in `ready`, or with a worker.
    taken: bool,
}

/// What a worker takes.
enum Unit {
    /// What is asked about this name by then.
    Name(LockName),
    /// Steps on several names, ordered by name.
    Batch(Vec<Step>),
    Look(Look),
}

impl Workers {
    pub(super) fn new(sql: Sql, seat: Seat, first: Box<dyn Connection>) -> Self {
        let shared = Arc::new(Shared {
            sql,
            seat,
            state: Mutex::default(),
            work: Notify::new(),
            count: watch::Sender::new(0),
        });
        shared.hire(Some(first));
        Workers { shared }
    }

    /// Does a step on its name, as soon as a worker is free.
    pub(super) fn ask(&self, step: Step) {
        let mut state = self.shared.lock();
        state.add(step);
        self.shared.wake(state);
    }

    /// Does steps on several names together. Names that somebody else has
    /// locked are done on their own after that.
    pub(super) fn ask_together(&self, mut steps: Vec<Step>) {
        steps.sort_by(|one, other| one.name.cmp(&other.name));
        while !steps.is_empty() {
            let rest = steps.split_off(steps.len().min(BATCH));
            let mut state = self.shared.lock();
            state.ready.push_back(Unit::Batch(std::mem::replace(&mut steps, rest)));
            self.shared.wake(state);
        }
    }

    /// Asks something that needs no lock.
    pub(super) fn look(&self, look: Look) {
        let mut state = self.shared.lock();
        state.ready.push_back(Unit::Look(look));
        self.shared.wake(state);
    }

    /// Ends the workers when all is done, or at the given moment.
    pub(super) async fn close(&self, by: Moment) {
        self.shared.lock().closed = true;
        self.shared.work.notify_waiters();
        let left = by.since(self.shared.seat.clock.now());
        let mut count = self.shared.count.subscribe();
        let _ = tokio::time::timeout(left, count.wait_for(|count| *count == 0)).await;
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_waiters();
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("count", &*self.shared.count.borrow()).finish()
    }
}

impl State {
    /// Whether a connection could not be made just now.
    fn is_troubled(&self) -> bool {
        self.trouble.as_ref().is_some_and(|(until, _)| *until > Instant::now())
    }

    fn add(&mut self, step: Step) {
        let name = step.name.clone();
        let queue = self.names.entry(name.clone()).or_default();
        queue.steps.push_back(step);
        if !queue.taken {
            queue.taken = true;
            self.ready.push_back(Unit::Name(name));
        }
    }

    /// Takes what is asked about a name: one that must be alone, or several.
    fn take(&mut self, name: &LockName) -> Vec<Step> {
        let Some(queue) = self.names.get_mut(name) else { return Vec::new() };
        queue.steps.retain(Step::is_wanted);
        let several = queue.steps.iter().take(BATCH).take_while(|step| !step.alone).count();
        queue.steps.drain(..several.max(1).min(queue.steps.len())).collect()
    }

    /// A worker is done with a name.
    fn give_back(&mut self, name: &LockName) {
        match self.names.get_mut(name) {
            Some(queue) if queue.steps.is_empty() => _ = self.names.remove(name),
            Some(_) => self.ready.push_back(Unit::Name(name.clone())),
            None => {}
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a worker know of work, or hires one.
    fn wake(self: &Arc<Self>, state: MutexGuard<'_, State>) {
        let busy = state.ready.len() > state.idle;
        let troubled = state.connected > 0 && state.is_troubled();
        drop(state);
        if busy && !troubled && *self.count.borrow() < self.sql.limit() {
            self.hire(None);
        }
        self.work.notify_one();
    }

    fn hire(self: &Arc<Self>, connection: Option<Box<dyn Connection>>) {
        self.count.send_modify(|count| *count += 1);
        self.lock().connected += usize::from(connection.is_some());
        let mut worker = Worker { shared: self.clone(), connection };
        tokio::spawn(async move { worker.run().await });
    }

    /// Tells the keeper whether the database can be reached.
    fn set_link(&self, up: bool) {
        let mut state = self.lock();
        if up {
            (state.trouble, state.failures) = (None, 0);
        }
        if state.link_down == up {
            state.link_down = !up;
            self.seat.events.push(Event::Link { shard: 0, up });
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    connection: Option<Box<dyn Connection>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.disconnect();
        self.shared.count.send_modify(|count| *count -= 1);
    }
}

impl Worker {
    async fn run(&mut self) {
        loop {
            // Before there is work for it: others are sooner done than a
            // connection is made.
            if self.is_superfluous().await {
                return;
            }
            let Some(unit) = self.next().await else { break };
            let name = match &unit {
                Unit::Name(name) => Some(name.clone()),
                _ => None,
            };
            // A panic must not take the others' worker along.
            if AssertUnwindSafe(self.work(unit)).catch_unwind().await.is_err() {
                self.disconnect();
            }
            if let Some(name) = name {
                self.shared.lock().give_back(&name);
            }
        }
        if let Some(connection) = self.disconnect() {
            connection.close().await;
        }
    }

    /// Whether this worker gets no connection, while others have one: then
    /// they do the work.
    async fn is_superfluous(&mut self) -> bool {
        self.connection.is_none()
            && self.connected().await.is_err()
            && self.shared.lock().connected > 0
    }

    fn disconnect(&mut self) -> Option<Box<dyn Connection>> {
        let connection = self.connection.take();
        self.shared.lock().connected -= usize::from(connection.is_some());
        connection
    }

    /// Waits for work; `None` when there is none for this worker any more.
    async fn next(&mut self) -> Option<Unit> {
        loop {
            // Made before the look, so that nothing falls between.
            let woken = self.shared.work.notified();
            {
                let mut state = self.shared.lock();
                if let Some(unit) = state.ready.pop_front() {
                    return Some(unit);
                }
                if state.closed {
                    return None;
                }
                state.idle += 1;
            }
            let idle = tokio::time::timeout(SPARE, woken).await;
            self.shared.lock().idle -= 1;
            if idle.is_err() && *self.shared.count.borrow() > 1 {
                return None;
            }
        }
    }

    async fn work(&mut self, unit: Unit) {
        match unit {
            Unit::Name(name) => {
                let steps = self.shared.lock().take(&name);
                self.transact(steps, Patience::Wait).await;
            }
            Unit::Batch(mut steps) => {
                steps.retain(Step::is_wanted);
                self.transact(steps, Patience::Skip).await;
            }
            Unit::Look(look) => self.look(look).await,
        }
    }

    /// Does steps in one transaction, again if need be, and answers them.
    async fn transact(&mut self, mut steps: Vec<Step>, patience: Patience) {
        if steps.is_empty() {
            return;
        }
        let company = self.shared.lock().company.expected(&steps);
        let mut tries = 0;
        loop {
            tries += 1;
            let ran = match self.connected().await {
                Ok((sql, keeper, connection)) => {
                    let mut desk = Desk { sql, keeper, connection, company };
                    match desk.run(&mut steps, patience).await {
                        Ok(ran) => Ok(ran),
                        Err(stopped) => Err(self.stopped(stopped, tries).await),
                    }
                }
                Err(error) => Err(Some(error)),
            };
            match ran {
                Ok(ran) => {
                    self.shared.lock().company.note(&ran.seen);
                    for event in ran.events {
                        self.shared.seat.events.push(event);
                    }
                    for step in steps {
                        if ran.skipped.contains(&step.name) {
                            let mut state = self.shared.lock();
                            state.add(step);
                            self.shared.wake(state);
                        } else {
                            step.answer(Ok(ran.now));
                        }
                    }
                    if ran.open {
                        self.undo().await;
                    }
                    return;
                }
                Err(Some(error)) => {
                    for step in steps {
                        step.answer(Err(error.clone()));
                    }
                    return;
                }
                Err(None) => {}
            }
        }
    }

    /// Cleans up after a fault; the error to answer with, or `None` to try again.
    async fn stopped(&mut self, (fault, stage): Stopped, tries: u32) -> Option<Error> {
        if fault.leaves_connection() {
            self.undo().await;
        } else {
            self.disconnect();
        }
        match (fault.class, stage) {
            (Class::Conflict, _) if tries < TRIES => tokio::time::sleep(pause(tries)).await,
            // The server may have closed an idle connection; nothing was done.
            (Class::Lost, Stage::Work) if tries < 2 => {}
            _ => return Some(fault.at(stage)),
        }
        None
    }

    async fn undo(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let keeper = self.shared.seat.keeper;
        let connection = &mut **connection;
        let mut desk = Desk { sql: &self.shared.sql, keeper, connection, company: false };
        if desk.undo().await.is_err() {
            self.disconnect();
        }
    }

    async fn look(&mut self, Look { at, reply }: Look) {
        let mut tries = 0;
        let page = loop {
            tries += 1;
            let looked = match self.connected().await {
                Ok((sql, _, connection)) => at.look(sql, connection).await,
                Err(error) => break Err(error),
            };
            match looked {
                Ok(page) => break Ok(page),
                Err(fault) => {
                    if let Some(error) = self.stopped((fault, Stage::Work), tries).await {
                        break Err(error);
                    }
                }
            }
        };
        // Nobody left to tell.
        let _ = reply.send(page);
    }

    /// The connection, made anew if need be.
    async fn connected(
        &mut self,
    ) -> Result<(&Sql, crate::token::KeeperId, &mut dyn Connection), Error> {
        let shared = &self.shared;
        if self.connection.is_none() {
            if let Some((until, error)) = &shared.lock().trouble
                && *until > Instant::now()
            {
                return Err(error.clone());
            }
            match connect_prepared(&shared.sql).await {
                Ok(connection) => {
                    self.connection = Some(connection);
                    shared.lock().connected += 1;
                    shared.set_link(true);
                }
                Err(fault) => {
                    let error = fault.at(Stage::Work);
                    let mut state = shared.lock();
                    state.failures += 1;
                    let until = Instant::now() + backoff(state.failures);
                    state.trouble = Some((until, error.clone()));
                    drop(state);
                    if error.kind() == ErrorKind::Unreachable && shared.lock().connected == 0 {
                        shared.set_link(false);
                    }
                    return Err(error);
                }
            }
        }
        match &mut self.connection {
            Some(connection) => Ok((&shared.sql, shared.seat.keeper, &mut **connection)),
            None => Err(Error::new(ErrorKind::Unexpected, "no connection")),
        }
    }
}
