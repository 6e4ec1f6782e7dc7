//! The statements that every operation is made of.
//!
//! Where the database can, they are prepared once per connection: reading and
//! planning them anew each time would cost as much as running them.

use super::config::Sql;
use super::rows::{CLAIMS, NAMES};
use super::store::{BEAT, COLUMNS, GRANT, HOLDER};

/// A statement with places for values, `$1` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phrase {
    /// Locks the row of a name (1), reads it, and then the clock.
    Lock,
    /// Reads the claims of a name (1), unless they are too many.
    Claims,
    /// Writes all that steps change in the row of a name (1).
    SetName,
    /// The same, but only what changes with who holds.
    SetHolder,
    /// The same, but only what changes from grant to grant to one process.
    SetGrant,
    /// The same, but only what a renewal or a release changes.
    KeepName,
    /// Adds the row of a claim: the columns in order.
    AddClaim,
    /// Changes the row of a claim: name, state, place, claim, then the new
    /// state, place, token, until, since, cause and reason.
    SetClaim,
    /// Keeps a claim alive: name, state, place, claim, then the new end.
    KeepClaim,
    /// Deletes the row of a claim: name, state, place, claim.
    DropClaim,
}

impl Phrase {
    /// All of them.
    #[cfg(feature = "postgres")]
    pub(super) const ALL: &[Phrase] = &[
        Phrase::Lock,
        Phrase::Claims,
        Phrase::SetName,
        Phrase::SetHolder,
        Phrase::SetGrant,
        Phrase::KeepName,
        Phrase::AddClaim,
        Phrase::SetClaim,
        Phrase::KeepClaim,
        Phrase::DropClaim,
    ];
    /// The questions among them, which name many columns for one value.
    #[cfg(feature = "mysql")]
    pub(super) const QUESTIONS: &[Phrase] = &[Phrase::Lock, Phrase::Claims];

    /// What it is called once it is prepared. Behind a pooler a session may
    /// have what others prepared: the name stands for the very statement, so
    /// that nobody is served from the tables of another prefix.
    fn name(self, sql: &Sql) -> String {
        // FNV-1a: not secret, and the same in every build.
        let hash = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let mark = self.template(sql).bytes().fold(0xcbf2_9ce4_8422_2325, hash);
        format!("{}_{mark:016x}", self.word())
    }

    fn word(self) -> &'static str {
        match self {
            Phrase::Lock => "lockkeeper_lock",
            Phrase::Claims => "lockkeeper_claims",
            Phrase::SetName => "lockkeeper_set_name",
            Phrase::SetHolder => "lockkeeper_set_holder",
            Phrase::SetGrant => "lockkeeper_set_grant",
            Phrase::KeepName => "lockkeeper_keep_name",
            Phrase::AddClaim => "lockkeeper_add_claim",
            Phrase::SetClaim => "lockkeeper_set_claim",
            Phrase::KeepClaim => "lockkeeper_keep_claim",
            Phrase::DropClaim => "lockkeeper_drop_claim",
        }
    }

    fn template(self, sql: &Sql) -> String {
        let (names, claims) = (sql.table("names"), sql.table("claims"));
        let key = "WHERE name = $1 AND state = $2 AND place = $3 AND claim = $4";
        let set = |from: usize| {
            let column = |(index, column): (usize, &&str)| format!("{column} = ${}", index + 2);
            let columns: Vec<String> = COLUMNS[from..].iter().enumerate().map(column).collect();
            format!("UPDATE {names} SET {} WHERE name = $1", columns.join(", "))
        };
        match self {
            Phrase::Lock => {
                sql.dialect.locking(NAMES, &format!("{names} WHERE name = $1 FOR UPDATE"))
            }
            Phrase::Claims => format!(
                "SELECT c.{} FROM {names} AS n JOIN {claims} AS c ON c.name = n.name \
                 WHERE n.name = $1 AND n.crowd = 1",
                CLAIMS.replace(", ", ", c.")
            ),
            Phrase::SetName => set(0),
            Phrase::SetHolder => set(HOLDER),
            Phrase::SetGrant => set(GRANT),
            Phrase::KeepName => set(BEAT),
            Phrase::AddClaim => format!(
                "INSERT INTO {claims} ({CLAIMS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, \
                 $10, $11, $12, $13, $14, $15, $16, $17)"
            ),
            Phrase::SetClaim => format!(
                "UPDATE {claims} SET state = $5, place = $6, token = $7, until_us = $8, \
                 since_us = $9, cause = $10, reason = $11 {key}"
            ),
            Phrase::KeepClaim => format!("UPDATE {claims} SET until_us = $5 {key}"),
            Phrase::DropClaim => format!("DELETE FROM {claims} {key}"),
        }
    }

    /// The statement with its values, which are literals, on a connection
    /// that has some prepared.
    pub(super) fn with(self, sql: &Sql, prepared: &[Phrase], values: &[String]) -> String {
        if prepared.contains(&self) {
            return sql.dialect.execute(&self.name(sql), &values.join(", "));
        }
        let template = self.template(sql);
        let mut out = String::with_capacity(template.len() + 256);
        let mut rest = template.as_str();
        while let Some((before, after)) = rest.split_once('$') {
            out.push_str(before);
            let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let index: usize = after[..digits].parse().unwrap_or(0);
            out.push_str(values.get(index.wrapping_sub(1)).map_or("NULL", String::as_str));
            rest = &after[digits..];
        }
        out.push_str(rest);
        out
    }
}

/// What prepares a connection for operations.
pub(super) fn prepare(sql: &Sql, phrases: &[Phrase]) -> String {
    let prepare = |phrase: &Phrase| sql.dialect.prepare(&phrase.name(sql), &phrase.template(sql));
    let all: Vec<String> = phrases.iter().map(prepare).collect();
    all.join("; ")
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_one_statement() {
        let at = |prefix: &str| {
            let url = format!("postgres://u@h/db?prefix={prefix}");
            Sql::parse(&url).expect("a URL")
        };
        let (one, other) = (at("prod_"), at("stage_"));
        for phrase in Phrase::ALL {
            assert_ne!(phrase.name(&one), phrase.name(&other), "shared by two prefixes");
            assert_eq!(phrase.name(&one), phrase.name(&at("prod_")));
            // What PostgreSQL cuts off would not be told apart.
            assert!(phrase.name(&one).len() < 64);
        }
    }
}
