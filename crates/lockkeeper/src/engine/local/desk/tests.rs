//! The rows against the whole record: the same steps, the same answers.

use std::time::Duration;

use super::*;
use crate::engine::local::place::Place;
use crate::engine::{
    About, Belief, Cell, CellOp, Claim, CountId, Event, Found, Intent, Kind, Mode, Revoke,
};
use crate::model::Refusal;

/// How many claims and names take part.
const CLAIMS: usize = 130;
const NAMES: usize = 4;
const STEPS: usize = 20_000;

/// Everything a step can tell.
#[derive(Debug, PartialEq)]
enum Told {
    Answer(Result<Answer, Refusal>),
    Found(Found),
    Cell(Result<Cell, Refusal>),
}

#[derive(Debug)]
enum Op {
    Acquire(Claim, Intent),
    Renew(Claim, Belief),
    Release(ClaimId, Release),
    Revoke(ClaimId, Option<Token>, Revoke),
    Cell(CellOp),
}

impl Op {
    fn on_record(&self, record: &mut Record, now: Time, effects: &mut Effects) -> Told {
        match self {
            Op::Acquire(claim, intent) => {
                Told::Answer(record.acquire(claim, *intent, Token::ZERO, now, effects))
            }
            Op::Renew(claim, belief) => {
                Told::Answer(Ok(record.renew(claim, *belief, Token::ZERO, now, effects)))
            }
            Op::Release(claim, how) => Told::Found(record.release(*claim, *how, now, effects)),
            Op::Revoke(claim, token, how) => {
                Told::Found(record.revoke(*claim, *token, *how, "why", now, effects))
            }
            Op::Cell(op) => Told::Cell(record.cell(op, now, effects)),
        }
    }

    /// As the engine does it.
    fn on_rows(&self, desk: &mut Desk<'_>, name: &LockName) -> Told {
        let asked = |asked: Result<Asked, Refusal>| Told::Answer(asked.map(|asked| asked.answer));
        match self {
            Op::Acquire(claim, intent) => asked(
                desk.ask(name, claim.id, claim.max_waiters, |record, now, effects| {
                    record.acquire(claim, *intent, Token::ZERO, now, effects)
                })
                .unwrap(),
            ),
            Op::Renew(claim, belief) => asked(
                desk.ask(name, claim.id, u32::MAX, |record, now, effects| {
                    Ok(record.renew(claim, *belief, Token::ZERO, now, effects))
                })
                .unwrap(),
            ),
            Op::Release(claim, _) => self.step(desk, name, Queue::Head(Some(*claim))),
            Op::Revoke(..) => self.step(desk, name, Queue::Head(None)),
            Op::Cell(_) => self.step(desk, name, Queue::Whole),
        }
    }

    fn step(&self, desk: &mut Desk<'_>, name: &LockName, queue: Queue) -> Told {
        let step = |record: &mut Record, now: Time, effects: &mut Effects| {
            self.on_record(record, now, effects)
        };
        desk.step(name, queue, step).unwrap()
    }
}

/// One name, as a whole record, and what its claims were last told.
struct World {
    name: LockName,
    record: Record,
    modes: Vec<Mode>,
    claims: Vec<(ClaimId, Belief)>,
}

impl World {
    fn new(number: usize, floor: Token, random: &mut fastrand::Rng) -> World {
        let modes = match number {
            0 => vec![Mode::Exclusive],
            1 => vec![Mode::Read, Mode::Read, Mode::Read, Mode::Write],
            2 => [1, 1, 3, 40].map(|count| Mode::Permits { count, of: 40 }).to_vec(),
            _ => Vec::new(),
        };
        let claims = (0..CLAIMS).map(|_| (fresh(random), Belief::Queued { ticket: 0 })).collect();
        let name = LockName::new(format!("n\0'{number}")).unwrap();
        World { name, record: Record { counter: floor, ..Record::default() }, modes, claims }
    }

