//! Opening and closing the engine, never silently for long.

use std::future::Future;
use std::time::Duration;

use lockkeeper::{Keeper, redact};

use crate::args::Common;
use crate::exit::Failure;
use crate::output::Output;

/// How long something may take before people are told what it is.
const SILENCE: Duration = Duration::from_secs(1);

/// Opens the engine that the command line or the environment names.
pub(crate) async fn open(common: &Common, output: &Output) -> Result<Keeper, Failure> {
    let url = &common.engine;
    let connect = Keeper::connect(url);
    let waiting = format!("waiting for an answer from {}", redact(url));
    patiently(output, &waiting, connect).await.map_err(Failure::connecting)
}

/// Says good-bye to the engine; what is left undone ends with its lease.
pub(crate) async fn close(keeper: &Keeper) {
    let _ = tokio::time::timeout(Duration::from_millis(700), keeper.close()).await;
}

/// Awaits `work`, and says what takes so long when it does.
pub(crate) async fn patiently<F: Future>(output: &Output, what: &str, work: F) -> F::Output {
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(SILENCE, &mut work).await {
        return done;
    }
    output.say(what);
    work.await
}

/// Awaits an answer of the engine, and says so when it takes long.
pub(crate) async fn answer<T>(
    keeper: &Keeper,
    output: &Output,
    question: impl Future<Output = lockkeeper::Result<T>>,
) -> lockkeeper::Result<T> {
    let waiting = format!("waiting for an answer from {}", keeper.info().label);
    patiently(output, &waiting, question).await
}

/// Says so if anybody who may list processes can read a password in this URL.
pub(crate) fn warn_of_secret(common: &Common, output: &Output) {
    let in_environment = std::env::var("LOCKKEEPER_URL").is_ok_and(|url| url == common.engine);
    if common.engine.contains('@') && !in_environment {
        output
            .say("note: --engine shows its password to all users of this host; use LOCKKEEPER_URL");
    }
}
