//! What clients do, and what they make of what they hear.
//!
//! A client may always do nothing: crashed, frozen and slow clients are those
//! whose turn does not come. Whether it believes to hold is a comparison with
//! the time at the very instant, as in a guard's `is_held()`.

use lockkeeper::engine::{Belief, Intent, Mode, Revoke};
use lockkeeper::model::Time;
use lockkeeper::{ClaimId, Token};

use super::law::{Breach, Law};
use super::setup::{Setup, TICKET_SECS, Validity, Wish};
use super::world::{Body, Hand, Message, Phase, Said, World, ending};

impl World {
    /// A client with empty hands wants something.
    pub(super) fn ask(&mut self, setup: &Setup, client: usize, wish: Wish) {
        let hand = self.mint(client, wish, None);
        self.clients[client].main = Some(hand);
        self.send(setup, hand.claim, Body::Acquire(wish, None));
    }

    /// A writer steps down: asks for a read claim under its write claim.
    pub(super) fn step_down(&mut self, setup: &Setup, client: usize) {
        let Some(main) = self.clients[client].main else {
            return;
        };
        let wish = Wish { mode: Mode::Read, intent: Intent::Queue, ..main.wish };
        let hand = self.mint(client, wish, Some(main.claim));
        self.clients[client].below = Some(hand);
        self.send(setup, hand.claim, Body::Acquire(wish, hand.under));
    }

    fn mint(&mut self, client: usize, wish: Wish, under: Option<ClaimId>) -> Hand {
        let claim = Setup::id(client, self.clients[client].turns);
        self.clients[client].turns += 1;
        Hand { claim, wish, under, phase: Phase::Asking, unanswered: 0, sent: 0 }
    }

    /// No answer has come: the same claim is asked for again.
    pub(super) fn ask_again(&mut self, setup: &Setup, hand: &Hand) {
        self.send(setup, hand.claim, Body::Acquire(hand.wish, hand.under));
    }

    /// Keeps a place or a grant alive; a pushed hand-over is confirmed so.
    pub(super) fn beat(&mut self, setup: &Setup, hand: &Hand) {
        let belief = match hand.phase {
            Phase::Asking => return,
            Phase::Queued { ticket, .. } => Belief::Queued { ticket },
            Phase::Holding { token, .. } => Belief::Held { token },
        };
        self.send(setup, hand.claim, Body::Renew(hand.wish, belief));
    }

    /// Whether a beat of this hand would be news to the server.
    pub(super) fn may_beat(&self, setup: &Setup, hand: &Hand) -> bool {
        let fresh = match hand.phase {
            Phase::Asking => return false,
            Phase::Queued { until, .. } => until >= self.now + TICKET_SECS,
            // A guard that is lost is finished, not renewed.
            Phase::Holding { until, .. } => until <= self.now || until >= self.now + setup.lease,
        };
        let mut renews = 0;
        for message in self.flight.iter().filter(|message| message.claim == hand.claim) {
            if matches!(message.body, Body::Renew(..)) {
                renews += 1;
            }
            if message.sent == self.now && matches!(message.body, Body::Renew(..) | Body::Said(_)) {
                return false;
            }
        }
        !fresh && renews < setup.limits.renews
    }

    /// Lets go of a claim: released, cancelled, or given up as lost.
    pub(super) fn let_go(&mut self, setup: &Setup, hand: &Hand) {
        let unsure = hand.unanswered > 0 && setup.rules.unsure;
        self.forget(hand.claim);
        self.flight.push(Message { sent: self.now, claim: hand.claim, body: ending(hand, unsure) });
    }

    /// Lets go only if a request may still be under way; otherwise there is
    /// nothing left to end.
    fn finish(&mut self, setup: &Setup, hand: &Hand) {
        match hand.unanswered {
            0 => self.forget(hand.claim),
            _ => self.let_go(setup, hand),
        }
    }

    /// Empties the hand; what is still under way to it would be ignored.
    fn forget(&mut self, claim: ClaimId) {
        let client = &mut self.clients[claim.number as usize];
        if client.main.is_some_and(|hand| hand.claim == claim) {
            client.main = client.below.take();
        } else if client.below.is_some_and(|hand| hand.claim == claim) {
            client.below = None;
        }
        self.flight.retain(|message| message.claim != claim || message.body.is_request());
    }

    fn send(&mut self, setup: &Setup, claim: ClaimId, body: Body) {
        let sent = self.now;
        if let Some(hand) = self.clients[claim.number as usize].hand(claim) {
            hand.unanswered = (hand.unanswered + 1).min(Hand::UNSURE);
            // Noted only where somebody looks, or states would differ for nothing.
            if setup.rules.validity == Validity::Sent {
                hand.sent = sent;
            }
        }
        self.flight.push(Message { sent, claim, body });
    }

