//! What must be true of every step of the server.

use lockkeeper::ClaimId;
use lockkeeper::engine::{Belief, Intent, Mode, Revoke};
use lockkeeper::model::{Held, Record, Ticket, Time};

use super::law::{Breach, Ghost, Law, Snapshot};
use super::setup::{Setup, at};
use super::world::{Body, Message, Said, Scratch, World};
use super::{rows, wake};

/// One step of the server, seen from both sides.
struct Step<'a> {
    setup: &'a Setup,
    before: &'a Snapshot,
    after: &'a Record,
    request: &'a Message,
    now: Time,
}

/// Checks what the server did with a request.
pub(super) fn step(
    setup: &Setup,
    scratch: &Scratch,
    world: &mut World,
    request: &Message,
    said: Option<Said>,
) -> Result<(), Breach> {
    let World { record: after, ghost, .. } = world;
    let step = Step { setup, before: &scratch.before, after, request, now: at(world.now) };
    ghost.capacity = ghost.capacity.max(after.capacity);
    step.close(ghost);
    for held in &after.holders {
        match step.before.holder(held.claim, step.now) {
            Some(known) => step.kept(known, held)?,
            None => step.granted(held, ghost)?,
        }
    }
    if let Some(until) = step.lingers(false) {
        ghost.closed = ghost.closed.max(until);
    }
    for held in &after.holders {
        ghost.highest = ghost.highest.max(held.token.unwrap_or_default());
    }
    step.holders_left(ghost)?;
    step.holders_agree()?;
    step.queue(ghost)?;
    step.tickets_left(ghost)?;
    let pushes = &scratch.effects.pushes;
    wake::check(setup, step.before, after, request, pushes, step.now)?;
    rows::check(setup, step.before, after, &scratch.effects.rows)?;
    if let Some(said) = said {
        step.answered(said)?;
    }
    match request.body {
        Body::Release(_) => step.released(ghost),
        _ => Ok(()),
    }
}

