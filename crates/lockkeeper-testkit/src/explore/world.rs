//! One name's record, its clients, and everything under way between them.

use lockkeeper::engine::{Belief, Event, Intent, Mode, Release, Revoke, Standing};
use lockkeeper::model::{Answer, Effects, Record, Refusal, Time};
use lockkeeper::{ClaimId, Token};
use std::time::Duration;

use super::check::{self, Breach, Ghost, Snapshot};
use super::setup::{Setup, Wish, at};

/// Where a client's claim stands, as far as the client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has asked and knows nothing yet.
    Asking,
    /// It was told that it waits.
    Queued {
        /// With this ticket.
        ticket: u64,
        /// Until when a hand-over to this ticket could be trusted.
        until: u64,
    },
    /// It was told that it holds.
    Holding {
        /// With this token.
        token: Option<Token>,
        /// Until when it believes so.
        until: u64,
        /// When the grant began: unknown to a real client, only for the checker.
        since: Time,
    },
}

/// A claim in a client's hand.
#[derive(Clone, Copy, Debug)]
pub struct Hand {
    /// Its id.
    pub claim: ClaimId,
    /// What it is for.
    pub wish: Wish,
    /// The write claim it steps down from.
    pub under: Option<ClaimId>,
    /// Where it stands.
    pub phase: Phase,
    /// How many requests were never answered; from [`Hand::UNSURE`] on it is
    /// not counted any more, and stays.
    pub unanswered: u8,
    /// When the last request was sent; kept only for the rule that needs it.
    pub sent: u64,
}

impl Hand {
    pub(super) const UNSURE: u8 = 2;

    /// Whether the client acts as a holder at this second.
    pub fn believes(&self, now: u64) -> bool {
        matches!(self.phase, Phase::Holding { until, .. } if now < until)
    }
}

/// One keeper with one acquisition at a time.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// How many claims it has minted.
    pub turns: u32,
    /// Its claim, if it wants anything.
    pub main: Option<Hand>,
    /// The read claim on its way while a write steps down.
    pub below: Option<Hand>,
}

impl Client {
    /// The claims in its hands.
    pub fn hands(&self) -> impl Iterator<Item = &Hand> {
        self.main.iter().chain(&self.below)
    }

    pub(super) fn hand(&mut self, claim: ClaimId) -> Option<&mut Hand> {
        self.main
            .iter_mut()
            .chain(&mut self.below)
            .find(|hand| hand.claim == claim)
    }
}

/// Something under way.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// When it was sent; for a reply, when its request was.
    pub sent: u64,
    /// Which claim it is about.
    pub claim: ClaimId,
    /// What it says.
    pub body: Body,
}

/// What a message says.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// To the server: asks.
    Acquire(Wish, Option<ClaimId>),
    /// To the server: keeps alive.
    Renew(Wish, Belief),
    /// To the server: ends.
    Release(Release),
    /// To the server: takes a grant from its owner.
    Revoke(Option<Token>, Revoke),
    /// To the server: changes the capacity.
    Capacity(u32),
    /// The server's own timer.
    Settle,
    /// To the client: an answer.
    Said(Said),
    /// To the client: its ticket won.
    HandedOver(u64, Option<Token>, Time),
    /// To the client: its claim is over.
    Gone,
    /// To the client: it is worth asking again.
    Nudge,
}

impl Body {
    /// Whether it goes to the server.
    pub fn is_request(&self) -> bool {
        !matches!(
            self,
            Body::Said(_) | Body::HandedOver(..) | Body::Gone | Body::Nudge
        )
    }
}

/// An answer, without what clients do not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It holds, with this token, since then.
    Held(Option<Token>, Time),
    /// It waits with this ticket.
    Queued(u64),
    /// It has nothing.
    Busy,
    /// It is finished.
    Gone,
    /// It cannot be.
    Refused,
}

/// A reached state.
#[derive(Clone, Debug)]
pub struct World {
    /// The second it is, for everybody: clocks do not drift here.
    pub now: u64,
    /// The server.
    pub record: Record,
    /// Those who want the name.
    pub clients: Vec<Client>,
    /// What is under way, in no order.
    pub flight: Vec<Message>,
    /// How many acquires may still be sent again.
    pub resends: u8,
    /// How many grants may still be revoked.
    pub revokes: u8,
    /// What only the checker knows.
    pub ghost: Ghost,
}

