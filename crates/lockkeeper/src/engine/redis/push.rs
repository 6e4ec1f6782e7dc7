//! What scripts push: one channel per keeper (in a cluster per keeper and
//! slot, since a script reaches only channels of its own), one line per event.
//!
//! Those of `lines`, and `c KEY`: the latch, capacity or fence behind this key
//! changed.

use redis::{FromRedisValue, Value};

use super::keys::name_of;
use crate::engine::{Event, lines};
use crate::token::KeeperId;

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
    match line.strip_prefix("c ") {
        Some(key) => name_of(prefix, key).map(Event::Cell),
        None => lines::read(&line),
    }
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
