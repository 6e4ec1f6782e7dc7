//! What one keeper tells another in a line of text.
//!
//! | Line | |
//! |---|---|
//! | `h CLAIM TICKET TOKEN` | the name passed to this claim's ticket; `-` without a token |
//! | `b CLAIM REASON` | its grant is broken |
//! | `e CLAIM` | its place is gone |
//! | `n CLAIM` | it is worth asking again |
//!
//! An engine may have further lines of its own.

use std::sync::Arc;

use crate::cause::Cause;
use crate::engine::{Event, Standing};
use crate::token::Token;
use crate::url::parts::decode;

/// Reads a line about a claim; `None` if it is none of these.
pub(super) fn read(line: &str) -> Option<Event> {
    let mut words = line.split(' ');
    let kind = words.next()?;
    let claim = words.next()?.parse().ok()?;
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

/// Writes the line of an event, and to whom it goes.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn write(event: &Event) -> Option<(crate::token::KeeperId, String)> {
    use crate::url::parts::encode;

    Some(match event {
        Event::HandedOver { claim, ticket, token } => {
            let token = token.map_or_else(|| "-".to_owned(), |token| token.to_string());
            (claim.keeper, format!("h {claim} {ticket} {token}"))
        }
        Event::Is(claim, Standing::Gone(Cause::Broken { reason })) => {
            (claim.keeper, format!("b {claim} {}", encode(reason)))
        }
        Event::Is(claim, Standing::Gone(_)) => (claim.keeper, format!("e {claim}")),
        Event::Nudge(claim) => (claim.keeper, format!("n {claim}")),
        // The model pushes nothing else.
        Event::Is(..) | Event::Link { .. } | Event::Cell(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_reads() {
        let id = format!("{}-7-1", "0".repeat(31) + "5");
        let claim = id.parse().unwrap();
        let broken = Cause::Broken { reason: "too slow".into() };
        for (line, event) in [
            (
                format!("h {id} 12 34"),
                Event::HandedOver { claim, ticket: 12, token: Some(Token::new(34)) },
            ),
            (format!("h {id} 12 -"), Event::HandedOver { claim, ticket: 12, token: None }),
            (format!("b {id} too%20slow"), Event::Is(claim, Standing::Gone(broken))),
            (format!("e {id}"), Event::Is(claim, Standing::Gone(Cause::Expired))),
            (format!("n {id}"), Event::Nudge(claim)),
        ] {
            assert_eq!(read(&line), Some(event.clone()));
            #[cfg(any(feature = "mysql", feature = "postgres"))]
            assert_eq!(write(&event), Some((claim.keeper, line)));
        }
    }

    #[test]
    fn other_lines_are_ignored() {
        for line in ["", "h", "h x 1 2", "z z", "c other", "b", "hello world"] {
            assert_eq!(read(line), None, "{line:?}");
        }
    }
}
