//! `watch`: a name's life, change by change.

use std::time::Duration;

use lockkeeper::Keeper;
use lockkeeper::engine::Status;

use crate::Outcome;
use crate::commands::look;
use crate::exit::Failure;
use crate::output::Output;

/// Shows a name whenever it changes, until somebody interrupts us.
///
/// Engines push to those who wait for a lock, not to those who look: this asks.
pub(super) async fn watch(
    keeper: &Keeper,
    name: &str,
    interval: Duration,
    output: &Output,
) -> Outcome {
    if interval < Duration::from_millis(50) {
        return Err(Failure::usage("--interval must be 50ms at least: the engine has other work"));
    }
    let mut last = None;
    loop {
        let status = keeper.status(name).await?;
        let now = gist(&status);
        if last.as_ref() != Some(&now) {
            look::show(&status, output)?;
            last = Some(now);
        }
        tokio::time::sleep(interval).await;
    }
}

/// What counts as a change: not that everybody grows older.
fn gist(status: &Status) -> Vec<String> {
    let holders =
        status.holders.iter().map(|holder| format!("{} {}", holder.claim, holder.revoked));
    let waiters = status.waiters.iter().map(|waiter| waiter.claim.to_string());
    let rest = format!("{:?} {:?} {}", status.cell, status.token, status.closed_for.is_zero());
    holders.chain(["/".to_owned()]).chain(waiters).chain([rest]).collect()
}
