//! Local queues, asking, waiting, granting.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Phase, Tenure};
use super::line::Line;
use super::link::{Ask, Waiting};
use super::{ANSWER_LIMIT, Driver, REPOLL};
use crate::clock::Moment;
use crate::engine::{Claim, Grant, Intent, Place, Standing, Status, TICKET};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::{Hold, Shared};
use crate::name::LockName;
use crate::token::{ClaimId, Token};

/// How long a wait goes on before the log says so.
const NAG: Duration = Duration::from_secs(30);

/// How soon a pushed hand-over is confirmed. Many a lock is given back before,
/// and what is given back needs no lease.
const SOON: Duration = Duration::from_millis(2);

impl Driver {
    /// Takes in an acquisition: behind the others of this keeper, or at once.
    pub(super) fn on_ask(&mut self, ask: Ask) {
        if let Some(line) = self.waiting.get(&ask.name)
            && ask.under.is_none()
        {
            if ask.intent == Intent::Try && self.somebody_waits(line) {
                let _ = ask.reply.send(Ok(None));
                return;
            }
            // Who only tries takes no place.
            let full = line.len() >= ask.terms.max_waiters as usize;
            if full && ask.intent != Intent::Try {
                let text = format!("{} of this keeper wait already (max_waiters)", line.len());
                let _ = ask.reply.send(Err(Error::new(ErrorKind::TooMany, text)));
                return;
            }
        }
        tracing::debug!(name = %ask.name, mode = ?ask.mode, number = ask.number, "acquire");
        let claim = Arc::new(Claim {
            id: ClaimId { keeper: self.keeper, number: ask.number, turn: 0 },
            name: ask.name,
            mode: ask.mode,
            lease: ask.terms.lease,
            margin: ask.terms.margin,
            lock_delay: ask.terms.lock_delay,
            max_waiters: ask.terms.max_waiters,
            under: ask.under,
            about: ask.terms.about.clone(),
        });
        let name = claim.name.clone();
        let entry = Entry {
            claim,
            intent: ask.intent,
            terms: ask.terms,
            phase: Phase::Local,
            reply: Some(ask.reply),
            started: ask.started,
            deadline: ask.deadline,
            answer_by: ask.started + ANSWER_LIMIT,
            unsure: false,
            setbacks: 0,
            trouble: None,
            look_at: if ask.waiting.is_some() { ask.started + TICKET / 4 } else { Moment::NEVER },
            waiting: ask.waiting,
            nag_at: ask.started + NAG,
            wake: Moment::NEVER,
        };
        self.entries.insert(ask.number, entry);
        if ask.under.is_some() {
            // It holds beside the claim it steps down from: no queue concerns it.
            self.ask(ask.number);
        } else {
            self.waiting.entry(name.clone()).or_default().join(ask.number, ask.intent);
            self.advance(&name);
        }
        self.schedule(ask.number);
    }

    /// Whether the head of a local queue has been told to wait.
    fn somebody_waits(&self, line: &Line) -> bool {
        let head = line.head().and_then(|number| self.entries.get(&number));
        head.is_some_and(|entry| match entry.phase {
            Phase::Queued { .. } => true,
            Phase::Again { .. } => entry.answer_by == Moment::NEVER,
            _ => false,
        })
    }

    /// Lets the head of a local queue contend; readers or permits go together.
    pub(super) fn advance(&mut self, name: &LockName) {
        while let Some(line) = self.waiting.get_mut(name) {
            let Some((last, next)) = line.frontier() else {
                if line.len() == 0 {
                    self.waiting.remove(name);
                }
                return;
            };
            let mode = |number| self.entries.get(&number).map(|entry| entry.claim.mode);
            if let (Some(last), Some(next)) = (last.and_then(mode), mode(next))
                && !next.goes_with(last)
            {
                return;
            }
            line.advance();
            self.ask(next);
            self.schedule(next);
        }
    }