impl Step<'_> {
    /// Whatever the claim had is gone, and nothing of it may come back.
    fn released(&self, ghost: &mut Ghost) -> Result<(), Breach> {
        let (claim, after) = (self.request.claim, self.after);
        let stays = after.holders.iter().any(|held| held.claim == claim)
            || after.queue.iter().any(|ticket| ticket.claim == claim)
            || after.watchers.iter().any(|watcher| watcher.claim == claim);
        self.setup.demand(Law::Leftover, !stays, || format!("{claim:?} was released but stays"))?;
        if !ghost.released.contains(&claim) {
            ghost.released.push(claim);
        }
        Ok(())
    }

    /// Works out on its own until when the name must stay closed.
    fn close(&self, ghost: &mut Ghost) {
        for held in &self.before.holders {
            if held.until <= self.now && !held.lock_delay.is_zero() {
                ghost.closed = ghost.closed.max(held.until + held.lock_delay);
            }
        }
        if let Some(until) = self.lingers(true) {
            ghost.closed = ghost.closed.max(until);
        }
    }

    /// Until when this step's release closes the name: at once after an
    /// exclusive holder, but beside others time may have served somebody
    /// first, in the same step.
    fn lingers(&self, exclusive: bool) -> Option<Time> {
        let Body::Release(how) = self.request.body else {
            return None;
        };
        let held = self.before.holder(self.request.claim, self.now)?;
        let due = !how.linger.is_zero() && held.mode.is_exclusive() == exclusive;
        due.then(|| self.now + how.linger)
    }

    /// A grant that was there before.
    fn kept(&self, known: &Held, held: &Held) -> Result<(), Breach> {
        let claim = held.claim;
        self.setup.demand(Law::Token, known.token == held.token, || {
            format!("{claim:?} had {:?} and now has {:?}", known.token, held.token)
        })?;
        self.setup.demand(Law::Revival, known.since == held.since, || {
            format!("{claim:?} was granted anew while it held")
        })?;
        let until = known.until.max(self.now);
        self.setup.demand(Law::Belief, held.until >= until, || {
            format!("the lease of {claim:?} was shortened")
        })?;
        let broken = known.revoked.is_some();
        self.setup.demand(Law::Owner, !broken || held.until == known.until, || {
            format!("{claim:?} was renewed although it is broken")
        })
    }

    /// A grant that was not there before.
    fn granted(&self, held: &Held, ghost: &Ghost) -> Result<(), Breach> {
        let (setup, claim) = (self.setup, held.claim);
        let ticket = self.before.ticket(claim, self.now);
        let asked = match self.request.body {
            Body::Acquire(_, under) if self.request.claim == claim => Some(under),
            _ => None,
        };
        let renewed = matches!(self.request.body, Body::Renew(..)) && self.request.claim == claim;
        setup.demand(Law::Revival, ticket.is_some() || !renewed, || {
            format!("a renewal brought {claim:?} back")
        })?;
        setup.demand(Law::Creation, ticket.is_some() || asked.is_some(), || {
            format!("{claim:?} holds without having asked")
        })?;
        setup.demand(Law::Finished, !ghost.released.contains(&claim), || {
            format!("{claim:?} was granted after its release")
        })?;
        if let Some(above) = asked.flatten() {
            return self.stepped_down(held, above);
        }
        let in_order = match held.mode.is_exclusive() {
            true => held.token.is_some_and(|token| token > ghost.highest),
            false => held.token.is_none(),
        };
        setup.demand(Law::Token, in_order, || {
            format!("{claim:?} got {:?} after {:?}", held.token, ghost.highest)
        })?;
        setup.demand(Law::Closed, ghost.closed <= self.now, || {
            format!("{claim:?} was granted a closed name")
        })?;
        if let Some(ticket) = ticket {
            setup.demand(Law::Belief, held.until >= ticket.until, || {
                format!("the grant of {claim:?} ends before its ticket would have")
            })?;
        }
        let place = ticket.map_or(u64::MAX, |ticket| ticket.number);
        let waits = |other: &&Ticket| other.number < place && other.until > self.now;
        let overtaken = self.after.queue.iter().find(waits);
        setup.demand(Law::Fifo, overtaken.is_none(), || {
            format!("{claim:?} overtook {:?}", overtaken.map(|ticket| ticket.claim))
        })?;
        // Time may have served somebody before this very step changed it.
        let capacity = self.after.capacity.max(self.before.capacity);
        let used = self.after.permits_used();
        setup.demand(Law::Permits, used <= u64::from(capacity), || {
            format!("{claim:?} makes it {used} permits of {capacity}")
        })
    }

    /// A read beside the write it steps down from, which holds at that instant.
    fn stepped_down(&self, held: &Held, above: ClaimId) -> Result<(), Breach> {
        let above = self.after.holders.iter().find(|other| other.claim == above);
        let fine = held.mode == Mode::Read
            && above.is_some_and(|above| {
                above.mode == Mode::Write && above.token == held.token && above.revoked.is_none()
            });
        self.setup.demand(Law::Token, fine, || format!("{:?} stepped down wrongly", held.claim))
    }

    /// Live grants that are there no more.
    fn holders_left(&self, ghost: &mut Ghost) -> Result<(), Breach> {
        for held in self.before.holders.iter().filter(|held| held.until > self.now) {
            let claim = held.claim;
            if self.after.holders.iter().any(|other| other.claim == claim) {
                continue;
            }
            let fine = claim == self.request.claim
                && match self.request.body {
                    Body::Release(_) => true,
                    Body::Revoke(token, Revoke::Now) => {
                        ghost.exempt.push(claim);
                        token == held.token
                    }
                    _ => false,
                };
            self.setup.demand(Law::Owner, fine, || {
                format!("the live grant of {claim:?} was ended by {:?}", self.request)
            })?;
        }
        Ok(())
    }

    /// The grants there are now go together.
    fn holders_agree(&self) -> Result<(), Breach> {
        let holders = &self.after.holders;
        let Some(writer) = holders.iter().find(|held| held.mode.is_exclusive()) else {
            return Ok(());
        };
        let beside = |held: &Held| {
            held.claim == writer.claim || held.mode == Mode::Read && held.token == writer.token
        };
        self.setup.demand(Law::Exclusion, holders.iter().all(beside), || {
            format!("{:?} is not the only holder in the record", writer.claim)
        })
    }

    /// Tickets are in order, and new ones were asked for.
    fn queue(&self, ghost: &Ghost) -> Result<(), Breach> {
        let mut last = 0;
        for ticket in &self.after.queue {
            let claim = ticket.claim;
            self.setup.demand(Law::Fifo, ticket.number > last, || {
                format!("ticket {} stands behind {last}", ticket.number)
            })?;
            last = ticket.number;
            let known = self.before.queue.iter().any(|old| old.number == ticket.number);
            if known {
                continue;
            }
            let asked = self.request.claim == claim
                && matches!(self.request.body, Body::Acquire(wish, _) if wish.intent == Intent::Queue);
            self.setup.demand(Law::Creation, asked, || {
                format!("{claim:?} has a ticket without having asked for one")
            })?;
            self.setup.demand(Law::Finished, !ghost.released.contains(&claim), || {
                format!("{claim:?} was queued after its release")
            })?;
            let elsewhere = self.before.holder(claim, self.now).is_some()
                || self.before.ticket(claim, self.now).is_some();
            self.setup
                .demand(Law::Creation, !elsewhere, || format!("{claim:?} has a second place"))?;
        }
        Ok(())
    }

    /// Live tickets that are there no more.
    fn tickets_left(&self, ghost: &mut Ghost) -> Result<(), Breach> {
        for ticket in self.before.queue.iter().filter(|ticket| ticket.until > self.now) {
            let claim = ticket.claim;
            let waits = self.after.queue.iter().any(|other| other.number == ticket.number);
            let holds = self.after.holders.iter().any(|held| held.claim == claim);
            let fine = match self.request.body {
                Body::Release(_) if claim == self.request.claim => !waits && !holds,
                Body::Capacity(_) => true,
                // Served and broken in one step. Only without a token can a
                // late break mean an earlier grant of the same claim.
                Body::Revoke(None, Revoke::Now) if claim == self.request.claim && !waits => {
                    ghost.exempt.push(claim);
                    true
                }
                _ => waits || holds,
            };
            self.setup.demand(Law::Fifo, fine, || format!("{claim:?} lost its place"))?;
        }
        Ok(())
    }

    /// The answer is true, and a renewal answered only what was still there.
    fn answered(&self, said: Said) -> Result<(), Breach> {
        let claim = self.request.claim;
        let held = self.after.holders.iter().find(|held| held.claim == claim);
        let ticket = self.after.queue.iter().find(|ticket| ticket.claim == claim);
        let watched = self.after.watchers.iter().any(|watcher| watcher.claim == claim);
        let truth = match said {
            Said::Held(token, _) => held.is_some_and(|held| held.token == token),
            Said::Queued(number) => ticket.is_some_and(|ticket| ticket.number == number),
            _ => true,
        };
        self.setup.demand(Law::Answer, truth, || format!("{claim:?} was told {said:?}"))?;
        match (&self.request.body, said) {
            (Body::Acquire(wish, _), Said::Busy) => {
                let watches = watched && wish.intent != Intent::Watch;
                let clean = held.is_none() && ticket.is_none() && !watches;
                self.setup.demand(Law::Attempt, clean, || {
                    format!("{claim:?} was told busy but left something behind")
                })
            }
            (Body::Acquire(wish, None), Said::Refused) => {
                let live = |ticket: &&Ticket| ticket.until > self.now;
                let waiting = self.after.queue.iter().filter(live).count();
                let full = waiting >= self.setup.limits.waiters as usize;
                let wrong_capacity = matches!(wish.mode, Mode::Permits { .. });
                self.setup.demand(Law::Answer, full || wrong_capacity, || {
                    format!("{claim:?} was refused although only {waiting} wait")
                })
            }
            (Body::Renew(_, belief), Said::Held(..)) => {
                let known = self.before.holder(claim, self.now);
                let waited = self.before.ticket(claim, self.now).is_some();
                let same = match (*belief, known) {
                    (Belief::Held { token }, Some(known)) => token == known.token,
                    // Without a token nobody can tell a place won this very
                    // instant from the grant that ended; its owner, whose
                    // belief has ended long since, does not listen.
                    (Belief::Held { token }, None) => token.is_none() && waited,
                    (Belief::Queued { .. }, known) => known.is_some() || waited,
                };
                let broken = known.is_some_and(|known| known.revoked.is_some());
                self.setup.demand(Law::Revival, same && !broken, || {
                    format!("{claim:?} with {belief:?} was told that it holds")
                })
            }
            _ => Ok(()),
        }
    }
}
