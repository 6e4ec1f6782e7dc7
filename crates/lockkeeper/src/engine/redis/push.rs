//! What scripts push: one channel per keeper (in a cluster per keeper and
//! slot, since a script reaches only channels of its own), one line per event.
//!
//! | Line | |
//! |---|---|
//! | `h CLAIM TICKET TOKEN` | the name passed to this claim's ticket; `-` without a token |
//! | `b CLAIM REASON` | its grant is broken |
//! | `e CLAIM` | its place is gone |
//! | `n CLAIM` | it is worth asking again |
//! | `c KEY` | the latch, capacity or fence behind this key changed |

use std::sync::Arc;

use redis::{FromRedisValue, Value};

use super::keys::name_of;
use super::text::decode;
use crate::cause::Cause;
use crate::engine::{Event, Standing};
use crate::token::{KeeperId, Token};

/// The start of a keeper's channel.
pub(super) fn channels(prefix: &str) -> String {
    format!("{prefix}push:")
}

/// The start of a keeper's channel for the names of one slot of a cluster.
pub(super) fn slot_channels(prefix: &str, tag: &str) -> String {
    format!("{prefix}push:{{{tag}}}:")
}

/// The channel of a keeper.
pub(super) fn channel(channels: &str, keeper: KeeperId) -> String {
    format!("{channels}{keeper}")
}

/// Reads a message; `None` if it is none of ours.
pub(super) fn read(prefix: &str, data: &[Value]) -> Option<Event> {
    let line = String::from_redis_value_ref(data.get(1)?).ok()?;
    let mut words = line.split(' ');
    let (kind, first) = (words.next()?, words.next()?);
    if kind == "c" {
        return name_of(prefix, first).map(Event::Cell);
    }
    let claim = first.parse().ok()?;
    Some(match kind {
        "h" => {
            let ticket = words.next()?.parse().ok()?;
            let token = match words.next()? {
                "-" => None,
                number => Some(Token::new(number.parse().ok()?)),
            };
            Event::HandedOver { claim, ticket, token }
        }
        "b" => {
            let reason: Arc<str> = decode(words.next()?).ok()?.into();
            Event::Is(claim, Standing::Gone(Cause::Broken { reason }))
        }
        "e" => Event::Is(claim, Standing::Gone(Cause::Expired)),
        "n" => Event::Nudge(claim),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(line: &str) -> Option<Event> {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        read("lk:", &[text("lk:push:x"), text(line)])
    }

    #[test]
    fn every_line_reads() {
        let id = format!("{}-7-1", "0".repeat(31) + "5");
        let claim = id.parse().unwrap();
        assert_eq!(
            event(&format!("h {id} 12 34")),
            Some(Event::HandedOver { claim, ticket: 12, token: Some(Token::new(34)) })
        );
        assert_eq!(
            event(&format!("h {id} 12 -")),
            Some(Event::HandedOver { claim, ticket: 12, token: None })
        );
        let broken = Cause::Broken { reason: "too slow".into() };
        assert_eq!(
            event(&format!("b {id} too%20slow")),
            Some(Event::Is(claim, Standing::Gone(broken)))
        );
        assert_eq!(event(&format!("n {id}")), Some(Event::Nudge(claim)));
        let name = crate::LockName::new("a b").unwrap();
        assert_eq!(event("c lk:{a%20b}"), Some(Event::Cell(name)));
    }

    #[test]
    fn foreign_messages_are_ignored() {
        for line in ["", "h", "h x 1 2", "z z", "c other:{a}", "b", "hello world"] {
            assert_eq!(event(line), None, "{line:?}");
        }
    }
}
