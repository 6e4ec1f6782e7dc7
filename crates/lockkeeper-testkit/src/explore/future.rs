//! What must come true from any state on: nobody is stuck, nothing stays.

use std::time::Duration;

use lockkeeper::engine::{Belief, Mode, REMEMBER, Release};
use lockkeeper::model::{Answer, Effects, Record, Refusal};
use lockkeeper::{ClaimId, Token};

use super::law::{Breach, Law};
use super::setup::{Setup, TICKET_SECS, Wish, at};
use super::world::{Body, Hand, Phase, World};

/// Checks both promises about the future of a state.
pub(super) fn check(setup: &Setup, world: &World) -> Result<(), Breach> {
    for hand in world.clients.iter().flat_map(|client| client.hands()) {
        if let Phase::Queued { ticket, .. } = hand.phase {
            is_served(setup, world, hand, ticket)?;
        }
    }
    nothing_stays(setup, world)
}

/// All fall silent but one who waits: its turn comes.
fn is_served(setup: &Setup, world: &World, hand: &Hand, ticket: u64) -> Result<(), Breach> {
    let mut lonely = Lonely {
        setup,
        record: world.record.clone(),
        wish: hand.wish,
        place: Some((hand.claim, ticket)),
        turn: hand.claim,
        effects: Effects::default(),
    };
    // A lease or a closed time runs out, then a silent winner's ticket, and
    // each may close the name once more; then comes the next beat.
    let delays = setup.wishes.iter().flatten().map(|wish| wish.lock_delay.max(wish.linger));
    let delay = delays.max().unwrap_or(0);
    let bound = setup.lease.max(delay) + TICKET_SECS + 2 * delay + 1;
    let served = (world.now..=world.now + bound).any(|second| lonely.beat(second));
    setup.demand(Law::Stuck, served, || {
        format!("{:?} still waits after {bound} seconds alone", hand.claim)
    })
}

/// The one client that is still there.
struct Lonely<'a> {
    setup: &'a Setup,
    record: Record,
    wish: Wish,
    place: Option<(ClaimId, u64)>,
    turn: ClaimId,
    effects: Effects,
}

impl Lonely<'_> {
    /// Keeps its place, or asks for a new one. Returns whether it holds.
    fn beat(&mut self, second: u64) -> bool {
        let now = at(second);
        let Lonely { setup, record, effects, .. } = self;
        if let Some((id, ticket)) = self.place {
            let claim = setup.claim(id, &self.wish, None);
            let belief = Belief::Queued { ticket };
            match setup.machine.renew(record, &claim, belief, Token::ZERO, now, effects) {
                Answer::Held { .. } => return true,
                Answer::Queued { ticket, .. } => {
                    self.place = Some((id, ticket));
                    return false;
                }
                _ => self.place = None,
            }
        }
        self.turn.turn += 1000;
        let claim = setup.claim(self.turn, &self.wish, None);
        match setup.machine.acquire(record, &claim, self.wish.intent, Token::ZERO, now, effects) {
            Ok(Answer::Held { .. }) => return true,
            Ok(Answer::Queued { ticket, .. }) => self.place = Some((self.turn, ticket)),
            Err(Refusal::WrongCapacity { stored }) => {
                if let Mode::Permits { count, .. } = self.wish.mode {
                    self.wish.mode = Mode::Permits { count: count.min(stored), of: stored };
                }
            }
            _ => {}
        }
        false
    }
}

/// All let go, what is under way arrives late, and then time passes.
fn nothing_stays(setup: &Setup, world: &World) -> Result<(), Breach> {
    let (mut record, mut effects) = (world.record.clone(), Effects::default());
    let hands = || world.clients.iter().flat_map(|client| client.hands());
    let now = at(world.now);
    for hand in hands() {
        let unsure = setup.rules.unsure;
        let how = Release { linger: Duration::ZERO, unsure };
        setup.machine.release(&mut record, hand.claim, how, now, &mut effects);
    }
    for message in &world.flight {
        match &message.body {
            Body::Acquire(wish, under) => {
                let claim = setup.claim(message.claim, wish, *under);
                let floor = Token::new(wish.floor);
                // A refusal changes nothing.
                let _ = setup.machine.acquire(
                    &mut record,
                    &claim,
                    wish.intent,
                    floor,
                    now,
                    &mut effects,
                );
            }
            Body::Renew(wish, belief) => {
                let claim = setup.claim(message.claim, wish, None);
                setup.machine.renew(&mut record, &claim, *belief, Token::ZERO, now, &mut effects);
            }
            _ => {}
        }
    }
    for hand in hands() {
        let held = record.holders.iter().any(|held| held.claim == hand.claim);
        let queued = record.queue.iter().any(|ticket| ticket.claim == hand.claim);
        setup.demand(Law::Finished, !held && !queued, || {
            format!("{:?} came back after its release", hand.claim)
        })?;
    }
    let later = now + REMEMBER + Duration::from_secs(setup.lease + TICKET_SECS);
    setup.machine.settle(&mut record, later, &mut effects);
    let empty = record.holders.is_empty()
        && record.queue.is_empty()
        && record.watchers.is_empty()
        && record.finished.is_empty();
    setup.demand(Law::Leftover, empty, || format!("{record:?} was left behind"))
}