    fn pick(&mut self, random: &mut fastrand::Rng) -> (usize, Op) {
        let at = random.usize(..CLAIMS);
        let (id, belief) = self.claims[at];
        let by = |number: u32| CountId(format!("by {number}").into());
        if self.modes.is_empty() {
            let keep = Duration::from_millis(random.u64(1..3000));
            return (
                at,
                Op::Cell(match random.u8(..10) {
                    0 => CellOp::RemoveLatch,
                    1 => CellOp::Look { kind: Kind::Latch, watch: false },
                    2..5 => {
                        CellOp::SetLatch { count: random.u32(..9), keep, by: by(random.u32(..3)) }
                    }
                    _ => CellOp::CountDown { by: by(random.u32(..12)) },
                }),
            );
        }
        let claim = Claim {
            id,
            name: self.name.clone(),
            // A claim asks for the same every time.
            mode: self.modes[at % self.modes.len()],
            lease: Duration::from_millis(random.u64(100..4000)),
            margin: Duration::ZERO,
            lock_delay: Duration::from_millis(if random.u8(..20) == 0 { 30 } else { 0 }),
            max_waiters: [20, 60, 1000, 1000][random.usize(..4)],
            under: None,
            about: About { who: "me".into(), host: "here".into(), pid: 1, note: String::new() }
                .into(),
        };
        let linger = Duration::from_millis(if random.u8(..20) == 0 { 30 } else { 0 });
        let op = match random.u8(..40) {
            0 => Op::Cell(CellOp::SetCapacity { to: random.u32(20..60) }),
            1 => Op::Revoke(id, self.token(id), Revoke::Now),
            2 => Op::Revoke(id, self.token(id), Revoke::Orderly),
            3..7 => Op::Release(id, Release { linger, unsure: random.u8(..4) == 0 }),
            7..9 => Op::Acquire(claim, Intent::Try),
            9..11 => Op::Acquire(claim, Intent::Watch),
            11..26 => Op::Acquire(claim, Intent::Queue),
            _ => Op::Renew(claim, belief),
        };
        (at, op)
    }

    fn token(&self, id: ClaimId) -> Option<Token> {
        self.record.holders.iter().find(|held| held.claim == id).and_then(|held| held.token)
    }

    /// A finished claim is never used again; what waits or holds is believed.
    fn learn(&mut self, at: usize, told: &Told, random: &mut fastrand::Rng) {
        match told {
            Told::Answer(Ok(Answer::Held { token })) => {
                self.claims[at].1 = Belief::Held { token: *token };
            }
            Told::Answer(Ok(Answer::Queued { ticket, .. })) => {
                self.claims[at].1 = Belief::Queued { ticket: *ticket };
            }
            Told::Answer(Ok(Answer::Gone(_))) if random.bool() => self.claims[at].0 = fresh(random),
            _ => {}
        }
    }
}

/// Keepers and numbers of any size: SQLite's integers have a sign.
fn fresh(random: &mut fastrand::Rng) -> ClaimId {
    let keeper = KeeperId::from_number(random.u128(..));
    ClaimId { keeper, number: random.u64(..), turn: random.u32(..) }
}

/// What must be the same; the order of memories means nothing.
fn comparable(mut record: Record, floor: Token) -> Record {
    record.finished.sort_by_key(|finished| finished.claim);
    record.counter = record.counter.max(floor);
    record.used = Time(0);
    record
}

/// Reading only the head of a queue must never show.
#[test]
fn rows_answer_as_the_whole_record_does() {
    let seed = std::env::var("LOCKKEEPER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("LOCKKEEPER_SEED={seed} repeats the choices of this run");
    let mut random = fastrand::Rng::with_seed(seed);
    let temp = tempfile::tempdir().unwrap();
    let place = Place::prepare(temp.path()).unwrap();
    let db = schema::open(&place, "boot", None).unwrap();
    db.execute_batch("PRAGMA synchronous = OFF").unwrap();
    let us = KeeperId::from_number(1);
    let floor = Desk::new(&db, &place.dir, us).unwrap().floor;
    let mut worlds: Vec<World> =
        (0..NAMES).map(|number| World::new(number, floor, &mut random)).collect();
    let (mut now, mut longest) = (Time(1_000_000_000), 0);
    for step in 0..STEPS {
        let pause = if random.u8(..) == 0 && random.bool() { 2_500_000 } else { 2_500 };
        now.0 += random.u64(..pause);
        let world = &mut worlds[random.usize(..NAMES)];
        let (at, op) = world.pick(&mut random);

        let mut effects = Effects::default();
        let expected = op.on_record(&mut world.record, now, &mut effects);
        let pushes = std::mem::take(&mut effects.pushes);
        let pushes: Vec<_> =
            pushes.into_iter().filter_map(|event: Event| Wake::of(event)).collect();

        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut desk = Desk::new(&db, &place.dir, us).unwrap();
        desk.now = now;
        let told = op.on_rows(&mut desk, &world.name);
        let outbox = desk.outbox();
        db.execute_batch("COMMIT").unwrap();

        assert_eq!(told, expected, "seed {seed}, step {step}: {op:?}");
        assert_eq!(outbox, pushes, "seed {seed}, step {step}: {op:?}");
        let stored = rows::load(&db, &world.name, Queue::Whole).unwrap().record;
        let (stored, whole) = (comparable(stored, floor), comparable(world.record.clone(), floor));
        assert_eq!(stored, whole, "seed {seed}, step {step}: {op:?}");
        longest = longest.max(whole.queue.len());
        world.learn(at, &told, &mut random);
    }
    assert!(longest > WINDOW + 8, "no queue was longer than {longest}: nothing was cut off");
}
