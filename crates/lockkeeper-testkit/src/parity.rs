//! Random operations give the same answers and leave the same state on the
//! model and on a real engine whose clock is this host's.
//!
//! Both sides live in the same real time. The model is asked with the time
//! just before the request; where an instant that matters to it lies too near
//! for both to see the same side of it, the test first waits until it is past.

mod judge;
mod setup;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use futures_util::StreamExt;
use lockkeeper::engine::{
    Belief, CellOp, Claim, CountId, Event, Events, Holder, Intent, Keep, Kind, Release, Revoke,
    Seat,
};
use lockkeeper::model::{Effects, Record, Time};
use lockkeeper::{ClaimId, Clock, Engine, KeeperId, LockName, Result, Token};
use tokio::sync::mpsc::UnboundedReceiver;

use setup::{claims, listening};

/// How many operations a sequence has.
const STEPS: usize = 90;
/// How much longer than its operation an instant may be unclear.
const BLUR: Duration = Duration::from_millis(3);
/// How long a sequence sleeps in all: less than a watch on a number lives.
const SLEEP: Duration = Duration::from_secs(6);

/// How long sequences may go on beyond their number until enough was clear.
const MORE: Duration = Duration::from_secs(120);

/// Runs so many random sequences on the engine at `url` and on the model, some
/// of them at once: an engine that is busy answers too late to be compared.
///
/// # Panics
/// When the two differ, with the seed that repeats it.
pub async fn compare(url: &str, sequences: u64, at_once: usize) {
    let given = std::env::var("LOCKKEEPER_SEED").ok().and_then(|seed| seed.parse().ok());
    let first: u64 = given.unwrap_or_else(|| fastrand::u64(..1 << 40));
    let count = if given.is_some() { 1 } else { sequences };
    let run = |seed| {
        let url = url.to_owned();
        let sequence = async move { Sequence::start(seed, &url).await.run().await };
        let task = tokio::spawn(sequence);
        async move {
            match task.await {
                Ok(done) => done,
                Err(panic) => panic!("LOCKKEEPER_SEED={seed} repeats the failure: {panic}"),
            }
        }
    };
    let sequences = |from| futures_util::stream::iter(from..from + count).map(run);
    let sum = async |sum, done| sum + done;
    let mut steps: usize = sequences(first).buffer_unordered(at_once).fold(0, sum).await;
    let (start, enough, mut next) = (Instant::now(), count as usize * STEPS / 5, first + count);
    // On a busy machine many sequences end early, unclear: then there are
    // more of them, one at a time, which is clearer.
    while steps < enough && given.is_none() && start.elapsed() < MORE {
        steps += run(next).await;
        next += 1;
    }
    println!("{steps} operations alike in {} sequences from seed {first}", next - first);
    assert!(steps >= enough, "too few operations were clear: {steps} of at least {enough}");
}

/// One name on both sides.
struct Sequence {
    seed: u64,
    random: Rng,
    name: LockName,
    record: Record,
    effects: Effects,
    watching: HashSet<usize>,
    keepers: Vec<(Arc<dyn Engine>, UnboundedReceiver<Event>)>,
    claims: Vec<Arc<Claim>>,
    tokens: Pairs,
    tickets: Pairs,
    asleep: Duration,
    /// The longest operation so far: how far the two sides' times are apart.
    apart: Duration,
    log: Vec<String>,
}

/// Numbers of the model and what they are on the server; both only grow.
#[derive(Debug, Default)]
struct Pairs(BTreeMap<u64, u64>);

impl Pairs {
    fn meet(&mut self, model: u64, server: u64) -> bool {
        if let Some(&known) = self.0.get(&model) {
            return known == server;
        }
        let rises = self.0.range(..model).next_back().is_none_or(|(_, &below)| below < server)
            && self.0.range(model..).next().is_none_or(|(_, &above)| server < above);
        self.0.insert(model, server);
        rises
    }

    fn server(&self, model: u64) -> u64 {
        self.0.get(&model).copied().unwrap_or(model)
    }
}

/// What was unclear, so that the sequence ends here.
struct Unclear;

