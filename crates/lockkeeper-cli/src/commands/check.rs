//! `check` and `fence`: is it still mine, and may it still write?

use lockkeeper::engine::Holder;
use lockkeeper::{Keeper, Token};
use serde_json::json;

use crate::Outcome;
use crate::exit::{self, Failure};
use crate::keeper::answer;
use crate::output::{Output, millis};
use crate::run::environment::owner_here;
use crate::view;

/// Asks the engine whether a lock is still held: by its token, or by the
/// owner that `run` left in the environment.
pub(super) async fn check(
    keeper: &Keeper,
    name: &str,
    token: Option<Token>,
    output: &Output,
) -> Outcome {
    let owner = owner_here(keeper, name);
    if token.is_none() && owner.is_none() {
        let text =
            format!("check {name:?}: nothing in the environment says that it was locked here");
        return Err(Failure::usage(text).hint(
            "use it in a command under `lockkeeper run`, on the same engine, or give --token",
        ));
    }
    let status = answer(keeper, output, keeper.status(name)).await?;
    let is_ours = |holder: &&Holder| match token {
        Some(token) => holder.token == Some(token),
        None => owner.as_ref() == Some(&holder.claim.to_string()),
    };
    let ours = status.holders.iter().find(is_ours).filter(|holder| !holder.revoked);
    if output.json {
        let left = ours.map(|holder| millis(holder.lease_left));
        let token = ours.and_then(|holder| holder.token).or(token);
        let fields = json!({
            "name": name, "held": ours.is_some(), "token": token, "lease_left_ms": left,
        });
        output.data(&fields.to_string())?;
        return Ok(if ours.is_some() { 0 } else { exit::LOST });
    }
    if ours.is_some() {
        return Ok(0);
    }
    let now = match status.holders.is_empty() {
        true => "nobody holds it".to_owned(),
        false => format!("it is held by {}", view::holders(&status.holders)),
    };
    Err(Failure::new(exit::LOST, "lost", format!("check {name:?}: the lock is lost: {now}")))
}

/// Shows a token to a resource's fence.
pub(super) async fn fence(
    keeper: &Keeper,
    resource: &str,
    token: Token,
    output: &Output,
) -> Outcome {
    let fence = keeper.fence(resource);
    let verdict = answer(keeper, output, fence.check(token)).await;
    if output.json {
        let highest = match &verdict {
            Ok(()) => Some(token),
            Err(_) => fence.highest().await?,
        };
        let accepted = verdict.is_ok();
        let fields = json!({
            "resource": resource, "token": token, "accepted": accepted, "highest": highest,
        });
        match verdict {
            Err(error) if error.kind() != lockkeeper::ErrorKind::Stale => return Err(error.into()),
            _ => output.data(&fields.to_string())?,
        }
        return Ok(if accepted { 0 } else { exit::STALE });
    }
    verdict?;
    Ok(0)
}
