//! Looking after grants: whether they are broken, whether their sessions live.

use std::sync::Weak;
use std::time::Duration;

use super::super::fault::{Fault, Stage};
use super::task::{Order, Stand};
use super::{Post, SPARE_TIME, Shared};
use crate::token::ClaimId;

/// How often the control session looks for broken grants.
const LOOK: Duration = Duration::from_millis(500);
/// How often it looks for dead sessions too, where the driver does not notice
/// the end of a connection by itself.
const WATCH: Duration = Duration::from_millis(100);

/// Looks after the grants of a keeper, as long as there is one: whether they
/// are broken, and where nobody else notices, whether their sessions live.
pub(super) async fn watch_over(shared: Weak<Shared>) {
    let pause = match shared.upgrade() {
        Some(shared) if shared.control.words.alive(&[]).is_some() => WATCH,
        _ => LOOK,
    };
    let every = (LOOK.as_millis() / pause.as_millis()).max(1);
    let mut round = 0;
    loop {
        tokio::time::sleep(pause).await;
        let Some(shared) = shared.upgrade() else { return };
        round += 1;
        shared.look_after(round % every == 0).await;
    }
}

impl Shared {
    async fn look_after(&self, breaks_too: bool) {
        let now = self.seat.clock.now();
        let held: Vec<(ClaimId, Post)> = {
            let mut desk = self.desk();
            desk.spares.retain(|(wire, since)| !wire.is_over() && *since + SPARE_TIME > now);
            let held = desk.posts.iter().filter(|(claim, post)| {
                post.main == **claim && matches!(*post.stand.borrow(), Stand::Held(_))
            });
            held.map(|(claim, post)| (*claim, post.clone())).collect()
        };
        if held.is_empty() {
            return;
        }
        if let Err(fault) = self.look_at(&held, breaks_too).await {
            tracing::debug!(error = %fault.at(Stage::Work), "the control session failed");
            // What ended it may have ended the others.
            for (_, post) in &held {
                let _ = post.orders.send(Order::Check);
            }
        }
    }

    async fn look_at(&self, held: &[(ClaimId, Post)], breaks_too: bool) -> Result<(), Fault> {
        let words = &self.control.words;
        if breaks_too {
            let claims: Vec<ClaimId> = held.iter().map(|(claim, _)| *claim).collect();
            let tables = self.control.ask(&words.broken(&claims)).await?;
            for row in tables.iter().flat_map(|table| &table.rows) {
                let (claim, reason) = (row.text(0)?, words.read(row.text(1)?)?);
                let post = held.iter().find(|(held, _)| held.to_string() == claim);
                if let Some((_, post)) = post {
                    let _ = post.orders.send(Order::Broken(reason.into()));
                }
            }
        }
        let sessions: Vec<u64> = held.iter().map(|(_, post)| *post.session.borrow()).collect();
        let Some(alive) = words.alive(&sessions) else { return Ok(()) };
        let tables = self.control.ask(&alive).await?;
        let rows = tables.iter().flat_map(|table| &table.rows);
        let alive: Vec<u64> =
            rows.map(|row| row.number(0).map(i64::unsigned_abs)).collect::<Result<_, _>>()?;
        for (_, post) in held.iter().filter(|(_, post)| !alive.contains(&post.session.borrow())) {
            let _ = post.orders.send(Order::Check);
        }
        Ok(())
    }
}
