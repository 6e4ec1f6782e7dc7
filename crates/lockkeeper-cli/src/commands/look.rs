//! `ls` and `status`: who holds what.

use lockkeeper::Keeper;
use lockkeeper::engine::{Holder, Status};
use serde_json::json;

use crate::Outcome;
use crate::keeper::answer;
use crate::output::{Output, span, table, tame};
use crate::view;

/// How many names are asked for at once.
const PAGE: usize = 1000;

/// Lists the names in use.
pub(super) async fn ls(keeper: &Keeper, prefix: &str, output: &Output) -> Outcome {
    let mut entries = Vec::new();
    let mut from = None;
    loop {
        let page = answer(keeper, output, keeper.list(prefix, from, PAGE)).await?;
        entries.extend(page.entries);
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    if output.json {
        let names: Vec<_> = entries.iter().map(view::status).collect();
        output.data(&json!({ "names": names }).to_string())?;
        return Ok(0);
    }
    if entries.is_empty() {
        output.say("no name is in use");
        return Ok(0);
    }
    let rows: Vec<_> = entries.iter().map(row).collect();
    let header = ["NAME", "KIND", "HOLDER", "AGE", "LEASE LEFT", "TOKEN", "WAITERS", "NOTE"];
    output.data(&table(&header, &rows))?;
    Ok(0)
}

fn row(status: &Status) -> Vec<String> {
    let first = status.holders.first();
    let of_first = |tell: &dyn Fn(&Holder) -> String| first.map_or("-".to_owned(), tell);
    let mut holder = of_first(&|holder| {
        tame(&format!("{}@{}:{}", holder.about.who, holder.about.host, holder.about.pid))
    });
    match status.holders.len() {
        0 if !status.closed_for.is_zero() => {
            holder = format!("closed for {}", span(status.closed_for));
        }
        0 => holder = status.cell.as_ref().map_or(holder, view::describe_number),
        1 => {}
        more => holder.push_str(&format!(" +{}", more - 1)),
    }
    vec![
        tame(status.name.as_str()),
        status.kind.map_or("-".to_owned(), |kind| kind.to_string()),
        holder,
        of_first(&|holder| span(holder.age)),
        of_first(&|holder| lease(holder)),
        status.token.map_or("-".to_owned(), |token| token.to_string()),
        status.waiters.len().to_string(),
        tame(first.map_or("", |holder| &holder.about.note)),
    ]
}

fn lease(holder: &Holder) -> String {
    let left = span(holder.lease_left);
    if holder.revoked { format!("{left}, broken") } else { left }
}

/// Shows one name.
pub(super) async fn status(keeper: &Keeper, name: &str, output: &Output) -> Outcome {
    let status = answer(keeper, output, keeper.status(name)).await?;
    show(&status, output)?;
    Ok(0)
}

/// Writes one name's state to stdout.
pub(super) fn show(status: &Status, output: &Output) -> Result<(), crate::exit::Failure> {
    if output.json {
        return output.data(&view::status(status).to_string());
    }
    output.data(&describe(status))
}

fn describe(status: &Status) -> String {
    let mut text = tame(status.name.as_str());
    match status.kind {
        Some(kind) => text.push_str(&format!(": {kind}")),
        None => text.push_str(": never used, or forgotten"),
    }
    if let Some(cell) = &status.cell {
        text.push_str(&format!(", {}", view::describe_number(cell)));
    }
    if let Some(token) = status.token {
        text.push_str(&format!(", last token {token}"));
    }
    if !status.closed_for.is_zero() {
        text.push_str(&format!(", closed for {}", span(status.closed_for)));
    }
    if status.holders.is_empty() && status.waiters.is_empty() {
        text.push_str("\nnobody holds it or waits for it");
        return text;
    }
    text.push('\n');
    text.push_str(&people(status));
    text
}

fn people(status: &Status) -> String {
    let holders = status.holders.iter().map(|holder| {
        vec![
            "holds".to_owned(),
            view::person(&holder.about),
            view::word(holder.mode).to_owned(),
            span(holder.age),
            lease(holder),
            holder.token.map_or("-".to_owned(), |token| token.to_string()),
            holder.claim.to_string(),
            tame(&holder.about.note),
        ]
    });
    let waiters = status.waiters.iter().enumerate().map(|(place, waiter)| {
        vec![
            format!("waits {}", place + 1),
            view::person(&waiter.about),
            view::word(waiter.mode).to_owned(),
            span(waiter.age),
            "-".to_owned(),
            "-".to_owned(),
            waiter.claim.to_string(),
            tame(&waiter.about.note),
        ]
    });
    let rows: Vec<_> = holders.chain(waiters).collect();
    table(&["", "WHO", "MODE", "AGE", "LEASE LEFT", "TOKEN", "OWNER", "NOTE"], &rows)
}