    /// Sends the claim to the engine.
    fn ask(&mut self, number: u64) {
        let last_answer = self.last_answer;
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if matches!(entry.phase, Phase::Local) && last_answer > entry.started {
            // Its wait behind the others of this keeper says nothing about
            // the engine, which has been answering them.
            entry.answer_by = self.clock.now() + ANSWER_LIMIT;
        }
        entry.phase = Phase::Asking { early: None, nudged: false };
        let (claim, intent) = (entry.claim.clone(), entry.intent);
        self.start_acquire(claim, intent);
    }

    pub(super) fn on_asked(&mut self, claim: ClaimId, result: Result<Standing>) {
        let number = claim.number;
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if entry.claim.id != claim || !matches!(entry.phase, Phase::Asking { .. }) {
            return;
        }
        match &result {
            // A panicked engine may have done anything.
            Err(error) if error.kind() != ErrorKind::Unreachable => {
                entry.unsure |= error.is_silence() || error.kind() == ErrorKind::Unexpected;
            }
            Err(_) => {}
            Ok(_) => {
                entry.answer_by = Moment::NEVER;
                self.last_answer = self.clock.now();
            }
        }
        if entry.reply.is_none() {
            // Withdrawn while the question was under way: now is the time to
            // end whatever the answer says it has.
            self.end(number, None);
            return;
        }
        match result {
            Ok(standing) => self.take(number, standing),
            Err(error) if error.is_silence() => {
                entry.setbacks += 1;
                let at = self.clock.now() + backoff(entry.setbacks);
                entry.phase = Phase::Again { at };
                tracing::debug!(name = %entry.claim.name, %error, "no answer; asking again");
                entry.trouble = Some(error);
                self.schedule(number);
            }
            Err(error) => {
                // The question has been answered: with a refusal there is
                // nothing at the engine, unless an earlier one may still arrive.
                let unsure = entry.unsure;
                self.tell(number, error);
                if unsure {
                    self.end(number, None);
                } else {
                    self.leave(number);
                }
            }
        }
    }

    /// Acts on what the engine says a waiting claim is.
    pub(super) fn take(&mut self, number: u64, standing: Standing) {
        match standing {
            Standing::Held(grant) => self.deliver(number, grant),
            Standing::Queued(place) => self.wait(number, place),
            Standing::Busy => self.refused(number),
            Standing::Gone(_) => self.start_over(number),
        }
    }

    fn wait(&mut self, number: u64, mut place: Place) {
        let now = self.clock.now();
        place.renew_at = self.rhythm.at_or_before(place.renew_at, now);
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let (early, news) = match entry.phase {
            Phase::Asking { early, nudged } => (early, nudged),
            Phase::Queued { nudged, .. } => (None, nudged),
            _ => (None, false),
        };
        if news {
            place.renew_at = now;
        }
        if matches!(entry.phase, Phase::Asking { .. }) {
            tracing::debug!(name = %entry.claim.name, ahead = ?place.ahead, "wait");
        }
        entry.setbacks = 0;
        entry.phase = Phase::Queued { place, due: false, nudged: false };
        let name = entry.claim.name.clone();
        if let Some((ticket, token)) = early {
            self.hand_over(number, ticket, token);
        }
        self.schedule(number);
        self.refuse_tries(&name);
    }

    /// A busy answer: no place was left, so ask again later, or never.
    fn refused(&mut self, number: u64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let name = entry.claim.name.clone();
        if entry.intent == Intent::Try {
            let unsure = entry.unsure;
            self.answer(number, Ok(None));
            if unsure {
                self.end(number, None);
            } else {
                self.leave(number);
            }
        } else {
            let nudged = matches!(entry.phase, Phase::Asking { nudged: true, .. });
            let pause = if nudged { Duration::ZERO } else { jitter(REPOLL) };
            entry.phase = Phase::Again { at: self.clock.now() + pause };
            self.schedule(number);
        }
        self.refuse_tries(&name);
    }

