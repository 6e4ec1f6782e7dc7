//! `break`: shows the holder, asks, then takes the lock away.

use std::io::{IsTerminal, Write};

use lockkeeper::Keeper;
use lockkeeper::engine::{Found, Holder, Revoke};
use serde_json::json;

use crate::Outcome;
use crate::args::BreakArgs;
use crate::exit::{self, Failure};
use crate::keeper::answer;
use crate::output::{Output, span, tame};
use crate::view;

/// Takes a lock from whoever holds it.
pub(super) async fn break_lock(keeper: &Keeper, args: BreakArgs, output: &Output) -> Outcome {
    let status = answer(keeper, output, keeper.status(&args.name)).await?;
    let wanted = |holder: &&Holder| match &args.owner {
        Some(owner) => holder.claim.to_string() == *owner,
        None => true,
    };
    let victims: Vec<&Holder> = status.holders.iter().filter(wanted).collect();
    if victims.is_empty() {
        output.say(&format!("nothing to break: nobody holds {:?}", args.name));
        return report(&args, &[], output);
    }
    for victim in &victims {
        output.say(&format!("{:?} is held by {}", args.name, describe(victim)));
    }
    if args.now {
        output.say(
            "--now frees the name while its holder may still be at work: two may work at once",
        );
    }
    if !args.yes {
        confirm(&args)?;
    }
    let how = if args.now { Revoke::Now } else { Revoke::Orderly };
    let mut broken = Vec::new();
    for victim in victims {
        let revoke = keeper.revoke(&args.name, victim, how, args.reason.as_str());
        if answer(keeper, output, revoke).await? == Found::Held {
            broken.push(victim);
        }
    }
    match (broken.iter().map(|victim| victim.lease_left).max(), args.now) {
        (None, _) => output.say("it was released in the meantime"),
        (Some(_), true) => output.say("broken: the name is free now"),
        (Some(left), false) => output.say(&format!(
            "broken: its holder is told; the name passes on when it lets go, or in {} at latest",
            span(left)
        )),
    }
    report(&args, &broken, output)
}

fn describe(holder: &Holder) -> String {
    let mut text = view::holders(std::slice::from_ref(holder));
    if let Some(token) = holder.token {
        text.push_str(&format!(", token {token}"));
    }
    if holder.revoked {
        text.push_str(", broken already");
    }
    text
}

fn report(args: &BreakArgs, broken: &[&Holder], output: &Output) -> Outcome {
    if output.json {
        let broken: Vec<_> = broken.iter().map(|holder| view::holder(holder)).collect();
        let fields = json!({ "name": args.name, "broken": broken, "now": args.now });
        output.data(&fields.to_string())?;
    }
    Ok(0)
}

/// Asks on the terminal; without one, nobody can have meant it.
fn confirm(args: &BreakArgs) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        let text =
            format!("break {:?}: not confirmed, and there is no terminal to ask on", args.name);
        return Err(Failure::usage(text).hint("add --yes to break without asking"));
    }
    let mut stderr = std::io::stderr();
    write!(stderr, "break {}? [y/N] ", tame(&args.name))?;
    stderr.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(exit::NOT_PERMITTED, "declined", "not broken")),
    }
}
