//! Reads the answers of scripts.

use std::sync::Arc;

use redis::{FromRedisValue, Value};

use crate::cause::Cause;
use crate::engine::{About, Cell, CountId, Found, Kind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Answer, Refusal, Time};
use crate::token::Token;
use crate::url::parts::decode;

/// An answer, word by word. The common case is a bare number, of which the
/// script's header says what it means.
pub(super) struct Reply(Vec<Value>);

impl Reply {
    pub(super) fn new(value: Value) -> Result<Self> {
        match value {
            Value::Array(words) => Ok(Reply(words)),
            number @ Value::Int(_) => Ok(Reply(vec![number])),
            other => Err(strange(&other)),
        }
    }

    /// The number that is the whole answer.
    fn bare(&self) -> Option<u64> {
        match self.0[..] {
            [Value::Int(number)] => u64::try_from(number).ok(),
            _ => None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn text(&self, index: usize) -> Result<String> {
        let value = self.0.get(index).unwrap_or(&Value::Nil);
        String::from_redis_value_ref(value).map_err(|_| strange(&Value::Array(self.0.clone())))
    }

    pub(super) fn number(&self, index: usize) -> Result<u64> {
        let value = self.0.get(index).unwrap_or(&Value::Nil);
        u64::from_redis_value_ref(value).map_err(|_| strange(&Value::Array(self.0.clone())))
    }

    /// A list within the answer, as text; missing values are empty.
    pub(super) fn list(&self, index: usize) -> Result<Vec<String>> {
        let value = self.0.get(index).unwrap_or(&Value::Nil);
        let list = Vec::<Option<String>>::from_redis_value_ref(value);
        let list = list.map_err(|_| strange(&Value::Array(self.0.clone())))?;
        Ok(list.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Whether the script left something to be served.
    pub(super) fn has_more(&self) -> bool {
        self.0.len() > 1 && matches!(self.0.last(), Some(Value::Int(1)))
    }

    /// What a claim is now; `now` is what the server's clock counts from here.
    pub(super) fn answer(&self) -> Result<(Answer, bool)> {
        if let Some(token) = self.bare() {
            return Ok((Answer::Held { token: Some(Token::new(token)) }, false));
        }
        let answer = match self.text(0)?.as_str() {
            "held" => Answer::Held { token: token(&self.text(1)?)? },
            "queued" => {
                let look = self.number(3).ok().map(Time);
                let ahead = u32::try_from(self.number(2)?).unwrap_or(u32::MAX);
                Answer::Queued { ticket: self.number(1)?, ahead, look_at: look }
            }
            "busy" => Answer::Busy,
            "gone" => return Ok((Answer::Gone(self.cause()?), false)),
            "refused" => return Err(self.refusal()?),
            _ => return Err(strange(&Value::Array(self.0.clone()))),
        };
        Ok((answer, self.has_more()))
    }

    fn cause(&self) -> Result<Cause> {
        Ok(match self.text(1)?.as_str() {
            "broken" => Cause::Broken { reason: decode(&self.text(2)?)?.into() },
            "taken_over" => Cause::TakenOver,
            _ => Cause::Expired,
        })
    }

    fn refusal(&self) -> Result<Error> {
        let number = |index| Ok::<_, Error>(u32::try_from(self.number(index)?).unwrap_or(u32::MAX));
        let refusal = match self.text(1)?.as_str() {
            "kind" => match kind(&self.text(2)?) {
                Some(stored) => Refusal::WrongKind { stored },
                None => return Err(strange(&Value::Array(self.0.clone()))),
            },
            "capacity" => Refusal::WrongCapacity { stored: number(2)? },
            "large" => Refusal::TooLarge { capacity: number(2)? },
            "full" => Refusal::QueueFull { limit: number(2)? },
            "not_held_above" => Refusal::NotHeldAbove,
            _ => Refusal::NoTokensLeft,
        };
        Ok(refusal.into())
    }

    /// What a release or revoke found.
    pub(super) fn found(&self) -> Result<Found> {
        if self.bare().is_some() {
            return Ok(Found::Held);
        }
        match self.text(0)?.as_str() {
            "held" => Ok(Found::Held),
            "queued" => Ok(Found::Queued),
            "nothing" => Ok(Found::Nothing),
            _ => Err(strange(&Value::Array(self.0.clone()))),
        }
    }

    /// What a number is now.
    pub(super) fn cell(&self) -> Result<Cell> {
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        match self.text(0)?.as_str() {
            "absent" => Ok(Cell::Absent),
            "latch" => {
                let set = CountId(self.text(2)?.into());
                Ok(Cell::Latch { remaining: small(self.number(1)?), set })
            }
            "capacity" => Ok(Cell::Capacity(small(self.number(1)?))),
            "fence" => Ok(Cell::Fence { highest: self.text(1)?.parse()? }),
            "refused" => Err(self.refusal()?),
            _ => Err(strange(&Value::Array(self.0.clone()))),
        }
    }
}

pub(super) fn token(text: &str) -> Result<Option<Token>> {
    match text {
        "-" => Ok(None),
        number => number.parse().map(Some),
    }
}

/// The kind behind a record's letter.
pub(super) fn kind(letter: &str) -> Option<Kind> {
    Some(match letter {
        "m" => Kind::Mutex,
        "r" => Kind::ReadWrite,
        "s" => Kind::Semaphore,
        "l" => Kind::Latch,
        "f" => Kind::Fence,
        _ => return None,
    })
}

/// Reads what [`super::about`] wrote.
pub(super) fn about(text: &str) -> Arc<About> {
    let mut words = text.split(' ').map(|word| decode(word).unwrap_or_default());
    let mut word = || words.next().unwrap_or_default();
    let (who, host, pid, note) = (word(), word(), word(), word());
    Arc::new(About { who, host, pid: pid.parse().unwrap_or_default(), note })
}

/// The error of an answer that no script gives.
pub(super) fn strange(value: &Value) -> Error {
    Error::new(ErrorKind::Unexpected, format!("the server's answer makes no sense: {value:?}"))
}
