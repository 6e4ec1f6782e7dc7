//! One name's record, its clients, and everything under way between them.

use std::time::Duration;

use lockkeeper::engine::{Belief, Event, Release, Revoke, Standing};
use lockkeeper::model::{Answer, Effects, Record, Refusal, Time};
use lockkeeper::{ClaimId, Token};

use super::check;
use super::law::{Breach, Ghost, Snapshot};
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
    /// How many requests were never answered; two are not counted down any
    /// more, which keeps the world finite and errs on the unsure side.
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
        self.main.iter_mut().chain(&mut self.below).find(|hand| hand.claim == claim)
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
        !matches!(self, Body::Said(_) | Body::HandedOver(..) | Body::Gone | Body::Nudge)
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
        self.flight.retain(|message| now - message.sent <= setup.limits.age);
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
            self.tell(Message { body: Body::Said(said), ..*request });
        }
        for event in scratch.effects.pushes.drain(..) {
            let (claim, body) = match event {
                Event::HandedOver { claim, ticket, token } => {
                    (claim, Body::HandedOver(ticket, token, at(self.now)))
                }
                Event::Is(claim, Standing::Gone(_)) => (claim, Body::Gone),
                Event::Nudge(claim) => (claim, Body::Nudge),
                _ => continue,
            };
            self.tell(Message { sent: self.now, claim, body });
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
            let answer =
                machine.renew(record, &claim, *belief, Token::new(wish.floor), now, effects);
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
