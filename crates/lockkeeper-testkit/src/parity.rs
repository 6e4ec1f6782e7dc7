//! Random operations give the same answers and leave the same state on the
//! model and on a real engine whose clock is this host's.
//!
//! Both sides live in the same real time. The model is asked with the time
//! just before the request; where an instant that matters to it lies too near
//! for both to see the same side of it, the test first waits until it is past.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use lockkeeper::engine::{
    About, Belief, CellOp, Claim, CountId, Event, Events, Holder, Intent, Keep, Kind, Mode,
    Release, Revoke, Seat, Standing, Status,
};
use lockkeeper::model::{Answer, Effects, Record, Refusal, Time};
use lockkeeper::{ClaimId, Clock, Engine, Error, KeeperId, LockName, Result, Token};
use tokio::sync::mpsc::UnboundedReceiver;

/// How many operations a sequence has.
const STEPS: usize = 90;
/// How much longer than its operation an instant may be unclear.
const BLUR: Duration = Duration::from_millis(3);
/// How long a sequence sleeps in all: less than a watch on a number lives.
const SLEEP: Duration = Duration::from_secs(6);

/// Runs so many random sequences on the engine at `url` and on the model.
///
/// # Panics
/// When the two differ, with the seed that repeats it.
pub async fn compare(url: &str, sequences: u64) {
    let given = std::env::var("LOCKKEEPER_SEED").ok().and_then(|seed| seed.parse().ok());
    let first: u64 = given.unwrap_or_else(|| fastrand::u64(..1 << 40));
    let count = if given.is_some() { 1 } else { sequences };
    let mut tasks = Vec::new();
    for seed in first..first + count {
        let url = url.to_owned();
        tasks.push(tokio::spawn(async move { Sequence::start(seed, &url).await.run().await }));
    }
    let mut steps = 0;
    for (task, seed) in tasks.into_iter().zip(first..) {
        match task.await {
            Ok(done) => steps += done,
            Err(panic) => panic!("LOCKKEEPER_SEED={seed} repeats the failure: {panic}"),
        }
    }
    println!("{steps} operations alike in {count} sequences from seed {first}");
    let whole = count as usize * STEPS;
    // On a busy machine many sequences end early, unclear.
    assert!(steps * 5 > whole, "too few operations were clear: {steps} of {whole}");
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

    fn same_answer(&mut self, expected: Result<Answer, Refusal>, actual: Result<Standing>) {
        let alike = match (&expected, &actual) {
            (Ok(Answer::Held { token }), Ok(Standing::Held(grant))) => {
                self.same_token(*token, grant.token)
            }
            (Ok(Answer::Queued { ticket, ahead, .. }), Ok(Standing::Queued(place))) => {
                self.tickets.meet(*ticket, place.ticket) && place.ahead == Some(*ahead)
            }
            (Ok(Answer::Busy), Ok(Standing::Busy)) => true,
            (Ok(Answer::Gone(expected)), Ok(Standing::Gone(actual))) => expected == actual,
            (Err(_), Err(_)) => true,
            _ => false,
        };
        if !alike {
            self.differ("answer", &expected, &actual);
        }
        if let (Err(expected), Err(actual)) = (expected, actual) {
            self.same_refusal(expected, actual);
        }
    }

    fn same_refusal(&self, expected: Refusal, actual: Error) {
        self.same("refusal", Error::from(expected).to_string(), actual.to_string());
    }

    fn same_token(&mut self, expected: Option<Token>, actual: Option<Token>) -> bool {
        match (expected, actual) {
            (Some(expected), Some(actual)) => self.tokens.meet(expected.get(), actual.get()),
            (None, None) => true,
            _ => false,
        }
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

    fn same_push(&mut self, expected: &Event, actual: &Event) {
        let alike = match (expected, actual) {
            (
                Event::HandedOver { claim, ticket, token },
                Event::HandedOver { claim: winner, ticket: number, token: granted },
            ) => {
                claim == winner
                    && self.tickets.meet(*ticket, *number)
                    && self.same_token(*token, *granted)
            }
            (expected, actual) => expected == actual,
        };
        if !alike {
            self.differ("push", expected, actual);
        }
    }

    /// Compares what a bystander sees.
    async fn status(&mut self) -> Result<(), Unclear> {
        let now = Time(wall());
        let expected = self.record.status(self.name.clone(), now);
        let seat = self.random.usize(..self.keepers.len());
        let actual = self.keepers[seat].0.inspect(&self.name).await.unwrap();
        self.clear(now)?;
        let alike = (expected.kind == actual.kind || unused_kind(&expected, &actual))
            && self.same_people(&expected, &actual)
            && self.counter_alike(&expected, &actual)
            && near(expected.closed_for, actual.closed_for, self.apart)
            && expected.cell == actual.cell;
        if !alike {
            self.differ("status", expected, actual);
        }
        Ok(())
    }

    fn counter_alike(&mut self, expected: &Status, actual: &Status) -> bool {
        // A counter that was raised is no token yet, but will be followed alike.
        match (expected.token, actual.token) {
            (Some(expected), Some(actual)) => {
                expected == actual || self.tokens.meet(expected.get(), actual.get())
            }
            (None, None) => true,
            _ => false,
        }
    }

    fn same_people(&mut self, expected: &Status, actual: &Status) -> bool {
        let apart = self.apart;
        let holders = expected.holders.len() == actual.holders.len()
            && expected.holders.iter().zip(&actual.holders).all(|(one, two)| {
                one.claim == two.claim
                    && one.mode == two.mode
                    && one.about == two.about
                    && one.revoked == two.revoked
                    && near(one.age, two.age, apart)
                    && near(one.lease_left, two.lease_left, apart)
                    && self.same_token(one.token, two.token)
            });
        let waiters = expected.waiters.len() == actual.waiters.len()
            && expected.waiters.iter().zip(&actual.waiters).all(|(one, two)| {
                one.claim == two.claim
                    && one.mode == two.mode
                    && one.about == two.about
                    && near(one.age, two.age, apart)
            });
        holders && waiters
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

    fn same<T: PartialEq + Debug>(&self, what: &str, expected: T, actual: T) {
        if expected != actual {
            self.differ(what, expected, actual);
        }
    }

    fn differ(&self, what: &str, expected: impl Debug, actual: impl Debug) -> ! {
        let from = self.log.len().saturating_sub(12);
        panic!(
            "{what} differs after {}\n  model: {expected:?}\n  engine: {actual:?}\n{:#?}\n\
             LOCKKEEPER_SEED={}",
            self.log[from..].join("\n      "),
            self.record,
            self.seed
        );
    }
}

/// Makes sure that pushes reach every keeper: some engines begin to listen
/// only when there is something to hear.
async fn listening(seed: u64, keepers: &mut [(Arc<dyn Engine>, UnboundedReceiver<Event>)]) {
    for index in 0..keepers.len() {
        let other = keepers[(index + 1) % keepers.len()].0.clone();
        let (engine, pushed) = &mut keepers[index];
        let name = LockName::new(format!("listening {seed} {index}")).unwrap();
        let look = CellOp::Look { kind: Kind::Latch, watch: true };
        for round in 0_u32.. {
            engine.cell(&name, look.clone()).await.unwrap();
            let by = CountId(round.to_string().into());
            let keep = Duration::from_secs(60);
            other.cell(&name, CellOp::SetLatch { count: 1, keep, by }).await.unwrap();
            let heard = tokio::time::timeout(Duration::from_millis(300), pushed.recv()).await;
            if heard.is_ok() {
                break;
            }
            assert!(round < 50, "no push arrives");
            other.cell(&name, CellOp::RemoveLatch).await.unwrap();
        }
        other.cell(&name, CellOp::RemoveLatch).await.unwrap();
        while pushed.try_recv().is_ok() {}
    }
}

/// A latch that is over is a name without a kind to one side and, until
/// somebody looks, a latch without a count to the other.
fn unused_kind(one: &Status, two: &Status) -> bool {
    one.cell.is_none() && two.cell.is_none() && one.kind == Some(Kind::Latch)
}

fn claims(random: &mut Rng, seed: u64, name: &LockName) -> Vec<Arc<Claim>> {
    let favourite = random.usize(..3);
    let mut claims: Vec<Arc<Claim>> = Vec::new();
    for number in 0..9_u64 {
        let keeper = KeeperId::from_number(u128::from(seed) * 10 + u128::from(number % 3));
        let family = if random.u8(..12) == 0 { random.usize(..3) } else { favourite };
        let mode = match family {
            0 => Mode::Exclusive,
            1 if random.u8(..3) == 0 => Mode::Write,
            1 => Mode::Read,
            _ => Mode::Permits {
                count: random.u32(1..4),
                of: if random.u8(..10) == 0 { 2 } else { 3 },
            },
        };
        let under = match mode {
            Mode::Read if random.u8(..3) == 0 => {
                claims.iter().find(|claim| claim.mode == Mode::Write).map(|claim| claim.id)
            }
            _ => None,
        };
        claims.push(Arc::new(Claim {
            id: ClaimId { keeper, number, turn: random.u32(..3) },
            name: name.clone(),
            mode,
            lease: Duration::from_millis([110, 250, 600, 30_000][random.usize(..4)]),
            margin: Duration::from_millis(10),
            lock_delay: Duration::from_millis([0, 0, 150][random.usize(..3)]),
            max_waiters: [2, 100][random.usize(..2)],
            under,
            about: Arc::new(About {
                who: format!("who {number}"),
                host: String::new(),
                pid: random.u32(..),
                note: ["", "a note, é 100 %\n"][random.usize(..2)].to_owned(),
            }),
        }));
    }
    claims
}

fn wall() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970"))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn near(one: Duration, two: Duration, apart: Duration) -> bool {
    one.abs_diff(two) <= 3 * (apart + BLUR)
}
