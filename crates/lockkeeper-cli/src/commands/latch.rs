//! `latch`: set, count down, wait, remove.

use lockkeeper::{ErrorKind, Keeper, Latch, LockOptions, Opened};
use serde_json::{Value, json};

use crate::Outcome;
use crate::args::LatchAction;
use crate::exit::{self, Failure};
use crate::keeper::{answer, patiently};
use crate::output::Output;

/// Does one thing with a latch.
pub(super) async fn latch(
    keeper: &Keeper,
    name: &str,
    action: LatchAction,
    output: &Output,
) -> Outcome {
    let latch = keeper.latch(name);
    match action {
        LatchAction::Set { count, keep } => {
            let set = answer(keeper, output, latch.keep(keep).set(count)).await?;
            let (text, fields) = match set {
                true => (format!("set to {count}"), json!({ "name": name, "set": true })),
                false => (
                    "unchanged: a closed one is there".to_owned(),
                    json!({ "name": name, "set": false }),
                ),
            };
            tell(output, name, &text, &fields)?;
            Ok(0)
        }
        LatchAction::Down { id } => {
            down(&latch, name, &id.unwrap_or(keeper.id().to_string()), output).await
        }
        LatchAction::Wait { wait } => {
            let mut options = LockOptions::default();
            options.wait = wait;
            wait_for(latch.with_options(options), name, output).await
        }
        LatchAction::Remove => {
            answer(keeper, output, latch.remove()).await?;
            tell(output, name, "removed", &json!({ "name": name, "removed": true }))?;
            Ok(0)
        }
    }
}

async fn down(latch: &Latch, name: &str, id: &str, output: &Output) -> Outcome {
    let Some(remaining) = latch.count_down(id).await? else {
        let text = format!("latch {name:?}: there is none to count down");
        return Err(Failure::new(exit::LOST, "absent", text)
            .hint("set it first: lockkeeper latch NAME set N"));
    };
    let text = match remaining {
        0 => "open".to_owned(),
        more => format!("{more} to go"),
    };
    tell(output, name, &text, &json!({ "name": name, "remaining": remaining }))?;
    Ok(0)
}

async fn wait_for(latch: Latch, name: &str, output: &Output) -> Outcome {
    let opened = patiently(output, &format!("waiting for the latch {name:?}"), latch.wait()).await;
    match opened {
        Ok(Opened::Open) => {
            tell(output, name, "open", &json!({ "name": name, "open": true }))?;
            Ok(0)
        }
        Ok(Opened::Gone) => {
            let text = format!("latch {name:?}: removed before it was open");
            Err(Failure::new(exit::LOST, "gone", text))
        }
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            let text = format!("latch {name:?}: not open in time");
            Err(Failure::new(exit::BUSY, "timed_out", text))
        }
        Err(error) => Err(error.into()),
    }
}

fn tell(output: &Output, name: &str, text: &str, fields: &Value) -> Result<(), Failure> {
    if output.json {
        return output.data(&fields.to_string());
    }
    output.say(&format!("latch {name:?}: {text}"));
    Ok(())
}
