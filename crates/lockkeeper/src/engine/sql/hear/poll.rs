//! Looking for what others did, where the server does not push it.

use std::time::Duration;

use tokio::time::Instant;

use super::super::fault::{Class, Fault};
use super::super::wire::{Connection, ask, connect};
use super::{Need, SPARE, Shared};

/// How soon after news more is looked for.
const SOON: Duration = Duration::from_millis(5);
/// How often a waiting keeper looks when there has been no news for a while.
const OFTEN: Duration = Duration::from_millis(100);
/// How often a keeper looks that only holds.
const SELDOM: Duration = Duration::from_secs(1);
/// How often lines that nobody takes are swept away.
const SWEEP: Duration = Duration::from_secs(60);

/// Looks for lines again and again, until nobody needs it any more.
pub(super) async fn poll(shared: &Shared, failures: &mut u32) -> Result<(), Fault> {
    let mut connection = connect(&shared.sql, None).await?;
    let (mut pace, mut idle) = (SOON, Instant::now());
    let mut swept: Option<Instant> = None;
    loop {
        let need = shared.need();
        if need != Need::None {
            idle = Instant::now();
        }
        if idle.elapsed() > SPARE || shared.is_closed() {
            connection.close().await;
            return Ok(());
        }
        if need == Need::None {
            let _ = tokio::time::timeout(SPARE, shared.wanted()).await;
            continue;
        }
        if swept.is_none_or(|at| at.elapsed() > SWEEP) {
            sweep(shared, &mut *connection).await?;
            swept = Some(Instant::now());
        }
        let heard = take(shared, &mut *connection).await?;
        *failures = 0;
        pace = match need {
            _ if heard || shared.lock().news.take().is_some() => SOON,
            Need::Waiting => (pace * 3 / 2).min(OFTEN),
            _ => SELDOM,
        };
        // Not in step with others.
        let pause = pace.mul_f64(0.8 + fastrand::f64() * 0.4);
        let pause = tokio::time::sleep(pause);
        if need == Need::Waiting {
            pause.await;
        } else {
            tokio::select! {
                () = pause => {}
                () = shared.wanted.notified() => {}
            }
        }
    }
}

/// Takes the lines for this keeper; whether there were any.
async fn take(shared: &Shared, connection: &mut dyn Connection) -> Result<bool, Fault> {
    let (table, keeper) = (shared.sql.table("mail"), shared.seat.keeper);
    let look = format!("SELECT id, line FROM {table} WHERE keeper = '{keeper}' ORDER BY id");
    let tables = ask(connection, &look, shared.sql.command).await?;
    let rows = tables.last().map_or(&[][..], |table| &table.rows);
    let mut ids = Vec::with_capacity(rows.len());
    for row in rows {
        ids.push(row.number(0)?.to_string());
        shared.hear(row.text(1)?);
    }
    if ids.is_empty() {
        return Ok(false);
    }
    // Those that were read, by number: others may be committed meanwhile.
    let ids = ids.join(", ");
    let delete = format!("DELETE FROM {table} WHERE keeper = '{keeper}' AND id IN ({ids})");
    match ask(connection, &delete, shared.sql.command).await {
        // Heard twice does no harm.
        Err(fault) if matches!(fault.class, Class::Conflict | Class::Locked) => Ok(true),
        other => other.map(|_| true),
    }
}

/// Sweeps away lines for keepers that are gone.
async fn sweep(shared: &Shared, connection: &mut dyn Connection) -> Result<(), Fault> {
    let (table, clock) = (shared.sql.table("mail"), shared.sql.dialect.clock());
    let delete = format!("DELETE FROM {table} WHERE until_us < {clock} LIMIT 1000");
    match ask(connection, &delete, shared.sql.command).await {
        Err(fault) if matches!(fault.class, Class::Conflict | Class::Locked) => Ok(()),
        other => other.map(drop),
    }
}
