//! Whoever can hold does, and whoever must know is told.

use lockkeeper::engine::{Event, Mode};
use lockkeeper::model::{Record, Time};

use super::law::{Breach, Law, Snapshot};
use super::setup::Setup;
use super::world::{Body, Message};

/// Checks what a step passed on, and whom it told.
pub(super) fn check(
    setup: &Setup,
    before: &Snapshot,
    after: &Record,
    request: &Message,
    pushes: &[Event],
    now: Time,
) -> Result<(), Breach> {
    let idle = after
        .queue
        .front()
        .filter(|head| head.until > now && after.closed_until <= now && fits(after, head.mode));
    setup.demand(Law::Wake, idle.is_none(), || format!("{idle:?} waits for a free name"))?;
    handed_over(setup, before, after, pushes, now)?;
    if let Body::Revoke(token, _) = request.body {
        let found = before.holder(request.claim, now).is_some_and(|held| held.token == token);
        let told = pushes
            .iter()
            .any(|push| matches!(push, Event::Is(claim, _) if *claim == request.claim));
        setup.demand(Law::Wake, told || !found, || {
            format!("{:?} was broken and not told", request.claim)
        })?;
    }
    nudged(setup, before, after, request, pushes, now)
}

/// Every ticket that won is told once, with its number and token.
fn handed_over(
    setup: &Setup,
    before: &Snapshot,
    after: &Record,
    pushes: &[Event],
    now: Time,
) -> Result<(), Breach> {
    for held in &after.holders {
        let Some(won) = before.ticket(held.claim, now) else {
            continue;
        };
        let (claim, token) = (held.claim, held.token);
        let expected = Event::HandedOver { claim, ticket: won.number, token };
        let told = pushes.iter().filter(|push| **push == expected).count();
        setup
            .demand(Law::Wake, told == 1, || format!("{claim:?} won and was told {told} times"))?;
    }
    Ok(())
}

/// A name that falls free with nobody in line wakes one watcher, not the herd.
fn nudged(
    setup: &Setup,
    before: &Snapshot,
    after: &Record,
    request: &Message,
    pushes: &[Event],
    now: Time,
) -> Result<(), Breach> {
    let nudges = pushes.iter().filter(|push| matches!(push, Event::Nudge(_))).count();
    let held = before.holders.iter().any(|held| held.until > now);
    setup.demand(Law::Wake, nudges <= 1 || !held, || format!("{nudges} watchers were nudged"))?;
    let free = after.holders.is_empty() && after.closed_until <= now;
    let mut watchers = before.others.watchers.iter();
    let watched = watchers.any(|other| other.until > now && other.claim != request.claim);
    setup.demand(Law::Wake, nudges > 0 || !free || !watched, || {
        "the name is free and no watcher was nudged".to_owned()
    })
}

fn fits(record: &Record, mode: Mode) -> bool {
    match mode {
        Mode::Exclusive | Mode::Write => record.holders.is_empty(),
        Mode::Read => record.holders.iter().all(|held| held.mode == Mode::Read),
        Mode::Permits { count, .. } => {
            record.permits_used() + u64::from(count) <= u64::from(record.capacity)
        }
    }
}
