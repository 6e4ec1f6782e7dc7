//! Everything but `run`: looking, breaking, checking, latches, and papers.

mod breaking;
mod check;
mod database;
mod info;
mod latch;
mod look;
mod papers;
mod watch;

use crate::Outcome;
use crate::args::{Command, Common};
use crate::keeper;
use crate::output::Output;

pub(crate) use database::{gc, schema};
pub(crate) use papers::{completions, man};

/// Opens the engine, does what is asked, and says good-bye.
pub(crate) async fn dispatch(common: &Common, command: Command, output: &Output) -> Outcome {
    let keeper = keeper::open(common, output).await?;
    let outcome = match command {
        Command::Ls { prefix } => look::ls(&keeper, &prefix, output).await,
        Command::Status { name } => look::status(&keeper, &name, output).await,
        Command::Watch { name, interval } => watch::watch(&keeper, &name, interval, output).await,
        Command::Break(args) => breaking::break_lock(&keeper, args, output).await,
        Command::Check { name, token } => check::check(&keeper, &name, token, output).await,
        Command::Fence { resource, token } => check::fence(&keeper, &resource, token, output).await,
        Command::Latch { name, action } => latch::latch(&keeper, &name, action, output).await,
        Command::Info => info::info(&keeper, output),
        // Dispatched before an engine was opened.
        Command::Run(_)
        | Command::Bench(_)
        | Command::Schema { .. }
        | Command::Gc { .. }
        | Command::Completions { .. }
        | Command::Man => Ok(0),
    };
    keeper::close(&keeper).await;
    outcome
}