/// Memory that steps use again.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) before: Snapshot,
    pub(super) effects: Effects,
}

impl World {
    /// Nothing has happened yet.
    pub fn new(setup: &Setup) -> Self {
        World {
            now: 0,
            record: Record::default(),
            clients: vec![Client::default(); setup.wishes.len()],
            flight: Vec::new(),
            resends: setup.limits.resends,
            revokes: setup.limits.revokes,
            ghost: Ghost::default(),
        }
    }

    /// Lets a second pass; what was under way too long is lost.
    pub(super) fn tick(&mut self, setup: &Setup) {
        self.now += 1;
        let now = self.now;
        self.flight
            .retain(|message| now - message.sent <= setup.limits.age);
        self.ghost.prune(&self.clients, &self.flight);
    }

    /// The server works on a request, and is checked.
    pub(super) fn serve(
        &mut self,
        setup: &Setup,
        request: &Message,
        scratch: &mut Scratch,
    ) -> Result<(), Breach> {
        scratch.before.take(&self.record);
        scratch.effects.clear();
        let (record, effects) = (&mut self.record, &mut scratch.effects);
        let said = work(setup, record, request, at(self.now), effects);
        check::step(setup, scratch, self, request, said)?;
        if let Some(said) = said {
            self.tell(Message {
                body: Body::Said(said),
                ..*request
            });
        }
        for event in scratch.effects.pushes.drain(..) {
            let (claim, body) = match event {
                Event::HandedOver {
                    claim,
                    ticket,
                    token,
                } => (claim, Body::HandedOver(ticket, token, at(self.now))),
                Event::Is(claim, Standing::Gone(_)) => (claim, Body::Gone),
                Event::Nudge(claim) => (claim, Body::Nudge),
                _ => continue,
            };
            self.tell(Message {
                sent: self.now,
                claim,
                body,
            });
        }
        self.ghost.prune(&self.clients, &self.flight);
        Ok(())
    }

    /// Sends something to a client, unless it could only ignore it.
    fn tell(&mut self, message: Message) {
        let client = &mut self.clients[message.claim.number as usize];
        if client.hand(message.claim).is_some() {
            self.flight.push(message);
        }
    }

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
            Phase::Holding {
                token: own, until, ..
            } => {
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

/// Lets the server do what a request asks; answers what has an answer.
fn work(
    setup: &Setup,
    record: &mut Record,
    request: &Message,
    now: Time,
    effects: &mut Effects,
) -> Option<Said> {
    let (machine, id) = (setup.machine, request.claim);
    match &request.body {
        Body::Acquire(wish, under) => {
            let claim = setup.claim(id, wish, *under);
            let floor = Token::new(wish.floor);
            let answer = machine.acquire(record, &claim, wish.intent, floor, now, effects);
            Some(said(record, id, answer))
        }
        Body::Renew(wish, belief) => {
            let claim = setup.claim(id, wish, None);
            let answer = machine.renew(
                record,
                &claim,
                *belief,
                Token::new(wish.floor),
                now,
                effects,
            );
            Some(said(record, id, Ok(answer)))
        }
        Body::Release(how) => {
            machine.release(record, id, *how, now, effects);
            None
        }
        Body::Revoke(token, how) => {
            machine.revoke(record, id, *token, *how, now, effects);
            None
        }
        Body::Capacity(to) => {
            // A refusal changes nothing, which is all that matters here.
            let _ = machine.set_capacity(record, *to, now, effects);
            None
        }
        _ => {
            machine.settle(record, now, effects);
            None
        }
    }
}

fn said(record: &Record, claim: ClaimId, answer: Result<Answer, Refusal>) -> Said {
    match answer {
        Ok(Answer::Held { token }) => {
            let held = record.holders.iter().find(|held| held.claim == claim);
            Said::Held(token, held.map_or(Time::default(), |held| held.since))
        }
        Ok(Answer::Queued { ticket, .. }) => Said::Queued(ticket),
        Ok(Answer::Busy) => Said::Busy,
        Ok(Answer::Gone(_)) => Said::Gone,
        Err(_) => Said::Refused,
    }
}

/// A release as a client sends it.
pub(super) fn ending(hand: &Hand, unsure: bool) -> Body {
    let linger = match hand.phase {
        Phase::Holding { .. } => Duration::from_secs(hand.wish.linger),
        _ => Duration::ZERO,
    };
    Body::Release(Release { linger, unsure })
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