    /// Answers the tries behind a claim that waits: they never overtake.
    fn refuse_tries(&mut self, name: &LockName) {
        let Some(line) = self.waiting.get(name) else { return };
        if !self.somebody_waits(line) {
            return;
        }
        for number in line.idle_tries() {
            self.answer(number, Ok(None));
            self.leave(number);
        }
    }

    /// Gives an acquisition whose claim is gone a new claim.
    fn start_over(&mut self, number: u64) {
        let now = self.clock.now();
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let old = entry.claim.clone();
        let mut claim = Claim::clone(&old);
        claim.id.turn += 1;
        let was_unsure = std::mem::take(&mut entry.unsure);
        entry.claim = Arc::new(claim);
        entry.setbacks += 1;
        if entry.intent == Intent::Try {
            // No deadline bounds it, only this.
            entry.answer_by = now + ANSWER_LIMIT;
        }
        let pause = if entry.setbacks == 1 { Duration::ZERO } else { backoff(entry.setbacks) };
        entry.phase = Phase::Again { at: now + pause };
        tracing::debug!(name = %old.name, "the place is gone; queueing anew");
        if old.under.is_some() {
            let error = Error::lost(crate::Cause::Expired);
            self.fail(number, error);
        }
        if was_unsure {
            self.clean_up(old);
        }
        self.schedule(number);
    }

    /// Makes a guard of a grant and sends it to the caller.
    fn deliver(&mut self, number: u64, grant: Grant) {
        let now = self.clock.now();
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if entry.reply.is_none() {
            return self.end(number, None);
        }
        if now >= grant.valid_until {
            // The answer took longer than the lease: nobody may act on it.
            let old = entry.claim.clone();
            self.clean_up(old);
            return self.start_over(number);
        }
        let Some(link) = self.link.upgrade() else { return self.end(number, None) };
        let shared = Arc::new(Shared::new(
            entry.claim.clone(),
            grant.token,
            self.clock.clone(),
            grant.valid_until,
        ));
        // A beat of the ticket may be under way or about to leave; whatever it
        // was sent for, its answer is the next one to come.
        let due = matches!(entry.phase, Phase::Queued { due: true, .. });
        let renew_at = self.rhythm.at_or_before(grant.renew_at, now);
        let news = matches!(entry.phase, Phase::Asking { nudged: true, .. });
        let waited = matches!(entry.phase, Phase::Queued { .. } | Phase::Again { .. });
        self.tally.handed_over += u64::from(waited);
        entry.phase = Phase::Held(Tenure {
            shared: shared.clone(),
            granted_at: now,
            renew_at: if news { now } else { renew_at },
            shard: grant.shard,
            due,
            at_risk: false,
            max_hold_at: entry.terms.max_hold.map_or(Moment::NEVER, |max| now + max),
            verifies: Vec::new(),
            verifying: Vec::new(),
        });
        entry.answer_by = Moment::NEVER;
        let name = entry.claim.name.clone();
        let waited = now.since(entry.started);
        tracing::debug!(%name, token = ?grant.token, ?waited, "grant");
        self.answer(number, Ok(Some(Hold::new(shared, link))));
        self.drop_from_queue(number, &name);
        self.schedule(number);
    }

    pub(super) fn on_handed_over(&mut self, claim: ClaimId, ticket: u64, token: Option<Token>) {
        let Some(entry) = self.entries.get_mut(&claim.number) else { return };
        if entry.claim.id != claim {
            return;
        }
        match &mut entry.phase {
            Phase::Queued { .. } => self.hand_over(claim.number, ticket, token),
            // The push overtook the answer that tells our ticket.
            Phase::Asking { early, .. } => *early = Some((ticket, token)),
            _ => {}
        }
    }

