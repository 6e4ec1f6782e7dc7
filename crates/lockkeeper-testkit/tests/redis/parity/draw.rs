//! What a sequence works with, drawn at random.

use super::*;

impl Sequence {
    /// A claim to work with: any, but often one that has something.
    pub(super) fn claim(&mut self) -> Arc<Claim> {
        let holders = self.record.holders.iter().map(|held| held.claim);
        let waiters = self.record.queue.iter().map(|ticket| ticket.claim);
        let known: Vec<ClaimId> = holders.chain(waiters).collect();
        let any = self.random.usize(..self.claims.len());
        if known.is_empty() || self.random.bool() {
            return self.claims[any].clone();
        }
        let wanted = known[self.random.usize(..known.len())];
        self.claims.iter().find(|claim| claim.id == wanted).unwrap().clone()
    }

    /// What its keeper may believe of a claim, on both sides: mostly the truth.
    pub(super) fn belief(&mut self, claim: ClaimId) -> (Belief, Belief) {
        let held = self.record.holders.iter().find(|held| held.claim == claim);
        let ticket = self.record.queue.iter().find(|ticket| ticket.claim == claim);
        let lie = self.random.u8(..6) == 0;
        let back = u64::from(lie);
        let queued = |model: u64, server: u64| {
            (Belief::Queued { ticket: model }, Belief::Queued { ticket: server })
        };
        match (held, ticket) {
            (Some(held), _) if !lie => {
                let server = held.token.map(|token| Token::new(self.tokens.server(token.get())));
                (Belief::Held { token: held.token }, Belief::Held { token: server })
            }
            (_, Some(ticket)) => {
                let number = ticket.number - back;
                queued(number, self.tickets.server(number))
            }
            _ if self.random.bool() => {
                let number = self.record.last_ticket;
                queued(number, self.tickets.server(number))
            }
            _ => {
                let token = (self.record.counter > Token::ZERO).then_some(self.record.counter);
                let server = token.map(|token| Token::new(self.tokens.server(token.get())));
                (Belief::Held { token }, Belief::Held { token: server })
            }
        }
    }
}

pub(super) fn claims(random: &mut Rng, seed: u64, name: &LockName) -> Vec<Arc<Claim>> {
    let favourite = random.usize(..3);
    let mut claims: Vec<Arc<Claim>> = Vec::new();
    for number in 0..9_u64 {
        let keeper = KeeperId::from_number(u128::from(seed) * 10 + u128::from(number % 3));
        let family = if random.u8(..12) == 0 { random.usize(..3) } else { favourite };
        let mode = match family {
            0 => Mode::Exclusive,
            1 if random.u8(..3) == 0 => Mode::Write,
            1 => Mode::Read,
            _ => Mode::Permits {
                count: random.u32(1..4),
                of: if random.u8(..10) == 0 { 2 } else { 3 },
            },
        };
        let under = match mode {
            Mode::Read if random.u8(..3) == 0 => {
                claims.iter().find(|claim| claim.mode == Mode::Write).map(|claim| claim.id)
            }
            _ => None,
        };
        claims.push(Arc::new(Claim {
            id: ClaimId { keeper, number, turn: random.u32(..3) },
            name: name.clone(),
            mode,
            lease: Duration::from_millis([110, 250, 600, 30_000][random.usize(..4)]),
            margin: Duration::from_millis(10),
            lock_delay: Duration::from_millis([0, 0, 150][random.usize(..3)]),
            max_waiters: [2, 100][random.usize(..2)],
            under,
            about: Arc::new(About {
                who: format!("who {number}"),
                host: String::new(),
                pid: random.u32(..),
                note: ["", "a note, é 100 %\n"][random.usize(..2)].to_owned(),
            }),
        }));
    }
    claims
}
