//! Hearing where the server pushes.

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::fault::{Class, Fault};
use super::super::postgres;
use super::super::wire::{ask, connect};
use super::{Need, SPARE, Shared};
use crate::engine::Event;

/// Listens until nobody needs it any more.
pub(super) async fn listen(shared: &Shared, failures: &mut u32) -> Result<(), Fault> {
    let (sender, mut lines) = mpsc::unbounded_channel();
    let mut connection = connect(&shared.sql, Some(sender)).await?;
    let channel = postgres::channel(shared.seat.keeper);
    ask(&mut *connection, &format!("LISTEN {channel}"), shared.sql.command).await?;
    shared.ready.send_replace(true);
    // What was told while nobody listened is found by asking. Whoever begins
    // to wait does that by itself.
    if std::mem::take(failures) > 0 || !shared.lock().held.is_empty() {
        shared.seat.events.push(Event::Link { shard: 0, up: true });
    }
    let mut idle = Instant::now();
    loop {
        if shared.need() != Need::None {
            idle = Instant::now();
        }
        if idle.elapsed() > SPARE || shared.is_closed() {
            connection.close().await;
            return Ok(());
        }
        tokio::select! {
            line = lines.recv() => match line {
                Some(line) => shared.hear(&line),
                None => return Err(Fault::new(Class::Lost, "the server ended the connection")),
            },
            () = shared.wanted.notified() => {}
            () = tokio::time::sleep(SPARE) => {}
        }
    }
}