    /// Trusts a pushed hand-over as far as the ticket's last answer carries it.
    fn hand_over(&mut self, number: u64, ticket: u64, token: Option<Token>) {
        let now = self.clock.now();
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let Phase::Queued { place, due, nudged } = &mut entry.phase else { return };
        if place.ticket != ticket {
            return;
        }
        if place.until.since(now) < TICKET / 4 {
            // With little left, the guard waits for a confirmation, so that
            // it is not lost as soon as it is given.
            (place.renew_at, *nudged) = (now, *due);
            self.schedule(number);
            return;
        }
        let (valid_until, renew_at) = (place.until, now + SOON);
        let grant = Grant { token, valid_until, renew_at, shard: place.shard };
        self.deliver(number, grant);
    }

    pub(super) fn on_nudge(&mut self, claim: ClaimId) {
        let now = self.clock.now();
        let Some(entry) = self.entries.get_mut(&claim.number) else { return };
        if entry.claim.id != claim {
            return;
        }
        match &mut entry.phase {
            Phase::Again { at } => *at = now,
            Phase::Queued { place, due, nudged } => (place.renew_at, *nudged) = (now, *due),
            Phase::Asking { nudged, .. } => *nudged = true,
            _ => {}
        }
        self.schedule(claim.number);
    }

    /// Acts on a standing that the engine pushed.
    pub(super) fn on_standing(&mut self, claim: ClaimId, standing: Standing) {
        let Some(entry) = self.entries.get_mut(&claim.number) else { return };
        if entry.claim.id != claim {
            return;
        }
        match (&mut entry.phase, standing) {
            (Phase::Queued { .. } | Phase::Again { .. }, standing) => {
                self.take(claim.number, standing);
            }
            (Phase::Held(_), standing) => self.on_kept(claim.number, standing),
            // An answer is under way, which may be older than this.
            (Phase::Asking { nudged, .. }, _) => *nudged = true,
            _ => {}
        }
    }

    /// Looks at what time has done to a waiting entry.
    pub(super) fn on_patience(&mut self, number: u64, now: Moment) {
        let answered = self.has_answered(number, now);
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let waited = now.since(entry.started);
        if entry.reply.is_some() && entry.deadline.min(entry.answer_by) <= now {
            if !answered {
                let error = no_answer(waited, entry.trouble.take());
                return self.fail(number, error);
            }
            if entry.deadline <= now {
                let text = format!("not free within {waited:?}");
                return self.fail(number, Error::new(ErrorKind::TimedOut, text));
            }
            entry.answer_by = now + ANSWER_LIMIT;
        }
        if entry.nag_at <= now {
            entry.nag_at = now + waited;
            tracing::info!(name = %entry.claim.name, ?waited, "still waiting");
        }
        let look = entry.look_at <= now;
        if look {
            entry.look_at = Moment::NEVER;
        }
        let name = entry.claim.name.clone();
        match &mut entry.phase {
            Phase::Again { at } if *at <= now => self.ask(number),
            Phase::Queued { place, due, .. } if place.renew_at <= now && !*due => {
                *due = true;
                let (shard, until) = (place.shard, place.until);
                self.shards.entry(shard).or_default().add(until, number);
            }
            _ => {}
        }
        if look {
            self.start_inspect(number, name);
        }
        self.schedule(number);
    }

    /// Whether the engine has answered this acquisition, or those of the same
    /// keeper that it stands behind.
    fn has_answered(&self, number: u64, now: Moment) -> bool {
        let Some(entry) = self.entries.get(&number) else { return false };
        if !matches!(entry.phase, Phase::Local) {
            return entry.answer_by == Moment::NEVER;
        }
        let head = self.waiting.get(&entry.claim.name).and_then(Line::head);
        let head = head.and_then(|head| self.entries.get(&head));
        head.is_some_and(|head| head.answer_by == Moment::NEVER)
            || self.last_answer + ANSWER_LIMIT > now
    }

