//! The scripts: one per operation, put together from their files.

use std::sync::LazyLock;

use super::MAX_TOKEN;
use crate::engine::{REMEMBER, TICKET};
use crate::model::Record;

/// A script and the hash by which servers know it.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) code: String,
    pub(super) hash: String,
}

/// Every script the engine sends.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) revoke: Script,
    pub(super) cell: Script,
    pub(super) inspect: Script,
    /// Writes and deletes a key, to see at once whether that is allowed here.
    pub(super) probe: String,
}

pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    acquire: script(include_str!("acquire.lua")),
    renew: script(include_str!("renew.lua")),
    release: script(include_str!("release.lua")),
    revoke: script(include_str!("revoke.lua")),
    cell: script(include_str!("cell.lua")),
    inspect: script(include_str!("inspect.lua")),
    probe: script(include_str!("probe.lua")).code,
});

impl Scripts {
    pub(super) fn all(&self) -> [&Script; 6] {
        [&self.acquire, &self.renew, &self.release, &self.revoke, &self.cell, &self.inspect]
    }
}

/// Puts the shared parts and the constants in their places, and leaves out the
/// comments, which every server would have to keep.
fn script(source: &str) -> Script {
    const HOUR_MS: u128 = 3_600_000;
    let retention = Record::RETENTION.as_millis();
    let whole = source
        .replace("-- @include start.lua", include_str!("start.lua"))
        .replace("-- @include head.lua", include_str!("head.lua"))
        .replace("-- @include body.lua", include_str!("body.lua"))
        .replace("-- @include several.lua", include_str!("several.lua"))
        .replace("$QUEUE", &(4 * TICKET.as_millis()).to_string())
        .replace("$TICKET", &TICKET.as_micros().to_string())
        .replace("$REMEMBER", &REMEMBER.as_micros().to_string())
        .replace("$RETENTION", &retention.to_string())
        .replace("$HOUR", &(HOUR_MS * 1000).to_string())
        .replace("$LIFE", &(retention + HOUR_MS).to_string())
        .replace("$LARGEST", &MAX_TOKEN.to_string());
    let code: Vec<&str> = whole
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("--"))
        .collect();
    let code = code.join("\n");
    let hash = redis::Script::new(&code).get_hash().to_owned();
    Script { code, hash }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_be_put_in() {
        for script in SCRIPTS.all() {
            assert!(!script.code.contains('$') || script.code.contains("$'"), "{}", script.code);
            assert!(!script.code.contains("@include"), "{}", script.code);
        }
    }
}
