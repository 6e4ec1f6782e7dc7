//! Lock-delay: keeping a name closed for a while after a holder failed.
//!
//! The servers delete the nodes of a dead session, so what is to follow is
//! written down beforehand, in the data of the name's own node: which holders
//! have asked for a delay. Who releases strikes itself out first; so whoever
//! is written down there without having a node has failed. The next one in
//! line notices, and closes the name for that long. Programs that use Curator
//! do not look there.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fault::{Answer, Trouble};
use super::session::Session;
use crate::engine::Claim;
use crate::error::invalid;

/// The data of a name's node; nothing, while nobody has asked for a delay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// For how long the name stays closed, in milliseconds, if the holder by
    /// this node fails.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    delays: BTreeMap<String, u64>,
    /// Nobody is let in before then, by the servers' wall clock.
    #[serde(default, skip_serializing_if = "is_zero")]
    closed_until_ms: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Record {
    fn read(data: &[u8]) -> Option<Record> {
        if data.is_empty() { Some(Record::default()) } else { serde_json::from_slice(data).ok() }
    }

    fn write(&self) -> Vec<u8> {
        if *self == Record::default() {
            return Vec::new();
        }
        // Strings and numbers: there is nothing that could not be written.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Closes the name for those who failed: written down, but not there.
    fn notice(&mut self, there: &HashSet<&str>, now: u64) {
        let failed = self.delays.extract_if(.., |node, _| !there.contains(node.as_str()));
        for (_, delay) in failed {
            self.closed_until_ms = self.closed_until_ms.max(now.saturating_add(delay));
        }
        if self.closed_until_ms <= now {
            self.closed_until_ms = 0;
        }
    }
}

impl Session {
    /// Writes down that the holder by this node has asked for a delay.
    pub(super) async fn arm(&self, dir: &str, node: &str, claim: &Claim) -> Answer<()> {
        let delay = u64::try_from(claim.lock_delay.as_millis()).unwrap_or(u64::MAX);
        if delay == 0 {
            return Ok(());
        }
        let insert = |record: &mut Record| {
            record.delays.insert(node.to_owned(), delay);
        };
        self.change(dir, insert).await
    }

    /// Strikes a holder out, since it ends as it should.
    pub(super) async fn disarm(&self, dir: &str, node: &str, claim: &Claim) -> Answer<()> {
        if claim.lock_delay.is_zero() {
            return Ok(());
        }
        let remove = |record: &mut Record| {
            record.delays.remove(node);
        };
        match self.change(dir, remove).await {
            Err(Trouble::NoNode) => Ok(()),
            done => done,
        }
    }

    /// For how long a name is closed, whose holders are by these nodes.
    pub(super) async fn closed_for(
        &self,
        dir: &str,
        there: impl Iterator<Item = &str>,
    ) -> Answer<Duration> {
        let (data, _) = match self.data(dir).await {
            Ok(read) => read,
            Err(Trouble::NoNode) => return Ok(Duration::ZERO),
            Err(trouble) => return Err(trouble),
        };
        // Other people's data closes nothing.
        let Some(mut record) = Record::read(&data) else { return Ok(Duration::ZERO) };
        if record == Record::default() {
            return Ok(Duration::ZERO);
        }
        self.ask_wall().await;
        let there: HashSet<&str> = there.collect();
        let (before, now) = (record.clone(), self.wall_now());
        record.notice(&there, now);
        if record != before {
            self.change(dir, |record| record.notice(&there, now)).await?;
        }
        Ok(Duration::from_millis(record.closed_until_ms.saturating_sub(now)))
    }

    /// For how long a name is closed, for whoever only looks.
    pub(super) async fn seen_closed_for(&self, dir: &str) -> Answer<Duration> {
        match self.data(dir).await {
            Ok((data, _)) => {
                let until = Record::read(&data).unwrap_or_default().closed_until_ms;
                Ok(Duration::from_millis(until.saturating_sub(self.wall_now())))
            }
            Err(Trouble::NoNode) => Ok(Duration::ZERO),
            Err(trouble) => Err(trouble),
        }
    }

    async fn change(&self, dir: &str, change: impl Fn(&mut Record)) -> Answer<()> {
        loop {
            let (data, stat) = self.data(dir).await?;
            let Some(mut record) = Record::read(&data) else {
                let text = format!(
                    "the node {dir:?} has data that is not ours, where a lock-delay is written down"
                );
                return Err(invalid(text).into());
            };
            let before = record.clone();
            change(&mut record);
            if record == before {
                return Ok(());
            }
            match self.set(dir, &record.write(), Some(stat.version)).await {
                // Somebody else was faster.
                Err(Trouble::Changed) => {}
                done => return done.map(drop),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_failed_close_the_name() {
        let mut record = Record::default();
        record.delays.insert("a".to_owned(), 500);
        record.delays.insert("b".to_owned(), 900);
        record.notice(&HashSet::from(["a", "b"]), 10_000);
        assert_eq!((record.delays.len(), record.closed_until_ms), (2, 0));
        record.notice(&HashSet::from(["b"]), 10_000);
        assert_eq!((record.delays.len(), record.closed_until_ms), (1, 10_500));
        // Noticed once, it is not counted anew.
        record.notice(&HashSet::from(["b"]), 10_400);
        assert_eq!(record.closed_until_ms, 10_500);
        record.notice(&HashSet::new(), 10_600);
        assert_eq!((record.delays.len(), record.closed_until_ms), (0, 11_500));
        record.notice(&HashSet::new(), 11_500);
        assert!(record.write().is_empty());
    }

    #[test]
    fn a_record_reads_back_and_foreign_data_does_not() {
        let mut record = Record::default();
        record.delays.insert("_c_x-lock-0000000001".to_owned(), 500);
        assert_eq!(Record::read(&record.write()), Some(record));
        assert_eq!(Record::read(b""), Some(Record::default()));
        assert_eq!(Record::read(b"127.0.0.1"), None);
    }
}
