//! How the state of a name is shown: stable JSON for machines, lines for people.

use lockkeeper::engine::{About, Cell, Holder, Mode, Status, Waiter};
use serde_json::{Value, json};

use crate::output::{millis, span, tame};

/// A name's state as JSON.
pub(crate) fn status(status: &Status) -> Value {
    json!({
        "name": status.name,
        "kind": status.kind,
        "holders": status.holders.iter().map(holder).collect::<Vec<_>>(),
        "waiters": status.waiters.iter().map(waiter).collect::<Vec<_>>(),
        "token": status.token,
        "closed_for_ms": millis(status.closed_for),
        "number": status.cell.as_ref().map(number),
    })
}

/// A holder as JSON.
pub(crate) fn holder(holder: &Holder) -> Value {
    let mut view = someone(&holder.about, holder.mode);
    view["owner"] = json!(holder.claim.to_string());
    view["token"] = json!(holder.token);
    view["age_ms"] = json!(millis(holder.age));
    view["lease_left_ms"] = json!(millis(holder.lease_left));
    view["revoked"] = json!(holder.revoked);
    view
}

fn waiter(waiter: &Waiter) -> Value {
    let mut view = someone(&waiter.about, waiter.mode);
    view["owner"] = json!(waiter.claim.to_string());
    view["age_ms"] = json!(millis(waiter.age));
    view
}

fn someone(about: &About, mode: Mode) -> Value {
    let permits = match mode {
        Mode::Permits { count, .. } => Some(count),
        _ => None,
    };
    json!({
        "mode": word(mode), "permits": permits,
        "who": about.who, "host": about.host, "pid": about.pid, "note": about.note,
    })
}

fn number(cell: &Cell) -> Value {
    match cell {
        Cell::Absent => Value::Null,
        Cell::Latch { remaining, .. } => json!({ "latch_remaining": remaining }),
        Cell::Capacity(capacity) => json!({ "capacity": capacity }),
        Cell::Fence { highest } => json!({ "fence_highest": highest }),
    }
}

/// A mode in one word.
pub(crate) fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Write => "write",
        Mode::Read => "read",
        Mode::Permits { .. } => "permits",
    }
}

/// The number behind a name, for people.
pub(crate) fn describe_number(cell: &Cell) -> String {
    match cell {
        Cell::Absent => "nothing".to_owned(),
        Cell::Latch { remaining: 0, .. } => "open".to_owned(),
        Cell::Latch { remaining, .. } => format!("closed, {remaining} to go"),
        Cell::Capacity(capacity) => format!("capacity {capacity}"),
        Cell::Fence { highest } => format!("highest token {highest}"),
    }
}

/// Who it is: `alice@ci-7 (pid 4121)`.
pub(crate) fn person(about: &About) -> String {
    tame(&format!("{}@{} (pid {})", about.who, about.host, about.pid))
}

/// Who holds: `alice@ci-7 (pid 4121) for 3m12s, note: release 2.14`.
pub(crate) fn holders(holders: &[Holder]) -> String {
    let Some(first) = holders.first() else {
        return "nobody any more".to_owned();
    };
    let mut text = format!("{} for {}", person(&first.about), span(first.age));
    match holders.len() - 1 {
        0 => {}
        1 => text.push_str(" and 1 other"),
        more => text.push_str(&format!(" and {more} others")),
    }
    if !first.about.note.is_empty() {
        text.push_str(&format!(", note: {}", tame(&first.about.note)));
    }
    text
}
