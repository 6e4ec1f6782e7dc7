//! Holders and the queue behind them: mutex, read/write lock, semaphore.

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Effects, Finished, Held, Record, Refusal, Row, Ticket, Time, Watcher};
use crate::cause::Cause;
use crate::engine::{
    Belief, Claim, Event, Found, Holder, Intent, Kind, Mode, REMEMBER, Release, Revoke, Standing,
    TICKET, Waiter,
};
use crate::token::{ClaimId, Token};

impl Record {
    /// Asks once for a claim.
    ///
    /// A free name with nobody in line is granted for the full lease. A claim
    /// that holds or waits already keeps what it has, and its lease or ticket
    /// starts anew. A busy name leaves behind what `intent` allows.
    ///
    /// # Errors
    /// A [`Refusal`] when the name cannot be used like this; nothing changed.
    pub fn acquire(
        &mut self,
        claim: &Claim,
        intent: Intent,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Answer, Refusal> {
        self.settle(now, effects);
        if let Some(finished) = self.finished.iter().find(|finished| finished.claim == claim.id) {
            return Ok(Answer::Gone(finished.cause.clone()));
        }
        if let Ok(index) = self.holder(claim.id) {
            return Ok(self.extend(index, claim.lease, now, effects));
        }
        if let Some(index) = self.queue.iter().position(|ticket| ticket.claim == claim.id) {
            return Ok(self.refresh(index, now, effects));
        }
        self.check_use(claim)?;
        if let Some(above) = claim.under {
            return self.step_down(claim, above, now, effects);
        }
        if self.queue.is_empty() && self.closed_until <= now && self.fits(claim.mode) {
            self.use_as(claim.mode.kind(), now, effects)?;
            let token = self.next_token(claim.mode, floor)?;
            self.grant(held(claim, token, now), effects);
            return Ok(Answer::Held { token });
        }
        match intent {
            Intent::Try => Ok(Answer::Busy),
            Intent::Watch => {
                self.watch(claim.id, now, effects);
                Ok(Answer::Busy)
            }
            Intent::Queue => self.enqueue(claim, now, effects),
        }
    }

    /// Keeps a claim alive, if it still is what its keeper believes.
    ///
    /// Never creates anything: a claim that is not here is gone. A believed
    /// place that has been granted meanwhile is confirmed for the full lease.
    pub fn renew(
        &mut self,
        claim: &Claim,
        belief: Belief,
        floor: Token,
        now: Time,
        effects: &mut Effects,
    ) -> Answer {
        self.settle(now, effects);
        if let Ok(index) = self.holder(claim.id) {
            let token = self.holders[index].token;
            return match belief {
                Belief::Held { token: believed } if believed != token => {
                    Answer::Gone(Cause::TakenOver)
                }
                _ => {
                    self.raise(floor, effects);
                    self.extend(index, claim.lease, now, effects)
                }
            };
        }
        let cause = self.finished.iter().find(|finished| finished.claim == claim.id);
        if let Some(finished) = cause {
            return Answer::Gone(finished.cause.clone());
        }
        match belief {
            Belief::Queued { ticket } => match self.ticket(ticket, claim.id) {
                Some(index) => self.refresh(index, now, effects),
                None => Answer::Gone(Cause::Expired),
            },
            // Somebody else has it now, or it is free: the same to the loser,
            // but not to whoever reads the cause.
            Belief::Held { .. } if self.holders.is_empty() => Answer::Gone(Cause::Expired),
            Belief::Held { .. } => Answer::Gone(Cause::TakenOver),
        }
    }

    /// Ends whatever a claim has, and passes the name on.
    pub fn release(
        &mut self,
        claim: ClaimId,
        how: Release,
        now: Time,
        effects: &mut Effects,
    ) -> Found {
        self.settle(now, effects);
        let found = self.end(claim, how.linger, now, effects);
        if how.unsure {
            self.remember(claim, now + REMEMBER, Cause::Expired, effects);
        }
        self.serve(now, effects);
        found
    }

    /// Takes a grant from its owner, if it still is the one meant.
    pub fn revoke(
        &mut self,
        victim: ClaimId,
        token: Option<Token>,
        how: Revoke,
        reason: &str,
        now: Time,
        effects: &mut Effects,
    ) -> Found {
        self.settle(now, effects);
        let index = match self.holder(victim) {
            Ok(index) if self.holders[index].token == token => index,
            _ => return Found::Nothing,
        };
        let reason: Arc<str> = reason.into();
        let cause = Cause::Broken { reason: reason.clone() };
        effects.rows.push(Row::Holder(victim));
        match how {
            Revoke::Orderly => self.holders[index].revoked = Some(reason),
            Revoke::Now => {
                let held = self.holders.remove(index);
                // Its owner must hear "broken" whenever it asks, and a late
                // request of it must not be granted.
                self.remember(victim, held.until.max(now + REMEMBER), cause.clone(), effects);
            }
        }
        effects.pushes.push(Event::Is(victim, Standing::Gone(cause)));
        self.serve(now, effects);
        Found::Held
    }

    /// Does what time has done: ends leases, tickets and latches, serves the queue.
    pub fn settle(&mut self, now: Time, effects: &mut Effects) {
        let over = |held: &Held| held.until <= now;
        if self.holders.iter().any(over) {
            for held in self.holders.extract_if(.., |held| over(held)) {
                effects.rows.push(Row::Holder(held.claim));
                if !held.lock_delay.is_zero() {
                    // Counted from the end of the lease, not from whenever
                    // somebody noticed it.
                    self.closed_until = self.closed_until.max(held.until + held.lock_delay);
                    effects.rows.push(Row::Name);
                }
            }
        }
        self.finished.retain(|finished| {
            let keep = finished.until > now;
            if !keep {
                effects.rows.push(Row::Finished(finished.claim));
            }
            keep
        });
        self.expire_latch(now, effects);
        self.serve(now, effects);
    }

    /// Passes the name to the first live tickets that fit.
    ///
    /// What is passed on is a short grant: it lasts as long as the ticket
    /// would have, until its keeper confirms it.
    fn serve(&mut self, now: Time, effects: &mut Effects) {
        while let Some(mode) = self.first_in_line(now, effects) {
            if self.closed_until > now || !self.fits(mode) {
                return;
            }
            let Ok(token) = self.next_token(mode, Token::ZERO) else { return };
            let Some(ticket) = self.queue.pop_front() else { return };
            effects.rows.push(Row::Ticket(ticket.claim));
            let (claim, number) = (ticket.claim, ticket.number);
            effects.pushes.push(Event::HandedOver { claim, ticket: number, token });
            self.grant(promoted(ticket, token, now), effects);
        }
        if self.holders.is_empty() && self.closed_until <= now {
            self.nudge(now, effects);
        }
    }

    /// What the first live ticket wants; the dead ones before it are dropped.
    fn first_in_line(&mut self, now: Time, effects: &mut Effects) -> Option<Mode> {
        while let Some(dead) = self.queue.pop_front_if(|ticket| ticket.until <= now) {
            effects.rows.push(Row::Ticket(dead.claim));
        }
        self.queue.front().map(|ticket| ticket.mode)
    }

    /// Tells one watcher that asking again is worth it.
    fn nudge(&mut self, now: Time, effects: &mut Effects) {
        while let Some(watcher) = self.watchers.pop_front() {
            effects.rows.push(Row::Watcher(watcher.claim));
            if watcher.until > now {
                effects.pushes.push(Event::Nudge(watcher.claim));
                return;
            }
        }
    }

    /// Whether a claim in this mode can hold beside those who do.
    fn fits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive | Mode::Write => self.holders.is_empty(),
            Mode::Read => self.holders.iter().all(|held| held.mode == Mode::Read),
            Mode::Permits { count, .. } => {
                self.permits_used() + u64::from(count)
                    <= u64::from(self.capacity.max(self.asked(mode)))
            }
        }
    }

    /// The capacity a claim would store if the name had none.
    fn asked(&self, mode: Mode) -> u32 {
        match mode {
            Mode::Permits { of, .. } if self.kind.is_none() => of,
            _ => 0,
        }
    }

    /// How many permits are out.
    pub fn permits_used(&self) -> u64 {
        self.holders.iter().map(|held| permits(held.mode)).sum()
    }

    /// Refuses a claim that does not belong to this name.
    fn check_use(&self, claim: &Claim) -> Result<(), Refusal> {
        self.check_kind(claim.mode.kind())?;
        let Mode::Permits { count, of } = claim.mode else { return Ok(()) };
        let capacity = if self.kind.is_some() { self.capacity } else { of };
        if of != capacity {
            return Err(Refusal::WrongCapacity { stored: capacity });
        }
        if count > capacity {
            return Err(Refusal::TooLarge { capacity });
        }
        Ok(())
    }

    fn next_token(&mut self, mode: Mode, floor: Token) -> Result<Option<Token>, Refusal> {
        if !mode.is_exclusive() {
            return Ok(None);
        }
        let token = self.counter.next().max(floor);
        if token == self.counter {
            return Err(Refusal::NoTokensLeft);
        }
        self.counter = token;
        Ok(Some(token))
    }

    fn grant(&mut self, held: Held, effects: &mut Effects) {
        effects.rows.extend([Row::Name, Row::Holder(held.claim)]);
        if let Mode::Permits { of, .. } = held.mode {
            self.capacity = if self.capacity == 0 { of } else { self.capacity };
        }
        match self.holder(held.claim) {
            Ok(index) => self.holders[index] = held,
            Err(index) => self.holders.insert(index, held),
        }
    }

    /// Makes a live grant a full lease again; never shortens it.
    fn extend(
        &mut self,
        index: usize,
        lease: Duration,
        now: Time,
        effects: &mut Effects,
    ) -> Answer {
        self.used = self.used.max(now);
        let held = &mut self.holders[index];
        if let Some(reason) = &held.revoked {
            return Answer::Gone(Cause::Broken { reason: reason.clone() });
        }
        held.until = held.until.max(now + lease);
        effects.rows.push(Row::Holder(held.claim));
        Answer::Held { token: held.token }
    }

    /// Makes a live ticket a fresh one.
    fn refresh(&mut self, index: usize, now: Time, effects: &mut Effects) -> Answer {
        self.used = self.used.max(now);
        let ticket = &mut self.queue[index];
        ticket.until = ticket.until.max(now + TICKET);
        effects.rows.push(Row::Ticket(ticket.claim));
        self.queued(index)
    }

    fn queued(&self, index: usize) -> Answer {
        let soonest_end = || self.holders.iter().map(|held| held.until).min();
        Answer::Queued {
            ticket: self.queue[index].number,
            ahead: u32::try_from(index).unwrap_or(u32::MAX),
            look_at: (index == 0).then(|| soonest_end().unwrap_or(self.closed_until)),
        }
    }

    fn enqueue(
        &mut self,
        claim: &Claim,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Answer, Refusal> {
        if self.queue.len() >= claim.max_waiters as usize {
            self.sweep(now, effects);
        }
        if self.queue.len() >= claim.max_waiters as usize {
            return Err(Refusal::QueueFull { limit: claim.max_waiters });
        }
        self.use_as(claim.mode.kind(), now, effects)?;
        if let Mode::Permits { of, .. } = claim.mode {
            self.capacity = if self.capacity == 0 { of } else { self.capacity };
        }
        self.last_ticket += 1;
        effects.rows.extend([Row::Name, Row::Ticket(claim.id)]);
        self.queue.push_back(Ticket {
            number: self.last_ticket,
            claim: claim.id,
            mode: claim.mode,
            until: now + TICKET,
            since: now,
            lock_delay: claim.lock_delay,
            about: claim.about.clone(),
        });
        Ok(self.queued(self.queue.len() - 1))
    }

    /// Drops every dead ticket, wherever it stands.
    fn sweep(&mut self, now: Time, effects: &mut Effects) {
        self.queue.retain(|ticket| {
            let live = ticket.until > now;
            if !live {
                effects.rows.push(Row::Ticket(ticket.claim));
            }
            live
        });
    }

    /// Grants a read beside the write it steps down from, ahead of the queue:
    /// the name was not free in between, so nobody is overtaken.
    fn step_down(
        &mut self,
        claim: &Claim,
        above: ClaimId,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Answer, Refusal> {
        let above = match self.holder(above) {
            Ok(index) if self.holders[index].mode == Mode::Write => &self.holders[index],
            _ => return Err(Refusal::NotHeldAbove),
        };
        if above.revoked.is_some() || claim.mode != Mode::Read {
            return Err(Refusal::NotHeldAbove);
        }
        let token = above.token;
        self.used = self.used.max(now);
        self.grant(held(claim, token, now), effects);
        Ok(Answer::Held { token })
    }

    fn watch(&mut self, claim: ClaimId, now: Time, effects: &mut Effects) {
        effects.rows.push(Row::Watcher(claim));
        let until = now + TICKET;
        match self.watchers.iter_mut().find(|watcher| watcher.claim == claim) {
            Some(watcher) => watcher.until = until,
            None => self.watchers.push_back(Watcher { claim, until }),
        }
    }

    /// Takes away whatever the claim has.
    fn end(&mut self, claim: ClaimId, linger: Duration, now: Time, effects: &mut Effects) -> Found {
        self.watchers.retain(|watcher| {
            let other = watcher.claim != claim;
            if !other {
                effects.rows.push(Row::Watcher(claim));
            }
            other
        });
        if let Ok(index) = self.holder(claim) {
            self.holders.remove(index);
            self.used = self.used.max(now);
            effects.rows.push(Row::Holder(claim));
            if !linger.is_zero() {
                self.closed_until = self.closed_until.max(now + linger);
                effects.rows.push(Row::Name);
            }
            return Found::Held;
        }
        match self.queue.iter().position(|ticket| ticket.claim == claim) {
            Some(index) => {
                self.queue.remove(index);
                effects.rows.push(Row::Ticket(claim));
                Found::Queued
            }
            None => Found::Nothing,
        }
    }

    fn remember(&mut self, claim: ClaimId, until: Time, cause: Cause, effects: &mut Effects) {
        effects.rows.push(Row::Finished(claim));
        match self.finished.iter_mut().find(|finished| finished.claim == claim) {
            // The first cause is the true one: a release after a break must
            // not turn "broken" into "expired".
            Some(finished) => finished.until = finished.until.max(until),
            None => self.finished.push(Finished { claim, until, cause }),
        }
    }

    fn raise(&mut self, floor: Token, effects: &mut Effects) {
        if floor > self.counter {
            self.counter = floor;
            effects.rows.push(Row::Name);
        }
    }

    pub(super) fn set_capacity(&mut self, to: u32, now: Time, effects: &mut Effects) {
        if self.capacity != to {
            self.capacity = to;
            effects.rows.push(Row::Name);
            effects.cell_changed = true;
            // A ticket for more permits than there are would block the queue
            // for ever; its keeper asks again and is told the new capacity.
            self.queue.retain(|ticket| {
                let possible = permits(ticket.mode) <= u64::from(to);
                if !possible {
                    effects.rows.push(Row::Ticket(ticket.claim));
                    let gone = Standing::Gone(Cause::Expired);
                    effects.pushes.push(Event::Is(ticket.claim, gone));
                }
                possible
            });
            self.serve(now, effects);
        }
    }

    fn holder(&self, claim: ClaimId) -> Result<usize, usize> {
        self.holders.binary_search_by(|held| held.claim.cmp(&claim))
    }

    fn ticket(&self, number: u64, claim: ClaimId) -> Option<usize> {
        let index = self.queue.binary_search_by(|ticket| ticket.number.cmp(&number)).ok()?;
        (self.queue[index].claim == claim).then_some(index)
    }

    pub(super) fn live_holders(&self, now: Time) -> impl Iterator<Item = Holder> {
        self.holders.iter().filter(move |held| held.until > now).map(move |held| Holder {
            claim: held.claim,
            mode: held.mode,
            token: held.token,
            about: held.about.clone(),
            age: now.since(held.since),
            lease_left: held.until.since(now),
            revoked: held.revoked.is_some(),
        })
    }

    pub(super) fn live_waiters(&self, now: Time) -> impl Iterator<Item = Waiter> {
        self.queue.iter().filter(move |ticket| ticket.until > now).map(move |ticket| Waiter {
            claim: ticket.claim,
            mode: ticket.mode,
            about: ticket.about.clone(),
            age: now.since(ticket.since),
        })
    }
}

fn permits(mode: Mode) -> u64 {
    match mode {
        Mode::Permits { count, .. } => u64::from(count),
        _ => 0,
    }
}

/// A full grant for a claim that asked.
fn held(claim: &Claim, token: Option<Token>, now: Time) -> Held {
    Held {
        claim: claim.id,
        mode: claim.mode,
        token,
        until: now + claim.lease,
        since: now,
        lock_delay: claim.lock_delay,
        revoked: None,
        about: claim.about.clone(),
    }
}

/// A short grant for a claim that waited: it ends when its ticket would have.
fn promoted(ticket: Ticket, token: Option<Token>, now: Time) -> Held {
    Held {
        claim: ticket.claim,
        mode: ticket.mode,
        token,
        until: ticket.until,
        since: now,
        lock_delay: ticket.lock_delay,
        revoked: None,
        about: ticket.about,
    }
}

impl Kind {
    /// Whether names of this kind are held by claims.
    pub fn has_claims(self) -> bool {
        matches!(self, Kind::Mutex | Kind::ReadWrite | Kind::Semaphore)
    }
}
