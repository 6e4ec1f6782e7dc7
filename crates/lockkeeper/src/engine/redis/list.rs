//! Lists names: SCAN, never KEYS.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use redis::{FromRedisValue, cmd};

use super::RedisEngine;
use super::keys::{name_of, pattern};
use crate::engine::{Cursor, Engine, Page, Status};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// How many names one page of a listing looks at at most.
const LOOKS: usize = 2048;

/// One page of the names in use that start with `prefix`.
pub(super) async fn page(
    engine: &RedisEngine,
    prefix: &str,
    from: Option<Cursor>,
    limit: usize,
) -> Result<Page> {
    let from = from.map(|Cursor(from)| from);
    let (names, more) = names(engine, prefix, from.as_deref()).await?;
    let mut entries = Vec::new();
    for batch in names.chunks(256) {
        let looks = join_all(batch.iter().map(|name| engine.inspect(name))).await;
        for (name, status) in batch.iter().zip(looks) {
            let status = status?;
            if !status.is_in_use() {
                continue;
            }
            if entries.len() == limit {
                let last = entries.last().map(|last: &Status| last.name.clone());
                let last = last.unwrap_or_else(|| name.clone());
                return Ok(Page { entries, next: Some(Cursor(last.into())) });
            }
            entries.push(status);
        }
    }
    let next = names.last().filter(|_| more).map(|last| Cursor(last.clone().into()));
    Ok(Page { entries, next })
}

/// The names from `from` on that have a record, in order, and whether there are
/// more than one page looks at.
async fn names(
    engine: &RedisEngine,
    prefix: &str,
    from: Option<&str>,
) -> Result<(Vec<LockName>, bool)> {
    let pattern = pattern(&engine.prefix, prefix);
    let mut names = BTreeSet::new();
    let (mut server, mut cursor, mut more) = (0, 0_u64, false);
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
        let Some(value) = engine.route.send_to(server, &scan).await? else {
            return Ok((names.into_iter().collect(), more));
        };
        let (next, keys) = <(u64, Vec<String>)>::from_redis_value(value)
            .map_err(|error| Error::new(ErrorKind::Unexpected, error.to_string()))?;
        let found = keys.iter().filter_map(|key| name_of(&engine.prefix, key));
        names.extend(found.filter(|name| from.is_none_or(|from| name.as_str() > from)));
        while names.len() > LOOKS {
            names.pop_last();
            more = true;
        }
        cursor = next;
        if cursor == 0 {
            server += 1;
        }
    }
}