    /// Tells a waiting caller whom it waits for.
    pub(super) fn on_inspected(&mut self, number: u64, result: Result<Status>) {
        let now = self.clock.now();
        let Some(entry) = self.entries.get(&number) else { return };
        if !entry.is_waiting() || entry.reply.is_none() {
            return;
        }
        let ahead = result.as_ref().ok().map(|status| self.ahead(entry, status));
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.look_at = now + Duration::from_secs(1);
        if let (Some(sender), Ok(status)) = (&entry.waiting, result) {
            let waited = now.since(entry.started);
            let name = entry.claim.name.clone();
            sender.send_replace(Some(Waiting { name, holders: status.holders, ahead, waited }));
        }
        self.schedule(number);
    }

    /// How many claims stand before an entry: in the engine's queue before
    /// this keeper's contender, and between the two in the keeper's own.
    fn ahead(&self, entry: &Entry, status: &Status) -> u32 {
        let line = self.waiting.get(&entry.claim.name);
        let local = line.map_or(0, |line| line.before(entry.claim.id.number));
        let own = |claim: ClaimId| claim.keeper == self.keeper;
        let engine = status.waiters.iter().take_while(|waiter| !own(waiter.claim)).count();
        u32::try_from(local + engine).unwrap_or(u32::MAX)
    }

    /// Ends an acquisition with an error.
    fn fail(&mut self, number: u64, error: Error) {
        self.tell(number, error);
        self.give_up(number);
    }

    fn tell(&mut self, number: u64, error: Error) {
        let Some(entry) = self.entries.get(&number) else { return };
        let error = error.about(&entry.claim.name).during("lock").on(&self.info.label);
        self.answer(number, Err(error));
    }

    pub(super) fn answer(&mut self, number: u64, answer: Result<Option<Hold>>) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if let Some(reply) = entry.reply.take() {
            // An unread guard comes back here and releases itself.
            let _ = reply.send(answer);
        }
    }

    pub(super) fn withdraw(&mut self, number: u64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if entry.is_waiting() {
            tracing::debug!(name = %entry.claim.name, "withdrawn");
            entry.reply = None;
            self.give_up(number);
        }
    }

    /// Ends a waiting entry whose caller has been answered or is gone.
    pub(super) fn give_up(&mut self, number: u64) {
        let Some(entry) = self.entries.get(&number) else { return };
        match entry.phase {
            Phase::Local => self.leave(number),
            // The release goes out when this question has been answered, so
            // that it cannot overtake it.
            Phase::Asking { .. } => {
                let name = entry.claim.name.clone();
                self.drop_from_queue(number, &name);
                self.schedule(number);
            }
            Phase::Again { .. } | Phase::Queued { .. } => self.end(number, None),
            Phase::Held(_) | Phase::Ending(_) => {}
        }
    }

    /// Forgets an entry that has nothing at the engine.
    fn leave(&mut self, number: u64) {
        if let Some(entry) = self.forget(number) {
            self.drop_from_queue(number, &entry.claim.name);
        }
    }

    /// Takes an entry out of its local queue and lets the next one contend.
    pub(super) fn drop_from_queue(&mut self, number: u64, name: &LockName) {
        if self.waiting.get_mut(name).is_some_and(|line| line.leave(number)) {
            self.advance(name);
        }
    }
}

/// The error of an acquisition that nobody answered, with what is known of why.
fn no_answer(waited: Duration, trouble: Option<Error>) -> Error {
    match trouble.filter(|trouble| trouble.kind() == ErrorKind::Unreachable) {
        Some(trouble) => {
            let text = format!("no answer within {waited:?}: {trouble}");
            Error::new(ErrorKind::Unreachable, text).because(trouble)
        }
        None => Error::new(ErrorKind::Unreachable, format!("no answer within {waited:?}")),
    }
}

/// Longer and longer, never above a second, never in step with others.
pub(crate) fn backoff(setbacks: u32) -> Duration {
    jitter(Duration::from_millis(20 << setbacks.clamp(1, 6)).min(Duration::from_secs(1)))
}

/// Between half of a pause and all of it.
fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}
