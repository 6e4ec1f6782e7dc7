//! Everything that can happen next.

use lockkeeper::engine::{Intent, Revoke};
use lockkeeper::{ClaimId, KeeperId};

use super::belief;
use super::law::Breach;
use super::setup::Setup;
use super::world::{Body, Hand, Message, Phase, Scratch, World};

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A second passes.
    Tick,
    /// The server's timer fires.
    Settle,
    /// A client mints a claim for one of its wishes, and asks.
    Ask(u8, u8),
    /// A client asks again for the same claim.
    Again(u8),
    /// A client renews its claim.
    Beat(u8),
    /// A client lets go.
    LetGo(u8),
    /// A writer asks for the read claim to step down to.
    StepDown(u8),
    /// Somebody breaks the grant of the holder at this place.
    Break(u8, Revoke),
    /// Somebody changes the capacity.
    Capacity(u8),
    /// The message at this place arrives.
    Deliver(u8),
    /// The message at this place arrives, and will once more.
    Repeat(u8),
    /// The message at this place is lost.
    Lose(u8),
}

impl World {
    /// Lists what can happen next. Losing a message is not among it: one that
    /// is never chosen is lost when it is too old.
    pub(super) fn actions(&self, setup: &Setup, out: &mut Vec<Action>) {
        out.clear();
        for index in 0..self.flight.len() {
            // Two equal messages lead to the same state.
            out.push(Action::Deliver(index as u8));
        }
        let room = self.flight.len() < setup.limits.flight;
        for client in 0..self.clients.len() {
            self.client_actions(setup, client, room, out);
        }
        if self.revokes > 0 && room {
            for holder in 0..self.record.holders.len() as u8 {
                out.extend([Revoke::Orderly, Revoke::Now].map(|how| Action::Break(holder, how)));
            }
        }
        if setup.timer {
            out.push(Action::Settle);
        }
        out.push(Action::Tick);
    }

    pub(super) fn client_actions(
        &self,
        setup: &Setup,
        index: usize,
        room: bool,
        out: &mut Vec<Action>,
    ) {
        let (client, id) = (&self.clients[index], index as u8);
        let Some(main) = &client.main else {
            if room && client.turns < setup.limits.turns {
                out.extend((0..setup.wishes[index].len() as u8).map(|wish| Action::Ask(id, wish)));
            }
            return;
        };
        out.push(Action::LetGo(id));
        if !room {
            return;
        }
        let asks = main.phase == Phase::Asking && self.resends > 0;
        if asks && (main.wish.intent == Intent::Watch || self.is_silent(main)) {
            out.push(Action::Again(id));
        }
        if client.hands().any(|hand| self.may_beat(setup, hand)) {
            out.push(Action::Beat(id));
        }
        // A reader that tries it is refused.
        let steps = setup.downgrade && client.below.is_none();
        if steps && main.believes(self.now) && client.turns <= setup.limits.turns {
            out.push(Action::StepDown(id));
        }
    }

    /// Whether a request for this claim has not been sent in this very second.
    fn is_silent(&self, hand: &Hand) -> bool {
        !self.flight.iter().any(|message| {
            message.claim == hand.claim
                && message.sent == self.now
                && matches!(message.body, Body::Acquire(..))
        })
    }

    /// Lets something happen, and checks it.
    ///
    /// # Errors
    /// The first law that does not hold.
    pub fn act(
        &mut self,
        setup: &Setup,
        action: Action,
        scratch: &mut Scratch,
    ) -> Result<(), Breach> {
        match action {
            Action::Tick => self.tick(setup),
            Action::Settle => self.serve(setup, &self.of_nobody(Body::Settle), scratch)?,
            Action::Ask(client, wish) => {
                let wish = setup.wishes[usize::from(client)][usize::from(wish)];
                self.ask(setup, usize::from(client), wish);
            }
            Action::Again(client) => {
                if let Some(main) = self.clients[usize::from(client)].main {
                    self.resends = self.resends.saturating_sub(1);
                    self.ask_again(setup, &main);
                }
            }
            Action::Beat(client) => {
                let client = &self.clients[usize::from(client)];
                for hand in client.main.into_iter().chain(client.below) {
                    if self.may_beat(setup, &hand) {
                        self.beat(setup, &hand);
                    }
                }
            }
            Action::LetGo(client) => {
                let client = &self.clients[usize::from(client)];
                for hand in client.below.into_iter().chain(client.main) {
                    self.let_go(setup, &hand);
                }
            }
            Action::StepDown(client) => self.step_down(setup, usize::from(client)),
            Action::Break(holder, how) => self.break_grant(usize::from(holder), how),
            Action::Capacity(to) => {
                let message = self.of_nobody(Body::Capacity(u32::from(to)));
                self.flight.push(message);
            }
            Action::Deliver(index) => {
                let message = self.flight.swap_remove(usize::from(index));
                self.deliver(setup, &message, scratch)?;
            }
            Action::Repeat(index) => {
                let message = self.flight[usize::from(index)];
                self.deliver(setup, &message, scratch)?;
            }
            Action::Lose(index) => {
                self.flight.swap_remove(usize::from(index));
                self.ghost.prune(&self.clients, &self.flight);
            }
        }
        belief::check(setup, self)
    }

    fn deliver(
        &mut self,
        setup: &Setup,
        message: &Message,
        scratch: &mut Scratch,
    ) -> Result<(), Breach> {
        match message.body.is_request() {
            true => self.serve(setup, message, scratch),
            false => self.hear(setup, message),
        }
    }

    /// A message that is about no claim.
    fn of_nobody(&self, body: Body) -> Message {
        let claim = ClaimId { keeper: KeeperId::from_number(0), number: 0, turn: u32::MAX };
        Message { sent: self.now, claim, body }
    }
}
