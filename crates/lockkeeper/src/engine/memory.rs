//! The model in process: for tests, examples and locks within one program.
//!
//! `memory:` is private to its keeper; `memory:NAME` is shared by all keepers
//! of the process that name it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use async_trait::async_trait;

use super::{
    Cell, CellOp, Claim, Connect, Cursor, Engine, EngineInfo, Event, Events, Found, Holder, Intent,
    Keep, Kind, Page, Release, Revoke, Seat, Standing, Status, TokenStrength,
};
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::model::{Effects, Record, Refusal, Time};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::token::{KeeperId, Token};

/// Opens in-process engines. Clones share one store.
///
/// # Examples
/// ```
/// use lockkeeper::{Keeper, Memory};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let memory = Memory::private();
/// let one = Keeper::new(memory.clone()).await?;
/// let two = Keeper::new(memory).await?;
/// let guard = one.mutex("orders").lock().await?;
/// assert!(two.mutex("orders").try_lock().await?.is_none());
/// # drop(guard);
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Memory(Arc<Store>);

impl Memory {
    /// A store of its own.
    pub fn private() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Memory(Arc::new(Store::new(format!("memory:#{number}"))))
    }

    /// The store of this name, shared within the process while anybody uses it.
    pub fn shared(name: &str) -> Self {
        static STORES: Mutex<BTreeMap<String, Weak<Store>>> = Mutex::new(BTreeMap::new());
        let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return Memory(store);
        }
        stores.retain(|_, store| store.strong_count() > 0);
        let store = Arc::new(Store::new(format!("memory:{name}")));
        stores.insert(name.to_owned(), Arc::downgrade(&store));
        Memory(store)
    }
}

#[async_trait]
impl Connect for Memory {
    fn label(&self) -> Arc<str> {
        self.0.label.clone()
    }

    async fn open(&self, seat: Seat) -> Result<Arc<dyn Engine>> {
        // Every keeper of a store must mean the same instants.
        self.0.clock.get_or_init(|| seat.clock.clone());
        self.0.lock().keepers.insert(seat.keeper, seat.events.clone());
        Ok(Arc::new(MemoryEngine { store: self.0.clone(), seat }))
    }
}

#[derive(Debug)]
struct Store {
    label: Arc<str>,
    clock: OnceLock<Clock>,
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    records: BTreeMap<LockName, Record>,
    /// Above every token of the names that were forgotten.
    floor: Token,
    keepers: HashMap<KeeperId, Events>,
    watchers: HashMap<LockName, HashSet<KeeperId>>,
    effects: Effects,
    /// How many names there were after the last sweep.
    swept: usize,
}

impl Store {
    fn new(label: String) -> Self {
        let (clock, names) = (OnceLock::new(), Mutex::default());
        Store { label: label.into(), clock, names }
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        // A panic elsewhere cannot leave a record half changed: steps have no
        // way to unwind in the middle.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time(self.clock.get_or_init(Clock::system).now().as_nanos() / 1000)
    }
}

impl Names {
    /// Runs one step of the model and pushes what it has to say.
    fn step<T>(
        &mut self,
        name: &LockName,
        now: Time,
        step: impl FnOnce(&mut Record, Token, &mut Effects) -> T,
    ) -> T {
        self.effects.clear();
        if !self.records.contains_key(name) {
            self.forget_idle(now);
        }
        let record = self.records.entry(name.clone()).or_default();
        // A name that was forgotten goes on above its tokens, also where the
        // model grants without being asked: from a queue behind readers. But
        // it has none to show before that.
        let counter = record.counter;
        let raised = counter.max(self.floor);
        record.counter = raised;
        let answer = step(record, self.floor, &mut self.effects);
        if record.counter == raised {
            record.counter = counter;
        }
        if *record == Record::default() {
            self.records.remove(name);
        }
        self.push(name);
        answer
    }

    fn push(&mut self, name: &LockName) {
        for event in self.effects.pushes.drain(..) {
            let keeper = match &event {
                Event::Is(claim, _) | Event::Nudge(claim) => claim.keeper,
                Event::HandedOver { claim, .. } => claim.keeper,
                Event::Link { .. } | Event::Cell(_) => continue,
            };
            if let Some(events) = self.keepers.get(&keeper) {
                events.push(event);
            }
        }
        if self.effects.cell_changed {
            for keeper in self.watchers.remove(name).into_iter().flatten() {
                if let Some(events) = self.keepers.get(&keeper) {
                    events.push(Event::Cell(name.clone()));
                }
            }
        }
    }

