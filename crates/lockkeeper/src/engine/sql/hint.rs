//! Which names are likely to have rows of claims.
//!
//! They are read along with the row of the name then, and not otherwise. A
//! wrong guess costs a statement or a round trip, and nothing else: the row of
//! the name, once locked, says whether there are any.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::step::Step;
use crate::name::LockName;

/// How long after rows were last seen others are expected: names that are
/// contended now and then are empty in between.
const SOON: Duration = Duration::from_secs(1);
/// How many names are remembered before the stale ones are swept out.
const MANY: usize = 1024;

/// Where rows of claims were seen.
#[derive(Debug, Default)]
pub(super) struct Company {
    names: HashMap<LockName, Seen>,
    /// How many names there may be before the next sweep.
    limit: usize,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Whether they were there at the last look.
    still: bool,
    /// When they were last seen.
    at: Instant,
}

impl Seen {
    fn is_likely(&self) -> bool {
        self.still || self.at.elapsed() < SOON
    }
}

impl Company {
    /// Whether any of the names of these steps is likely to have rows.
    pub(super) fn expected(&self, steps: &[Step]) -> bool {
        steps.iter().any(|step| self.names.get(&step.name).is_some_and(Seen::is_likely))
    }

    /// Takes down at which names there are rows now.
    pub(super) fn note(&mut self, seen: &[(LockName, bool)]) {
        for (name, some) in seen {
            if *some {
                self.names.insert(name.clone(), Seen { still: true, at: Instant::now() });
            } else if let Some(seen) = self.names.get_mut(name) {
                seen.still = false;
            }
        }
        if self.names.len() > self.limit.max(MANY) {
            // Somebody else may have emptied what nobody here looked at since.
            self.names.retain(|_, seen| seen.at.elapsed() < SOON * 60 && seen.is_likely());
            self.limit = self.names.len() * 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &LockName) -> [Step; 1] {
        let (step, _) = Step::new(name, None, |_, _, _| unreachable!());
        [step]
    }

    #[tokio::test(start_paused = true)]
    async fn rows_are_expected_where_they_were_and_shortly_after() {
        let [one, other] = ["a", "b"].map(|name| LockName::new(name).unwrap());
        let mut company = Company::default();
        assert!(!company.expected(&step(&one)));
        company.note(&[(one.clone(), true), (other.clone(), false)]);
        assert!(company.expected(&step(&one)) && !company.expected(&step(&other)));
        tokio::time::advance(SOON * 2).await;
        assert!(company.expected(&step(&one)), "they were there at the last look");
        company.note(&[(one.clone(), true)]);
        company.note(&[(one.clone(), false)]);
        assert!(company.expected(&step(&one)), "they were there a moment ago");
        tokio::time::advance(SOON * 2).await;
        assert!(!company.expected(&step(&one)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_stale_is_swept_out() {
        let mut company = Company::default();
        for number in 0..MANY * 4 {
            let name = LockName::new(format!("{number}")).unwrap();
            company.note(&[(name.clone(), true)]);
            company.note(&[(name, false)]);
            tokio::time::advance(Duration::from_millis(2)).await;
        }
        assert!(company.names.len() <= MANY * 2, "{}", company.names.len());
    }
}