    /// Somebody breaks a grant that it saw in the record.
    pub(super) fn break_grant(&mut self, holder: usize, how: Revoke) {
        let Some(held) = self.record.holders.get(holder) else {
            return;
        };
        let (claim, body) = (held.claim, Body::Revoke(held.token, how));
        self.flight.push(Message { sent: self.now, claim, body });
        self.revokes -= 1;
    }

    /// A client hears something.
    pub(super) fn hear(&mut self, setup: &Setup, message: &Message) -> Result<(), Breach> {
        let now = self.now;
        let client = &mut self.clients[message.claim.number as usize];
        let Some(hand) = client.hand(message.claim) else {
            return Ok(());
        };
        if matches!(message.body, Body::Said(_)) && hand.unanswered < Hand::UNSURE {
            hand.unanswered = hand.unanswered.saturating_sub(1);
        }
        if matches!(hand.phase, Phase::Holding { until, .. } if until <= now) {
            // Lost already, whatever anybody says.
            return Ok(());
        }
        match message.body {
            Body::Said(Said::Held(token, since)) => {
                self.hear_held(setup, message, token, since)?;
            }
            Body::Said(Said::Queued(ticket)) => note_place(hand, ticket, message.sent),
            Body::Said(Said::Busy) if hand.wish.intent == Intent::Watch => {}
            Body::Said(Said::Busy | Said::Gone | Said::Refused) => {
                let hand = *hand;
                self.finish(setup, &hand);
            }
            Body::HandedOver(ticket, token, since) => {
                take_over(setup, hand, ticket, token, since, now);
            }
            Body::Gone => {
                // Letting go is the acknowledgement that an orderly break waits for.
                let hand = *hand;
                self.let_go(setup, &hand);
            }
            Body::Nudge => {
                let hand = *hand;
                if hand.phase == Phase::Asking {
                    self.ask_again(setup, &hand);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn hear_held(
        &mut self,
        setup: &Setup,
        message: &Message,
        token: Option<Token>,
        since: Time,
    ) -> Result<(), Breach> {
        let (now, until) = (self.now, message.sent + setup.lease);
        let client = &mut self.clients[message.claim.number as usize];
        let Some(hand) = client.hand(message.claim) else {
            return Ok(());
        };
        if let Phase::Holding { token: own, until: known, since: began } = &mut hand.phase {
            if until <= now {
                return Ok(());
            }
            setup.demand(Law::Revival, (*own, *began) == (token, since), || {
                format!("{:?} was renewed into another grant", message.claim)
            })?;
            *known = until.max(*known);
            return Ok(());
        }
        if until <= now {
            // Over before it was heard of: finished like any lost claim.
            let hand = *hand;
            self.let_go(setup, &hand);
            return Ok(());
        }
        hand.phase = Phase::Holding { token, until, since };
        if hand.under.is_none() {
            return Ok(());
        }
        let (below, above) = (*hand, client.main.filter(|main| main.claim != message.claim));
        match above {
            Some(above) if !setup.rules.match_write || is_token(&above, token) => {
                setup.demand(Law::Revival, is_token(&above, token), || {
                    format!("{:?} stepped down from a write that was over", above.claim)
                })?;
                // The step down is done, so the write is released.
                self.let_go(setup, &above);
            }
            // The write that was meant is over. The record may hold a later
            // grant of the same claim, which a late request brought about;
            // others may have written in between.
            _ => self.let_go(setup, &below),
        }
        Ok(())
    }
}

fn is_token(hand: &Hand, expected: Option<Token>) -> bool {
    matches!(hand.phase, Phase::Holding { token, .. } if token == expected)
}

/// Notes the latest ticket, and how long a hand-over to it can be trusted.
fn note_place(hand: &mut Hand, ticket: u64, sent: u64) {
    let mut until = sent + TICKET_SECS;
    match hand.phase {
        Phase::Holding { .. } => return,
        Phase::Queued { ticket: later, .. } if later > ticket => return,
        Phase::Queued { ticket: same, until: known } if same == ticket => until = until.max(known),
        _ => {}
    }
    hand.phase = Phase::Queued { ticket, until };
}

/// Takes a pushed hand-over for what it is worth.
fn take_over(
    setup: &Setup,
    hand: &mut Hand,
    won: u64,
    token: Option<Token>,
    since: Time,
    now: u64,
) {
    let Phase::Queued { ticket, until } = hand.phase else {
        return;
    };
    if ticket != won && setup.rules.match_ticket {
        return;
    }
    let until = match setup.rules.validity {
        Validity::Answered => until,
        Validity::Arrival => now + TICKET_SECS,
        Validity::Sent => hand.sent + TICKET_SECS,
    };
    if now < until {
        hand.phase = Phase::Holding { token, until, since };
    }
}
