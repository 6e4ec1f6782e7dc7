//! How claims are put to scripts: the arguments that claims may share, one a
//! line, since those that use the same words go in one command.

use std::sync::{Arc, Mutex, PoisonError};

use super::MAX_TOKEN;
use crate::engine::{About, Belief, Claim, Intent, Keep, Mode, Release};
use crate::error::Result;
use crate::model::Refusal;
use crate::token::Token;
use crate::url::parts::encode;

/// Finds the words, and keeps those of the last acquire: most acquires of a
/// keeper use the same.
#[derive(Debug, Default)]
pub(super) struct Words {
    last: Mutex<Option<Phrase>>,
}

/// The words of an acquire and what they are made of. There is more to a claim
/// that steps down or has a floor; such words are not kept.
#[derive(Debug)]
struct Phrase {
    claim: Arc<About>,
    mode: Mode,
    intent: Intent,
    lease: std::time::Duration,
    delay: std::time::Duration,
    most: u32,
    words: Arc<str>,
}

impl Words {
    pub(super) fn acquire(&self, claim: &Claim, intent: Intent, floor: Token) -> Result<Arc<str>> {
        let plain = floor == Token::ZERO && claim.under.is_none();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(phrase) = &*last
            && plain
            && phrase.fits(claim, intent)
        {
            return Ok(phrase.words.clone());
        }
        let words: Arc<str> = acquire(claim, intent, checked(floor)?).into();
        if plain {
            *last = Some(Phrase {
                claim: claim.about.clone(),
                mode: claim.mode,
                intent,
                lease: claim.lease,
                delay: claim.lock_delay,
                most: claim.max_waiters,
                words: words.clone(),
            });
        }
        Ok(words)
    }

    pub(super) fn renew(&self, keep: &Keep) -> Result<Arc<str>> {
        let believed = match keep.belief {
            Belief::Held { .. } => 'h',
            Belief::Queued { .. } => 'q',
        };
        let (lease, floor) = (keep.claim.lease.as_micros(), checked(keep.floor)?);
        Ok(format!("{believed}\n{lease}\n{floor}").into())
    }

    pub(super) fn release(&self, how: Release) -> Arc<str> {
        format!("{}\n{}", how.linger.as_micros(), u8::from(how.unsure)).into()
    }
}

impl Phrase {
    fn fits(&self, claim: &Claim, intent: Intent) -> bool {
        self.mode == claim.mode
            && self.intent == intent
            && self.lease == claim.lease
            && self.delay == claim.lock_delay
            && self.most == claim.max_waiters
            && (Arc::ptr_eq(&self.claim, &claim.about) || self.claim == claim.about)
    }
}

fn acquire(claim: &Claim, intent: Intent, floor: Token) -> String {
    let (mode, count, of) = match claim.mode {
        Mode::Exclusive => ('x', 0, 0),
        Mode::Write => ('w', 0, 0),
        Mode::Read => ('r', 0, 0),
        Mode::Permits { count, of } => ('p', count, of),
    };
    let intent = match intent {
        Intent::Try => 't',
        Intent::Watch => 'w',
        Intent::Queue => 'q',
    };
    let (lease, delay) = (claim.lease.as_micros(), claim.lock_delay.as_micros());
    let most = claim.max_waiters;
    let under = claim.under.map_or_else(|| "-".to_owned(), |under| under.to_string());
    let about = about(&claim.about);
    format!("{mode}\n{intent}\n{lease}\n{delay}\n{most}\n{count}\n{of}\n{floor}\n{under}\n{about}")
}

/// What is said of a believed claim alone: its token, as wide as records have
/// it, or its ticket.
pub(super) fn number(belief: Belief) -> String {
    match belief {
        Belief::Held { token: Some(token) } => format!("{:016}", token.get()),
        Belief::Held { token: None } => "-".to_owned(),
        Belief::Queued { ticket } => ticket.to_string(),
    }
}

pub(super) fn token_text(token: Option<Token>) -> String {
    token.map_or_else(|| "-".to_owned(), |token| token.to_string())
}

/// A floor that the scripts can count from.
fn checked(floor: Token) -> Result<Token> {
    if floor.get() > MAX_TOKEN {
        return Err(Refusal::NoTokensLeft.into());
    }
    Ok(floor)
}

/// Whom to show, in printable words. [`super::reply::about`] reads it.
fn about(about: &About) -> String {
    let About { who, host, pid, note } = about;
    format!("{} {} {pid} {}", encode(who), encode(host), encode(note))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::redis::reply;
    use crate::name::LockName;
    use crate::token::{ClaimId, KeeperId};

    #[test]
    fn people_read_back() {
        let who = About {
            who: "a b".to_owned(),
            host: String::new(),
            pid: 7,
            note: "100 % é\n".to_owned(),
        };
        assert_eq!(*reply::about(&about(&who)), who);
    }

    /// Words that are kept must be those of this very claim.
    #[test]
    fn kept_words_are_the_right_ones() {
        let id = ClaimId { keeper: KeeperId::from_number(1), number: 2, turn: 0 };
        let plain = Claim {
            id,
            name: LockName::new("n").unwrap(),
            mode: Mode::Exclusive,
            lease: Duration::from_secs(30),
            margin: Duration::ZERO,
            lock_delay: Duration::ZERO,
            max_waiters: 9,
            under: None,
            about: Arc::default(),
        };
        let note = About { note: "x".to_owned(), ..About::default() };
        let claims = [
            plain.clone(),
            Claim { mode: Mode::Write, ..plain.clone() },
            Claim { lease: Duration::from_secs(31), ..plain.clone() },
            Claim { lock_delay: Duration::from_secs(1), ..plain.clone() },
            Claim { max_waiters: 8, ..plain.clone() },
            Claim { mode: Mode::Read, under: Some(id), ..plain.clone() },
            Claim { about: Arc::new(note), ..plain.clone() },
            plain,
        ];
        let words = Words::default();
        for claim in &claims {
            for intent in [Intent::Queue, Intent::Try, Intent::Try] {
                for floor in [Token::ZERO, Token::new(5), Token::ZERO] {
                    let expected = acquire(claim, intent, floor);
                    assert_eq!(&*words.acquire(claim, intent, floor).unwrap(), expected);
                }
            }
        }
        assert!(words.acquire(&claims[0], Intent::Try, Token::new(1 << 53)).is_err());
    }
}
