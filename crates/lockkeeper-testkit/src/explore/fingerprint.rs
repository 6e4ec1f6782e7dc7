//! Telling states apart.

use lockkeeper::engine::{Belief, Intent, Mode, Revoke};
use lockkeeper::model::Time;
use lockkeeper::{ClaimId, Token};

use super::setup::{Wish, at};
use super::world::{Body, Hand, Message, Phase, Said, World};

impl World {
    /// A number for the state, equal for states that behave alike.
    ///
    /// Times count from now, and what only people look at is left out, so
    /// that waiting and renewing for ever come back to the same states.
    pub fn fingerprint(&self) -> u64 {
        let mut mix = Mix::default();
        self.mix_record(&mut mix);
        for client in &self.clients {
            mix.add(u64::from(client.turns));
            for hand in client.hands() {
                self.mix_hand(hand, &mut mix);
            }
        }
        // A sum, because messages are in no order.
        let flight = self.flight.iter().map(|message| self.mix_message(message));
        mix.add(flight.fold(0, u64::wrapping_add));
        mix.add(u64::from(self.resends) << 8 | u64::from(self.revokes));
        mix.add(self.ghost.highest.get());
        mix.add(self.left(self.ghost.closed));
        for claim in self.ghost.released.iter().chain(&self.ghost.exempt) {
            mix.add(who(*claim));
        }
        mix.done()
    }

    fn mix_record(&self, mix: &mut Mix) {
        let record = &self.record;
        mix.add(u64::from(record.capacity) << 32 | record.last_ticket);
        mix.add(record.counter.get());
        mix.add(self.left(record.closed_until));
        for held in &record.holders {
            mix.add(who(held.claim) | 1 << 40 | u64::from(held.revoked.is_some()) << 41);
            mix.add(token(held.token) << 8 | mode(held.mode));
            // A holder that failed closes the name from its lease's end on.
            mix.add(self.left(held.until) << 32 | self.left(held.until + held.lock_delay));
        }
        for ticket in &record.queue {
            mix.add(who(ticket.claim) | 1 << 42);
            mix.add(ticket.number << 32 | self.left(ticket.until));
            mix.add(mode(ticket.mode) << 32 | ticket.lock_delay.as_secs());
        }
        for watcher in &record.watchers {
            mix.add(who(watcher.claim) | 1 << 43);
            mix.add(self.left(watcher.until));
        }
        for finished in &record.finished {
            // Remembered longer than anything is under way: how long still
            // makes no difference.
            mix.add(who(finished.claim) | 1 << 44);
        }
    }

    fn mix_hand(&self, hand: &Hand, mix: &mut Mix) {
        mix.add(who(hand.claim));
        mix.add(wish(&hand.wish));
        mix.add(u64::from(hand.unanswered) | hand.under.map_or(0, who) << 8);
        mix.add((hand.sent + 9).saturating_sub(self.now));
        match hand.phase {
            Phase::Asking => mix.add(1),
            Phase::Queued { ticket, until } => {
                mix.add(2 | ticket << 8 | until.saturating_sub(self.now) << 32);
            }
            Phase::Holding { token: own, until, .. } => {
                mix.add(3 | token(own) << 8 | until.saturating_sub(self.now) << 32);
            }
        }
    }

    fn mix_message(&self, message: &Message) -> u64 {
        let mut mix = Mix::default();
        mix.add(who(message.claim) | (self.now - message.sent) << 40);
        match &message.body {
            Body::Acquire(asked, under) => {
                mix.add(1 | wish(asked) << 8);
                mix.add(under.map_or(0, who));
            }
            Body::Renew(_, Belief::Queued { ticket }) => mix.add(2 | ticket << 8),
            Body::Renew(_, Belief::Held { token: own }) => mix.add(3 | token(*own) << 8),
            Body::Release(how) => {
                mix.add(4 | u64::from(how.unsure) << 8 | how.linger.as_secs() << 16)
            }
            Body::Revoke(victim, how) => {
                mix.add(5 | u64::from(*how == Revoke::Now) << 8 | token(*victim) << 16);
            }
            Body::Capacity(to) => mix.add(6 | u64::from(*to) << 8),
            Body::Settle => mix.add(7),
            Body::Said(Said::Held(own, _)) => mix.add(8 | token(*own) << 8),
            Body::Said(Said::Queued(ticket)) => mix.add(9 | ticket << 8),
            Body::Said(Said::Busy) => mix.add(10),
            Body::Said(Said::Gone) => mix.add(11),
            Body::Said(Said::Refused) => mix.add(12),
            Body::HandedOver(ticket, own, _) => mix.add(13 | ticket << 8 | token(*own) << 32),
            Body::Gone => mix.add(14),
            Body::Nudge => mix.add(15),
        }
        mix.done()
    }

    /// Seconds until then.
    fn left(&self, then: Time) -> u64 {
        then.since(at(self.now)).as_secs()
    }
}

fn who(claim: ClaimId) -> u64 {
    (claim.number + 1) << 16 | u64::from(claim.turn)
}

fn token(token: Option<Token>) -> u64 {
    token.map_or(0, Token::get)
}

fn wish(wish: &Wish) -> u64 {
    mode(wish.mode) | intent(wish.intent) << 8 | wish.lock_delay << 16 | wish.linger << 24
}

fn mode(mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => 1,
        Mode::Write => 2,
        Mode::Read => 3,
        Mode::Permits { count, .. } => 4 + u64::from(count),
    }
}

fn intent(intent: Intent) -> u64 {
    match intent {
        Intent::Try => 1,
        Intent::Watch => 2,
        Intent::Queue => 3,
    }
}

/// A quick 64-bit hash: with a few million states, a collision that hides one
/// of them is a matter of one in a million runs.
#[derive(Default)]
struct Mix(u64);

impl Mix {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 29;
    }

    fn done(self) -> u64 {
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        mixed ^ mixed >> 32
    }
}
