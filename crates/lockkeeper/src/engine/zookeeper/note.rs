//! What a claim's node says in its data: whom to show, and what was asked of it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::{About, Claim, Mode};
use crate::token::{ClaimId, Token};

/// What Curator writes into the node of a holder that is asked to let go.
const CURATOR_REVOKE: &[u8] = b"__REVOKE__";

/// The data of a node of ours, as JSON. Curator does not look at it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Note {
    lockkeeper: u8,
    pub(super) claim: String,
    who: String,
    host: String,
    pid: u32,
    note: String,
    pub(super) lease_ms: u64,
    /// How many permits, of how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) permits: Option<(u32, u32)>,
    /// The token, where it is not the id of the node's own creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<Token>,
    /// Why the holder is asked to let go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revoked: Option<String>,
    /// Nobody holds any more, but the name stays closed until then (wall
    /// clock of the servers, in milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) closed_until_ms: Option<u64>,
}

impl Note {
    pub(super) fn of(claim: &Claim) -> Note {
        let About { who, host, pid, note } = &*claim.about;
        Note {
            lockkeeper: 1,
            claim: claim.id.to_string(),
            who: who.clone(),
            host: host.clone(),
            pid: *pid,
            note: note.clone(),
            lease_ms: u64::try_from(claim.lease.as_millis()).unwrap_or(u64::MAX),
            permits: match claim.mode {
                Mode::Permits { count, of } => Some((count, of)),
                _ => None,
            },
            token: None,
            revoked: None,
            closed_until_ms: None,
        }
    }

    pub(super) fn claim(&self) -> Option<ClaimId> {
        self.claim.parse().ok()
    }

    pub(super) fn about(&self) -> Arc<About> {
        let Note { who, host, pid, note, .. } = self.clone();
        Arc::new(About { who, host, pid, note })
    }

    pub(super) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    pub(super) fn write(&self) -> Vec<u8> {
        // Strings and numbers: there is nothing that could not be written.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the data of a node; `None` if it is not one of ours.
    pub(super) fn read(data: &[u8]) -> Option<Note> {
        serde_json::from_slice(data).ok()
    }
}

/// Why the holder behind this data is asked to let go, if it is.
pub(super) fn revoked(data: &[u8]) -> Option<Arc<str>> {
    if data == CURATOR_REVOKE {
        return Some("revoked through Curator".into());
    }
    Note::read(data)?.revoked.map(Into::into)
}

/// The data that asks the holder behind `data` to let go.
pub(super) fn revoke(data: &[u8], reason: &str) -> Vec<u8> {
    match Note::read(data) {
        Some(mut note) => {
            note.revoked = Some(reason.to_owned());
            note.write()
        }
        None => CURATOR_REVOKE.to_vec(),
    }
}

/// Whom to show for the data of another program.
pub(super) fn stranger(data: &[u8]) -> Arc<About> {
    // Curator writes the address of its host unless told otherwise.
    let text = String::from_utf8_lossy(data);
    let host = text.chars().filter(|c| !c.is_control()).take(200).collect();
    Arc::new(About { who: "another program".to_owned(), host, ..About::default() })
}
