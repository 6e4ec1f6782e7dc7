//! Whether the engine says the same as the model.

use std::fmt::Debug;
use std::time::Duration;

use lockkeeper::engine::{Event, Standing, Status};
use lockkeeper::model::{Answer, Refusal, Time};
use lockkeeper::{Error, Result, Token};

use super::{BLUR, Sequence, Unclear, wall};

impl Sequence {
    pub(super) fn same_answer(
        &mut self,
        expected: Result<Answer, Refusal>,
        actual: Result<Standing>,
    ) {
        let alike = match (&expected, &actual) {
            (Ok(Answer::Held { token }), Ok(Standing::Held(grant))) => {
                self.same_token(*token, grant.token)
            }
            (Ok(Answer::Queued { ticket, ahead, .. }), Ok(Standing::Queued(place))) => {
                self.tickets.meet(*ticket, place.ticket) && place.ahead == Some(*ahead)
            }
            (Ok(Answer::Busy), Ok(Standing::Busy)) => true,
            (Ok(Answer::Gone(expected)), Ok(Standing::Gone(actual))) => expected == actual,
            (Err(_), Err(_)) => true,
            _ => false,
        };
        if !alike {
            self.differ("answer", &expected, &actual);
        }
        if let (Err(expected), Err(actual)) = (expected, actual) {
            self.same_refusal(expected, actual);
        }
    }

    pub(super) fn same_refusal(&self, expected: Refusal, actual: Error) {
        self.same("refusal", Error::from(expected).to_string(), actual.to_string());
    }

    pub(super) fn same_token(&mut self, expected: Option<Token>, actual: Option<Token>) -> bool {
        match (expected, actual) {
            (Some(expected), Some(actual)) => self.tokens.meet(expected.get(), actual.get()),
            (None, None) => true,
            _ => false,
        }
    }

    pub(super) fn same_push(&mut self, expected: &Event, actual: &Event) {
        let alike = match (expected, actual) {
            (
                Event::HandedOver { claim, ticket, token },
                Event::HandedOver { claim: winner, ticket: number, token: granted },
            ) => {
                claim == winner
                    && self.tickets.meet(*ticket, *number)
                    && self.same_token(*token, *granted)
            }
            (expected, actual) => expected == actual,
        };
        if !alike {
            self.differ("push", expected, actual);
        }
    }

    /// Compares what a bystander sees.
    pub(super) async fn status(&mut self) -> Result<(), Unclear> {
        let now = Time(wall());
        let expected = self.record.status(self.name.clone(), now);
        let seat = self.random.usize(..self.keepers.len());
        let actual = self.keepers[seat].0.inspect(&self.name).await.unwrap();
        self.clear(now)?;
        let alike = expected.kind == actual.kind
            && self.same_people(&expected, &actual)
            && self.counter_alike(&expected, &actual)
            && near(expected.closed_for, actual.closed_for, self.apart)
            && expected.cell == actual.cell;
        if !alike {
            self.differ("status", expected, actual);
        }
        Ok(())
    }

    pub(super) fn counter_alike(&mut self, expected: &Status, actual: &Status) -> bool {
        // A counter that was raised is no token yet, but will be followed alike.
        match (expected.token, actual.token) {
            (Some(expected), Some(actual)) => {
                expected == actual || self.tokens.meet(expected.get(), actual.get())
            }
            (None, None) => true,
            _ => false,
        }
    }

    pub(super) fn same_people(&mut self, expected: &Status, actual: &Status) -> bool {
        let apart = self.apart;
        let holders = expected.holders.len() == actual.holders.len()
            && expected.holders.iter().zip(&actual.holders).all(|(one, two)| {
                one.claim == two.claim
                    && one.mode == two.mode
                    && one.about == two.about
                    && one.revoked == two.revoked
                    && near(one.age, two.age, apart)
                    && near(one.lease_left, two.lease_left, apart)
                    && self.same_token(one.token, two.token)
            });
        let waiters = expected.waiters.len() == actual.waiters.len()
            && expected.waiters.iter().zip(&actual.waiters).all(|(one, two)| {
                one.claim == two.claim
                    && one.mode == two.mode
                    && one.about == two.about
                    && near(one.age, two.age, apart)
            });
        holders && waiters
    }

    pub(super) fn same<T: PartialEq + Debug>(&self, what: &str, expected: T, actual: T) {
        if expected != actual {
            self.differ(what, expected, actual);
        }
    }

    pub(super) fn differ(&self, what: &str, expected: impl Debug, actual: impl Debug) -> ! {
        let from = self.log.len().saturating_sub(12);
        panic!(
            "{what} differs after {}\n  model: {expected:?}\n  engine: {actual:?}\n{:#?}\n\
             LOCKKEEPER_SEED={}",
            self.log[from..].join("\n      "),
            self.record,
            self.seed
        );
    }
}

fn near(one: Duration, two: Duration, apart: Duration) -> bool {
    one.abs_diff(two) <= 3 * (apart + BLUR)
}
