//! A step tells every row it changed: engines that store rows write no others.

use lockkeeper::engine::Kind;
use lockkeeper::model::{Finished, Record, Row, Time, Watcher};
use lockkeeper::{ClaimId, Token};

use super::law::{Breach, Law, Snapshot};
use super::setup::Setup;

/// The rest of a record before a step.
#[derive(Debug, Default)]
pub(super) struct Others {
    name: Name,
    pub(super) watchers: Vec<Watcher>,
    finished: Vec<Finished>,
}

/// What the name's own row holds, of what claims can change. When the name was
/// last used is not among it: an engine may note that when it likes.
type Name = (Option<Kind>, u32, Token, u64, Time);

fn name(record: &Record) -> Name {
    let Record { kind, capacity, counter, last_ticket, closed_until, .. } = *record;
    (kind, capacity, counter, last_ticket, closed_until)
}

impl Others {
    pub(super) fn take(&mut self, record: &Record) {
        self.name = name(record);
        self.watchers.clear();
        self.watchers.extend(&record.watchers);
        self.finished.clone_from(&record.finished);
    }
}

/// Checks that whatever differs was told.
pub(super) fn check(
    setup: &Setup,
    before: &Snapshot,
    after: &Record,
    rows: &[Row],
) -> Result<(), Breach> {
    let told =
        |row: Row| setup.demand(Law::Rows, rows.contains(&row), || format!("{row:?} was not told"));
    if before.others.name != name(after) {
        told(Row::Name)?;
    }
    let (old, new) = (before.holders.iter(), after.holders.iter());
    differing(old, new, |held| held.claim, |claim| told(Row::Holder(claim)))?;
    let (old, new) = (before.queue.iter(), after.queue.iter());
    differing(old, new, |ticket| ticket.claim, |claim| told(Row::Ticket(claim)))?;
    let (old, new) = (before.others.watchers.iter(), after.watchers.iter());
    differing(old, new, |watcher| watcher.claim, |claim| told(Row::Watcher(claim)))?;
    let (old, new) = (before.others.finished.iter(), after.finished.iter());
    differing(old, new, |finished| finished.claim, |claim| told(Row::Finished(claim)))
}

/// Calls `told` for every claim whose row is not the same on both sides.
fn differing<'a, T: PartialEq + 'a>(
    old: impl Iterator<Item = &'a T> + Clone,
    new: impl Iterator<Item = &'a T> + Clone,
    claim: impl Fn(&T) -> ClaimId,
    told: impl Fn(ClaimId) -> Result<(), Breach>,
) -> Result<(), Breach> {
    for row in old.clone() {
        if !new.clone().any(|other| other == row) {
            told(claim(row))?;
        }
    }
    for row in new {
        if !old.clone().any(|other| other == row) {
            told(claim(row))?;
        }
    }
    Ok(())
}
