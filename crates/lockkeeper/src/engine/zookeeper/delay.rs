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

use futures_util::future::join;
use serde::{Deserialize, Serialize};

use super::fault::{Answer, Trouble};
use super::layout::{Child, Tag, View};
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
    /// The first number among the nodes that are kept out until then; who has
    /// a smaller one was in before, as readers beside a reader that failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    kept_out_from: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// For how long a name is closed, and to whom.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Closed {
    pub(super) time: Duration,
    from: u64,
}

impl Closed {
    /// Whether it keeps a contender out who has nobody before it.
    pub(super) fn keeps_out(self, child: &Child) -> bool {
        !self.time.is_zero() && child.sequence.unsigned_abs() >= self.from
    }
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

    /// Closes the name for those who failed: written down, but not in `view`.
    /// `own` is the node of who notices it, and so is not in.
    fn notice(&mut self, view: &View, own: Option<&str>, now: u64) {
        let there: HashSet<&str> = view.line.iter().map(|child| child.node.as_str()).collect();
        let beside = view
            .line
            .iter()
            .take_while(|child| child.tag == Tag::Read && Some(child.node.as_str()) != own);
        let beside = beside.last().map_or(0, |child| child.sequence);
        let failed = self.delays.extract_if(.., |node, _| !there.contains(node.as_str()));
        for (node, delay) in failed {
            self.closed_until_ms = self.closed_until_ms.max(now.saturating_add(delay));
            let last = Child::parse(&node).map_or(0, |failed| match failed.tag {
                Tag::Read => failed.sequence.max(beside),
                _ => failed.sequence,
            });
            self.kept_out_from = self.kept_out_from.max(last.unsigned_abs() + 1);
        }
        if self.closed_until_ms <= now {
            (self.closed_until_ms, self.kept_out_from) = (0, 0);
        }
    }

    fn closed(&self, now: u64) -> Closed {
        let time = Duration::from_millis(self.closed_until_ms.saturating_sub(now));
        Closed { time, from: self.kept_out_from }
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

    /// For how long a name is closed whose holders are the children of
    /// `holders`; who asks may be there itself, by the node `own`.
    pub(super) async fn closed_for(
        &self,
        dir: &str,
        holders: &str,
        own: Option<&str>,
    ) -> Answer<Duration> {
        loop {
            // Who is written down had its node before, and strikes itself out
            // before it deletes it: so whoever is in this data, but not in a
            // list that is younger, has failed, if the data is still the same.
            // Both requests leave together, and are answered in order.
            let (read, listed) = join(self.data(dir), self.children(holders)).await;
            let (data, stat) = match read {
                Ok(read) => read,
                Err(Trouble::NoNode) => return Ok(Duration::ZERO),
                Err(trouble) => return Err(trouble),
            };
            // Other people's data closes nothing.
            let Some(mut record) = Record::read(&data) else { return Ok(Duration::ZERO) };
            if record == Record::default() {
                return Ok(Duration::ZERO);
            }
            let view = match listed {
                Ok(children) => View::of(children),
                Err(Trouble::NoNode) => View::default(),
                Err(trouble) => return Err(trouble),
            };
            self.ask_wall().await;
            let (before, now) = (record.clone(), self.wall_now());
            record.notice(&view, own, now);
            if record != before {
                match self.set(dir, &record.write(), Some(stat.version)).await {
                    // Somebody was faster: it may have left in order.
                    Err(Trouble::Changed) => continue,
                    done => drop(done?),
                }
            }
            return Ok(record.closed(now).time);
        }
    }

    /// For how long a name is closed, and to whom, for whoever only looks.
    pub(super) async fn seen_closed(&self, dir: &str, view: &View) -> Answer<Closed> {
        match self.data(dir).await {
            Ok((data, _)) => {
                let (mut record, now) = (Record::read(&data).unwrap_or_default(), self.wall_now());
                // Whoever is next in line may be about to notice.
                record.notice(view, None, now);
                Ok(record.closed(now))
            }
            Err(Trouble::NoNode) => Ok(Closed::default()),
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

    fn view(nodes: &[&str]) -> View {
        View::of(nodes.iter().map(|node| (*node).to_owned()).collect())
    }

    fn armed(delays: &[(&str, u64)]) -> Record {
        let delays = delays.iter().map(|(node, delay)| ((*node).to_owned(), *delay)).collect();
        Record { delays, ..Record::default() }
    }

    #[test]
    fn only_those_who_failed_close_the_name() {
        let mut record = armed(&[("a-lease-0000000001", 500), ("b-lease-0000000002", 900)]);
        let (b, nobody) = (view(&["b-lease-0000000002"]), view(&[]));
        record.notice(&view(&["a-lease-0000000001", "b-lease-0000000002"]), None, 10_000);
        assert_eq!((record.delays.len(), record.closed_until_ms), (2, 0));
        record.notice(&b, None, 10_000);
        assert_eq!((record.delays.len(), record.closed_until_ms), (1, 10_500));
        // Noticed once, it is not counted anew.
        record.notice(&b, None, 10_400);
        assert_eq!(record.closed_until_ms, 10_500);
        record.notice(&nobody, None, 10_600);
        assert_eq!((record.delays.len(), record.closed_until_ms), (0, 11_500));
        record.notice(&nobody, None, 11_500);
        assert!(record.write().is_empty());
    }

    /// Which of the nodes are kept out when the one named fails, and the last
    /// of them notices.
    fn kept_out(failed: &str, nodes: &[&str]) -> Vec<bool> {
        let (mut record, view) = (armed(&[(failed, 500)]), view(nodes));
        record.notice(&view, nodes.last().copied(), 10_000);
        view.line.iter().map(|child| record.closed(10_000).keeps_out(child)).collect()
    }

    #[test]
    fn who_was_in_beside_a_failed_one_still_is() {
        assert_eq!(kept_out("a-lock-0000000003", &["b-lock-0000000004"]), [true]);
        let readers = ["b-__READ__0000000002", "c-__READ__0000000005", "d-__READ__0000000006"];
        assert_eq!(kept_out("a-__READ__0000000003", &readers), [false, false, true]);
        assert_eq!(kept_out("a-__READ__0000000007", &readers), [false, false, false]);
        // Readers behind a writer were not in.
        assert_eq!(kept_out("a-__WRIT__0000000001", &readers), [true, true, true]);
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
