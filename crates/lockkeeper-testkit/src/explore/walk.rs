//! Long random histories of larger worlds.

use fastrand::Rng;
use lockkeeper::engine::{Intent, Mode, Revoke};

use super::action::Action;
use super::future;
use super::law::Breach;
use super::search::{Report, describe};
use super::setup::{Limits, Setup, Wish};
use super::world::{Body, Scratch, World};

/// How many steps a history has before the next one begins, in a new world.
const HISTORY: u64 = 400;

/// Walks through one random history after another, for `steps` steps in all.
///
/// History `n` is drawn from `seed + n`; a breach names the seed that makes
/// it the first history. `tamper` may change what is honest in each world.
pub fn walk(seed: u64, steps: u64, tamper: impl Fn(Setup) -> Setup) -> Report {
    let mut report = Report::default();
    let mut next = seed;
    while report.steps < steps && report.breach.is_none() {
        let mut rng = Rng::with_seed(next);
        let setup = tamper(draw(&mut rng));
        if let Err((breach, way)) = history(&setup, &mut rng, &mut report) {
            let mut lines = vec![format!("LOCKKEEPER_SEED={next}"), format!("{setup:?}")];
            lines.extend(describe(&setup, &way));
            report.breach = Some((breach, lines));
        }
        next = next.wrapping_add(1);
    }
    report
}

fn history(setup: &Setup, rng: &mut Rng, report: &mut Report) -> Result<(), (Breach, Vec<Action>)> {
    let mut world = World::new(setup);
    let mut scratch = Scratch::default();
    let mut way = Vec::new();
    let mut options = Vec::new();
    // Each client has its own liveliness, and loses it now and then, so that
    // crashed, frozen and busy ones meet.
    let mut vigour: Vec<u8> = world.clients.iter().map(|_| rng.u8(1..=10)).collect();
    for step in 0..HISTORY {
        if rng.u8(..) < 4 {
            let client = rng.usize(..vigour.len());
            vigour[client] = rng.u8(0..=10);
        }
        let Some(action) = choose(setup, &world, rng, &vigour, &mut options) else {
            continue;
        };
        report.steps += 1;
        way.push(action);
        world.act(setup, action, &mut scratch).map_err(|breach| (breach, way.clone()))?;
        if step % setup.sample == setup.sample - 1 {
            report.futures += 1;
            future::check(setup, &world).map_err(|breach| (breach, way.clone()))?;
        }
    }
    Ok(())
}

/// Draws what happens next; `None` if it is nothing.
fn choose(
    setup: &Setup,
    world: &World,
    rng: &mut Rng,
    vigour: &[u8],
    options: &mut Vec<Action>,
) -> Option<Action> {
    let holders = world.record.holders.len();
    match rng.u8(..100) {
        0..12 => Some(Action::Tick),
        12..15 => Some(Action::Settle),
        15 if world.revokes > 0 && holders > 0 => {
            let how = if rng.bool() { Revoke::Orderly } else { Revoke::Now };
            Some(Action::Break(rng.usize(..holders) as u8, how))
        }
        16 if world.record.capacity > 0 && setup.limits.revokes > 0 => {
            Some(Action::Capacity(rng.u8(1..=4)))
        }
        17..60 => pass_on(world, rng),
        _ => {
            let client = rng.usize(..vigour.len());
            if rng.u8(..10) >= vigour[client] {
                return None;
            }
            options.clear();
            world.client_actions(setup, client, true, options);
            // Letting go is always possible; it must not be what mostly happens.
            let lets_go = matches!(options.first(), Some(Action::LetGo(_)));
            if lets_go && options.len() > 1 && rng.u8(..4) > 0 {
                options.swap_remove(0);
            }
            rng.choice(options.iter().copied())
        }
    }
}

/// A message arrives, mostly; or twice, or never.
fn pass_on(world: &World, rng: &mut Rng) -> Option<Action> {
    if world.flight.is_empty() {
        return None;
    }
    let index = rng.usize(..world.flight.len());
    Some(match rng.u8(..20) {
        0 => Action::Lose(index as u8),
        // An acquire or an answer arrives as often as it was sent: sending it
        // again is the client's own doing, and the client knows.
        1 if !matches!(world.flight[index].body, Body::Acquire(..) | Body::Said(_)) => {
            Action::Repeat(index as u8)
        }
        _ => Action::Deliver(index as u8),
    })
}

/// A random world.
fn draw(rng: &mut Rng) -> Setup {
    let kind = rng.u8(..3);
    let capacity = rng.u32(1..=3);
    let delays = if rng.u8(..4) == 0 { 3 } else { 1 };
    let clients = rng.usize(2..=5);
    let mut wish = || Wish {
        mode: match kind {
            0 => Mode::Exclusive,
            1 if rng.u8(..3) == 0 => Mode::Write,
            1 => Mode::Read,
            _ => Mode::Permits { count: rng.u32(1..=capacity), of: capacity },
        },
        intent: match rng.u8(..8) {
            0 => Intent::Try,
            1 => Intent::Watch,
            _ => Intent::Queue,
        },
        lock_delay: rng.u64(..delays),
        linger: rng.u64(..delays),
        floor: if rng.u8(..8) == 0 { rng.u64(..20) } else { 0 },
    };
    let wishes = (0..clients).map(|_| vec![wish(), wish()]).collect();
    let mut setup = Setup::new(wishes);
    setup.lease = rng.u64(2..=4);
    setup.downgrade = kind == 1 && rng.bool();
    setup.limits = Limits {
        turns: u32::MAX - 1,
        resends: u8::MAX,
        revokes: rng.u8(..2) * 20,
        flight: usize::MAX,
        renews: 3,
        age: rng.u64(2..=6),
        waiters: if rng.u8(..4) == 0 { 2 } else { 100 },
    };
    setup.sample = 40;
    setup
}