impl Sequence {
    async fn start(seed: u64, url: &str) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut keepers = Vec::new();
        for number in 0..3 {
            let (events, pushed) = Events::channel();
            let keeper = KeeperId::from_number(u128::from(seed) * 10 + number);
            let seat = Seat { keeper, clock: Clock::system(), events };
            let engine = lockkeeper::engine::at(url).unwrap().open(seat).await.unwrap();
            keepers.push((engine, pushed));
        }
        listening(seed, &mut keepers).await;
        let name = LockName::new(format!("parity {seed} {{é}}")).unwrap();
        let claims = claims(&mut random, seed, &name);
        Sequence {
            seed,
            random,
            name,
            record: Record::default(),
            effects: Effects::default(),
            watching: HashSet::new(),
            keepers,
            claims,
            tokens: Pairs::default(),
            tickets: Pairs::default(),
            asleep: Duration::ZERO,
            apart: Duration::ZERO,
            log: Vec::new(),
        }
    }

    /// Runs until the end, or until something is unclear; returns the steps done.
    async fn run(mut self) -> usize {
        for step in 0..STEPS {
            if self.step().await.is_err() {
                return step;
            }
        }
        STEPS
    }

    async fn step(&mut self) -> Result<(), Unclear> {
        if self.random.u8(..100) < 14 {
            let nap = [20, 60, 120, 200, 350, 700, 2050][self.random.usize(..7)];
            let nap = Duration::from_millis(nap);
            if self.asleep + nap < SLEEP {
                self.asleep += nap;
                self.log.push(format!("sleep {nap:?}"));
                tokio::time::sleep(nap).await;
            }
        }
        self.wait_for_clarity().await;
        self.effects.clear();
        // A quarter of the sequences is mostly about latches.
        let latches = self.seed.is_multiple_of(4) && self.random.u8(..4) > 0;
        match self.random.u8(..100) {
            _ if latches => self.cell().await?,
            0..=41 => self.acquire().await?,
            42..=57 => self.renew().await?,
            58..=75 => self.release().await?,
            76..=82 => self.revoke().await?,
            _ => self.cell().await?,
        }
        self.pushes().await;
        self.wait_for_clarity().await;
        self.status().await
    }

    async fn acquire(&mut self) -> Result<(), Unclear> {
        let claim = self.claim();
        let intent =
            [Intent::Try, Intent::Watch, Intent::Queue, Intent::Queue][self.random.usize(..4)];
        // A floor above every clock, so that both sides count alike from it.
        let floor = match self.random.u8(..20) {
            0 => Token::new(5_000_000_000_000_000 + self.random.u64(..1000) * 1000),
            _ => Token::ZERO,
        };
        self.log.push(format!("acquire {claim:?} {intent:?} {floor}"));
        let now = Time(wall());
        let expected = self.record.acquire(&claim, intent, floor, now, &mut self.effects);
        let engine = self.engine(claim.id);
        let actual = engine.acquire(&claim, intent, floor).await;
        self.clear(now)?;
        self.same_answer(expected, actual);
        Ok(())
    }

    async fn renew(&mut self) -> Result<(), Unclear> {
        let claim = self.claim();
        let (believed, on_server) = self.belief(claim.id);
        let floor = match self.random.u8(..10) {
            0 => Token::new(5_000_000_000_000_000 + self.random.u64(..1000) * 1000),
            _ => Token::ZERO,
        };
        self.log.push(format!("renew {:?} {believed:?} {floor}", claim.id));
        let now = Time(wall());
        let expected = self.record.renew(&claim, believed, floor, now, &mut self.effects);
        let engine = self.engine(claim.id);
        let keep = Keep { claim, belief: on_server, floor };
        let actual = engine.renew(&[keep]).await.remove(0);
        self.clear(now)?;
        self.same_answer(Ok(expected), actual);
        Ok(())
    }

    async fn release(&mut self) -> Result<(), Unclear> {
        let claim = self.claim();
        let linger = Duration::from_millis([0, 0, 0, 120][self.random.usize(..4)]);
        let how = Release { linger, unsure: self.random.u8(..4) == 0 };
        self.log.push(format!("release {:?} {how:?}", claim.id));
        let now = Time(wall());
        let expected = self.record.release(claim.id, how, now, &mut self.effects);
        let actual = self.engine(claim.id).release(&claim, how).await;
        self.clear(now)?;
        self.same("found", expected, actual.unwrap());
        Ok(())
    }

    async fn revoke(&mut self) -> Result<(), Unclear> {
        let claim = self.claim();
        let how = [Revoke::Orderly, Revoke::Now][self.random.usize(..2)];
        let reason = ["", "too slow, 100 %", "é"][self.random.usize(..3)];
        let held = self.record.holders.iter().find(|held| held.claim == claim.id);
        let token = match self.random.u8(..6) {
            0 => self.record.counter.get().checked_sub(1).map(Token::new),
            _ => held.and_then(|held| held.token),
        };
        let victim = Holder {
            claim: claim.id,
            mode: claim.mode,
            token: token.map(|token| Token::new(self.tokens.server(token.get()))),
            about: claim.about.clone(),
            age: Duration::ZERO,
            lease_left: Duration::ZERO,
            revoked: false,
        };
        self.log.push(format!("revoke {:?} {token:?} {how:?}", claim.id));
        let now = Time(wall());
        let effects = &mut self.effects;
        let expected = self.record.revoke(claim.id, token, how, reason, now, effects);
        let actual = self.engine(claim.id).revoke(&self.name, &victim, how, reason).await;
        self.clear(now)?;
        self.same("found", expected, actual.unwrap());
        Ok(())
    }

    async fn cell(&mut self) -> Result<(), Unclear> {
        let keeper = self.random.usize(..self.keepers.len());
        let id = CountId(format!("id {}", self.random.u8(..4)).into());
        let kinds = if self.seed.is_multiple_of(4) && self.random.u8(..8) > 0 { 6 } else { 9 };
        let op = match self.random.u8(..kinds) {
            0 => CellOp::Look { kind: Kind::Latch, watch: self.random.bool() },
            1 => CellOp::Look { kind: Kind::Semaphore, watch: self.random.bool() },
            2 => CellOp::Look { kind: Kind::Fence, watch: self.random.bool() },
            3 => CellOp::SetLatch {
                count: self.random.u32(1..5),
                keep: Duration::from_millis([150, 400, 60_000][self.random.usize(..3)]),
                by: id,
            },
            4 | 5 => CellOp::CountDown { by: id },
            6 => CellOp::RemoveLatch,
            7 => CellOp::SetCapacity { to: self.random.u32(1..4) },
            // A fence takes tokens of any engine, up to the last bit.
            _ => CellOp::Fence { token: Token::new(u64::MAX - self.random.u64(..50)) },
        };
        // A fence stays for ever and would end most sequences' other work.
        let fence = matches!(op, CellOp::Fence { .. });
        if fence && self.record.kind.is_none() && self.random.u8(..4) > 0 {
            return Ok(());
        }
        self.log.push(format!("cell by {keeper}: {op:?}"));
        if matches!(op, CellOp::Look { watch: true, .. }) {
            self.watching.insert(keeper);
        }
        let now = Time(wall());
        let expected = self.record.cell(&op, now, &mut self.effects);
        let actual = self.keepers[keeper].0.cell(&self.name, op).await;
        self.clear(now)?;
        match (expected, actual) {
            (Ok(expected), Ok(actual)) => self.same("cell", expected, actual),
            (Err(expected), Err(actual)) => self.same_refusal(expected, actual),
            (expected, actual) => self.differ("cell", expected, actual),
        }
        Ok(())
    }

    /// A claim to work with: any, but often one that has something.
    fn claim(&mut self) -> Arc<Claim> {
        let holders = self.record.holders.iter().map(|held| held.claim);
        let waiters = self.record.queue.iter().map(|ticket| ticket.claim);
        let known: Vec<ClaimId> = holders.chain(waiters).collect();
        let any = self.random.usize(..self.claims.len());
        if known.is_empty() || self.random.bool() {
            return self.claims[any].clone();
        }
        let wanted = known[self.random.usize(..known.len())];
        self.claims.iter().find(|claim| claim.id == wanted).unwrap().clone()
    }

    /// What its keeper may believe of a claim, on both sides: mostly the truth.
    fn belief(&mut self, claim: ClaimId) -> (Belief, Belief) {
        let held = self.record.holders.iter().find(|held| held.claim == claim);
        let ticket = self.record.queue.iter().find(|ticket| ticket.claim == claim);
        let lie = self.random.u8(..6) == 0;
        let back = u64::from(lie);
        let queued = |model: u64, server: u64| {
            (Belief::Queued { ticket: model }, Belief::Queued { ticket: server })
        };
        match (held, ticket) {
            (Some(held), _) if !lie => {
                let server = held.token.map(|token| Token::new(self.tokens.server(token.get())));
                (Belief::Held { token: held.token }, Belief::Held { token: server })
            }
            (_, Some(ticket)) => {
                let number = ticket.number - back;
                queued(number, self.tickets.server(number))
            }
            _ if self.random.bool() => {
                let number = self.record.last_ticket;
                queued(number, self.tickets.server(number))
            }
            _ => {
                let token = (self.record.counter > Token::ZERO).then_some(self.record.counter);
                let server = token.map(|token| Token::new(self.tokens.server(token.get())));
                (Belief::Held { token }, Belief::Held { token: server })
            }
        }
    }

    fn engine(&self, claim: ClaimId) -> Arc<dyn Engine> {
        let seat = self.claims.iter().position(|other| other.id.keeper == claim.keeper).unwrap();
        self.keepers[seat % self.keepers.len()].0.clone()
    }

    /// Waits for the pushes that the model made, and finds no others.
    async fn pushes(&mut self) {
        let mut expected: Vec<Vec<Event>> = vec![Vec::new(); self.keepers.len()];
        let pushes: Vec<Event> = self.effects.pushes.drain(..).collect();
        for event in pushes {
            let (Event::Is(claim, _) | Event::Nudge(claim) | Event::HandedOver { claim, .. }) =
                &event
            else {
                continue;
            };
            let seat = self.claims.iter().position(|c| c.id.keeper == claim.keeper).unwrap();
            expected[seat].push(event);
        }
        if self.effects.cell_changed {
            for seat in self.watching.drain() {
                expected[seat].push(Event::Cell(self.name.clone()));
            }
        }
        for (seat, expected) in expected.into_iter().enumerate() {
            for event in expected {
                let heard = loop {
                    let heard = self.keepers[seat].1.recv();
                    let heard = tokio::time::timeout(Duration::from_secs(5), heard).await;
                    let heard = heard.unwrap_or_else(|_| self.differ("push", &event, "silence"));
                    let heard = heard.expect("the engine lives");
                    if !self.is_about_others(&heard) {
                        break heard;
                    }
                };
                self.same_push(&event, &heard);
            }
            while let Ok(surplus) = self.keepers[seat].1.try_recv() {
                if !self.is_about_others(&surplus) {
                    self.differ("push", "silence", surplus);
                }
            }
        }
    }

    /// Whether it is a late echo of [`listening`], or about a connection.
    fn is_about_others(&self, event: &Event) -> bool {
        match event {
            Event::Cell(name) => *name != self.name,
            Event::Link { .. } => true,
            _ => false,
        }
    }

    /// Waits until no instant that matters is near.
    async fn wait_for_clarity(&mut self) {
        loop {
            let now = wall();
            let blur = micros(self.apart + BLUR);
            let unclear =
                self.instants().filter(|&at| at + blur > now && at < now + 2 * blur).max();
            match unclear {
                Some(at) => {
                    let pause = Duration::from_micros((at + blur).saturating_sub(now) + 500);
                    tokio::time::sleep(pause).await;
                }
                None => return,
            }
        }
    }

    /// Ends the sequence if the operation since `now` may have met an instant.
    fn clear(&mut self, now: Time) -> Result<(), Unclear> {
        let took = Time(wall()).since(now);
        self.apart = self.apart.max(took);
        let late = now.0 + micros(self.apart + BLUR);
        let met = self.instants().any(|at| at + micros(self.apart) > now.0 && at < late);
        // Instants that this very operation made lie further ahead.
        if met || took > Duration::from_millis(40) { Err(Unclear) } else { Ok(()) }
    }

    /// Every instant at which the model changes by itself.
    fn instants(&self) -> impl Iterator<Item = u64> + '_ {
        let record = &self.record;
        let held = record.holders.iter().flat_map(|held| {
            let delay = micros(held.lock_delay);
            [held.until.0, held.until.0 + delay]
        });
        held.chain(record.queue.iter().map(|ticket| ticket.until.0))
            .chain(record.watchers.iter().map(|watcher| watcher.until.0))
            .chain(record.finished.iter().map(|finished| finished.until.0))
            .chain(record.latch.iter().map(|latch| latch.until.0))
            .chain([record.closed_until.0])
    }
}

fn wall() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970"))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
