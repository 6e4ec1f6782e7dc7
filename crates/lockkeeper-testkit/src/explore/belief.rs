//! What must be true of what clients believe, at every instant.

use lockkeeper::engine::Mode;
use lockkeeper::model::Held;

use super::law::{Breach, Law};
use super::setup::{Setup, at};
use super::world::{Client, Hand, Phase, World};

/// Checks what clients believe at this instant.
pub(super) fn check(setup: &Setup, world: &World) -> Result<(), Breach> {
    let mut permits = 0;
    for (index, client) in world.clients.iter().enumerate() {
        for hand in believers(world, client) {
            if let Mode::Permits { count, .. } = hand.wish.mode {
                permits += count;
            }
            covered(setup, world, hand)?;
            for other in world.clients.iter().skip(index + 1) {
                for rival in believers(world, other) {
                    let alone = hand.wish.mode.is_exclusive() || rival.wish.mode.is_exclusive();
                    setup.demand(Law::Exclusion, !alone, || {
                        format!("{:?} and {:?} both believe to hold", hand.claim, rival.claim)
                    })?;
                }
            }
        }
    }
    setup.demand(Law::Permits, permits <= world.ghost.capacity, || {
        format!("{permits} permits of {} are believed in", world.ghost.capacity)
    })
}

fn believers<'a>(world: &'a World, client: &'a Client) -> impl Iterator<Item = &'a Hand> {
    let exempt = |hand: &&Hand| !world.ghost.exempt.contains(&hand.claim);
    client.hands().filter(|hand| hand.believes(world.now)).filter(exempt)
}

/// A belief is covered by a grant at least as long.
fn covered(setup: &Setup, world: &World, hand: &Hand) -> Result<(), Breach> {
    let Phase::Holding { token, until, .. } = hand.phase else {
        return Ok(());
    };
    let grant =
        |held: &Held| held.claim == hand.claim && held.token == token && held.until >= at(until);
    setup.demand(Law::Belief, world.record.holders.iter().any(grant), || {
        format!("{:?} believes until {until} without a grant", hand.claim)
    })
}
