//! `info`: what this engine promises, and what it does not.

use lockkeeper::Keeper;
use lockkeeper::engine::TokenStrength;
use serde_json::json;

use crate::Outcome;
use crate::output::{Output, millis, span, table};

/// Says what the engine is good for.
pub(super) fn info(keeper: &Keeper, output: &Output) -> Outcome {
    let info = keeper.info();
    if output.json {
        let fields = json!({
            "engine": info.engine, "label": info.label, "ordered": info.ordered,
            "polled": info.polled, "tokens": info.tokens, "caveat": info.caveat,
            "kinds": info.kinds, "min_lease_ms": millis(info.min_lease),
            "lingers": info.lingers, "version": env!("CARGO_PKG_VERSION"),
        });
        output.data(&fields.to_string())?;
        return Ok(0);
    }
    let pick = |yes: bool, this: &'static str, that: &'static str| if yes { this } else { that };
    let order = pick(info.ordered, "first come, first served", "in no order");
    let wake = pick(info.polled, "by asking again", "by push");
    let tokens = match info.tokens {
        TokenStrength::Durable => "grow for ever, over every restart",
        TokenStrength::Clocked => "grow, unless data and clock go back together",
        TokenStrength::Process => "grow as long as this process lives",
    };
    let kinds: Vec<String> = info.kinds.iter().map(ToString::to_string).collect();
    let caveat = if info.caveat.is_empty() { "none known" } else { &info.caveat };
    let line = |what: &str, fact: &str| vec![what.to_owned(), fact.to_owned()];
    let rows = [
        line("where", &info.label),
        line("waiters", &format!("served {order}, woken {wake}")),
        line("tokens", tokens),
        line("kinds", &kinds.join(", ")),
        line("lease", &format!("{} at least", span(info.min_lease))),
        line("does not", caveat),
    ];
    output.data(&table(&["engine", &info.engine], &rows))?;
    Ok(0)
}
