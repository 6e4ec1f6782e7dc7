//! `schema` and `gc`: what those who look after a database need.

use std::time::Duration;

use lockkeeper::{Sql, redact};
use serde_json::json;

use crate::Outcome;
use crate::exit::Failure;
use crate::keeper::patiently;
use crate::output::Output;

/// Prints the statements that make the tables; asks nobody.
pub(crate) fn schema(url: &str, output: &Output) -> Outcome {
    let statements = Sql::parse(url).map_err(Failure::connecting)?.schema();
    match output.json {
        true => output.data(&json!({ "schema": statements }).to_string())?,
        false => output.data(statements.trim_end())?,
    }
    Ok(0)
}

/// Forgets names that nobody has used for long.
pub(crate) async fn gc(url: &str, idle: Duration, output: &Output) -> Outcome {
    let sql = Sql::parse(url).map_err(Failure::connecting)?;
    let waiting = format!("tidying up {}", redact(url));
    let forgotten = patiently(output, &waiting, sql.forget_idle(idle)).await;
    let forgotten = forgotten.map_err(Failure::connecting)?;
    match output.json {
        true => output.data(&json!({ "forgotten": forgotten }).to_string())?,
        false => output.data(&format!("{forgotten} names forgotten"))?,
    }
    Ok(0)
}