    /// Drops idle names now and then, so that the cost per new name is constant.
    fn forget_idle(&mut self, now: Time) {
        if self.records.len() < 1024.max(self.swept * 2) {
            return;
        }
        let floor = &mut self.floor;
        self.records.retain(|_, record| {
            let forget = record.is_forgettable(now);
            if forget {
                *floor = (*floor).max(record.counter);
            }
            !forget
        });
        self.swept = self.records.len();
    }
}

#[derive(Debug)]
struct MemoryEngine {
    store: Arc<Store>,
    seat: Seat,
}

#[async_trait]
impl Engine for MemoryEngine {
    fn info(&self) -> EngineInfo {
        EngineInfo {
            engine: "memory".into(),
            label: self.store.label.clone(),
            ordered: true,
            polled: false,
            tokens: TokenStrength::Process,
            caveat: "locks and tokens end with the process".into(),
            kinds: vec![Kind::Mutex, Kind::ReadWrite, Kind::Semaphore, Kind::Latch, Kind::Fence],
            min_lease: LockOptions::MIN_LEASE,
            lingers: false,
        }
    }

    async fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Standing> {
        let sent = self.seat.clock.now();
        let mut names = self.store.lock();
        let now = self.store.now();
        let answer = names.step(&claim.name, now, |record, forgotten, effects| {
            record.acquire(claim, intent, floor.max(forgotten.next()), now, effects)
        })?;
        Ok(answer.standing(claim, sent, now, 0))
    }

    async fn renew(&self, batch: &[Keep]) -> Vec<Result<Standing>> {
        let sent = self.seat.clock.now();
        let mut names = self.store.lock();
        let now = self.store.now();
        let mut renew = |keep: &Keep| {
            let answer = names.step(&keep.claim.name, now, |record, _, effects| {
                record.renew(&keep.claim, keep.belief, keep.floor, now, effects)
            });
            Ok(answer.standing(&keep.claim, sent, now, 0))
        };
        batch.iter().map(&mut renew).collect()
    }

    async fn release(&self, claim: &Claim, how: Release) -> Result<Found> {
        let mut names = self.store.lock();
        let now = self.store.now();
        Ok(names.step(&claim.name, now, |record, _, effects| {
            record.release(claim.id, how, now, effects)
        }))
    }

    async fn revoke(
        &self,
        name: &LockName,
        victim: &Holder,
        how: Revoke,
        reason: &str,
    ) -> Result<Found> {
        let mut names = self.store.lock();
        let now = self.store.now();
        Ok(names.step(name, now, |record, _, effects| {
            record.revoke(victim.claim, victim.token, how, reason, now, effects)
        }))
    }

    async fn inspect(&self, name: &LockName) -> Result<Status> {
        let names = self.store.lock();
        let status = |record: &Record| record.status(name.clone(), self.store.now());
        Ok(names.records.get(name).map_or_else(|| Status::unused(name.clone()), status))
    }

    async fn list(&self, prefix: &str, from: Option<Cursor>, limit: usize) -> Result<Page> {
        let names = self.store.lock();
        let now = self.store.now();
        let start = match &from {
            Some(Cursor(last)) => Bound::Excluded(last.as_str()),
            None => Bound::Included(prefix),
        };
        let mut entries: Vec<Status> = names
            .records
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(name, _)| name.as_str().starts_with(prefix))
            .map(|(name, record)| record.status(name.clone(), now))
            .filter(Status::is_in_use)
            .take(limit.saturating_add(1))
            .collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|last| Cursor(last.name.clone().into()));
        Ok(Page { entries, next })
    }

    async fn cell(&self, name: &LockName, op: CellOp) -> Result<Cell> {
        let mut names = self.store.lock();
        if matches!(op, CellOp::Look { watch: true, .. }) {
            names.watchers.entry(name.clone()).or_default().insert(self.seat.keeper);
        }
        let now = self.store.now();
        let answer: Result<Cell, Refusal> =
            names.step(name, now, |record, _, effects| record.cell(&op, now, effects));
        Ok(answer?)
    }

    async fn close(&self, _by: Moment) -> Result<()> {
        self.store.lock().keepers.remove(&self.seat.keeper);
        Ok(())
    }
}

impl Drop for MemoryEngine {
    fn drop(&mut self) {
        self.store.lock().keepers.remove(&self.seat.keeper);
    }
}
