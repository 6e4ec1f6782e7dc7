//! What the command learns about its lock, and what a nested `run` learns from it.

use std::process::Command;

use lockkeeper::engine::{Mode, Status};
use lockkeeper::{Hold, Keeper, Token, redact};

/// The names held by this process tree, innermost last.
const HELD: &str = "LOCKKEEPER_HELD";
const URL: &str = "LOCKKEEPER_URL";

/// The variables set for the command, after everything it inherits.
#[derive(Debug, Default)]
pub(super) struct Environment {
    set: Vec<(&'static str, String)>,
    remove: Vec<&'static str>,
}

impl Environment {
    /// For a command under a lock.
    pub(super) fn of(hold: &Hold, token: Option<Token>, keeper: &Keeper, url: &str) -> Self {
        let (name, owner) = (hold.name().as_str(), hold.claim_id().to_string());
        let entry = Entry {
            mode: mark(hold.mode()),
            engine: escape(&keeper.info().label),
            name: escape(name),
            owner: owner.clone(),
        };
        let mut held = std::env::var(HELD).unwrap_or_default();
        if !held.is_empty() {
            held.push(' ');
        }
        held.push_str(&entry.to_string());
        let mut environment = Environment::describe(name, token, owner);
        environment.set.push((HELD, held));
        environment.set.push(("LOCKKEEPER_ENGINE", keeper.info().label.to_string()));
        // A nested run needs the engine; what is secret it has to find itself.
        if redact(url) == url {
            environment.set.push((URL, url.to_owned()));
        }
        environment
    }

    /// For a command under a lock that is held further out.
    pub(super) fn nested(name: &str, outer: &Outer) -> Self {
        Environment::describe(name, outer.token, outer.owner.clone())
    }

    /// For a command that runs without a lock.
    pub(super) fn unlocked() -> Self {
        let remove = vec!["LOCKKEEPER_LOCK", "LOCKKEEPER_TOKEN", "LOCKKEEPER_OWNER"];
        Environment { set: Vec::new(), remove }
    }

    fn describe(name: &str, token: Option<Token>, owner: String) -> Self {
        let mut environment = Environment::default();
        environment.set.push(("LOCKKEEPER_LOCK", name.to_owned()));
        environment.set.push(("LOCKKEEPER_OWNER", owner));
        match token {
            Some(token) => environment.set.push(("LOCKKEEPER_TOKEN", token.to_string())),
            // The token of an outer lock says nothing about this one.
            None => environment.remove.push("LOCKKEEPER_TOKEN"),
        }
        environment
    }

    pub(super) fn put_into(&self, command: &mut Command) {
        for variable in &self.remove {
            command.env_remove(variable);
        }
        command.envs(self.set.iter().map(|(variable, value)| (variable, value)));
    }
}

/// A lock of this process tree that covers what is asked for.
#[derive(Debug)]
pub(super) struct Outer {
    pub(super) owner: String,
    pub(super) token: Option<Token>,
}

/// How a lock of this process tree stands to what is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Nesting {
    /// It has nothing to do with it.
    Apart,
    /// It is enough.
    Covered { owner: String },
    /// Waiting for it would be waiting for ourselves.
    Deadlock,
}

/// What the environment says of this name on this engine.
pub(super) fn nesting(keeper: &Keeper, name: &str, wanted: Mode) -> Nesting {
    let held = std::env::var(HELD).unwrap_or_default();
    find(&held, &keeper.info().label, name, wanted)
}

/// The owner that this process tree is of this name, if the environment names one.
pub(crate) fn owner_here(keeper: &Keeper, name: &str) -> Option<String> {
    let held = std::env::var(HELD).unwrap_or_default();
    let (engine, name) = (escape(&keeper.info().label), escape(name));
    let entries = held.split(' ').rev().filter_map(Entry::parse);
    entries.into_iter().find(|entry| entry.engine == engine && entry.name == name).map(|e| e.owner)
}

/// The holder with this owner id: environments outlive locks, so they are checked.
pub(super) fn still_held(status: &Status, owner: &str) -> Option<Outer> {
    let ours = |claim: &dyn ToString| claim.to_string() == owner;
    let holder = status.holders.iter().find(|holder| ours(&holder.claim) && !holder.revoked)?;
    Some(Outer { owner: owner.to_owned(), token: holder.token })
}

fn find(held: &str, engine: &str, name: &str, wanted: Mode) -> Nesting {
    let (engine, name) = (escape(engine), escape(name));
    for entry in held.split(' ').rev().filter_map(Entry::parse) {
        if entry.engine != engine || entry.name != name {
            continue;
        }
        return match (entry.mode.as_str(), wanted) {
            ("x", Mode::Exclusive | Mode::Write | Mode::Read) | ("s", Mode::Read) => {
                Nesting::Covered { owner: entry.owner }
            }
            ("s", Mode::Exclusive | Mode::Write) => Nesting::Deadlock,
            (mode, Mode::Permits { count, .. }) => match permits(mode) {
                Some(have) if have >= count => Nesting::Covered { owner: entry.owner },
                _ => Nesting::Apart,
            },
            _ => Nesting::Apart,
        };
    }
    Nesting::Apart
}

/// One lock in the list: `x:ENGINE:NAME:OWNER`, with everything but plain
/// characters as `%XX`, so that no name can look like two.
#[derive(Debug)]
struct Entry {
    mode: String,
    engine: String,
    name: String,
    owner: String,
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':').map(str::to_owned);
        let entry = Entry {
            mode: parts.next()?,
            engine: parts.next()?,
            name: parts.next()?,
            owner: parts.next()?,
        };
        parts.next().is_none().then_some(entry)
    }
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}:{}", self.mode, self.engine, self.name, self.owner)
    }
}

fn mark(mode: Mode) -> String {
    match mode {
        Mode::Exclusive | Mode::Write => "x".to_owned(),
        Mode::Read => "s".to_owned(),
        Mode::Permits { count, .. } => format!("p{count}"),
    }
}

fn permits(mark: &str) -> Option<u32> {
    mark.strip_prefix('p')?.parse().ok()
}

fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    let write = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(write).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(mode: Mode, engine: &str, name: &str) -> String {
        let (engine, name) = (escape(engine), escape(name));
        Entry { mode: mark(mode), engine, name, owner: "o-1-0".into() }.to_string()
    }

    #[test]
    fn a_name_never_looks_like_another() {
        let evil = "a b:c\nx:local%3A:z:o";
        let held = format!("{} {}", entry(Mode::Exclusive, "local:", evil), "rubbish x::");
        assert_eq!(held.split(' ').count(), 3);
        assert!(matches!(find(&held, "local:", evil, Mode::Exclusive), Nesting::Covered { .. }));
        for other in ["z", "a", "b", "c", "a b:c"] {
            assert_eq!(find(&held, "local:", other, Mode::Exclusive), Nesting::Apart, "{other}");
        }
        assert_eq!(find(&held, "redis://x", evil, Mode::Exclusive), Nesting::Apart);
    }

    #[test]
    fn only_a_lock_that_is_enough_covers() {
        let many = |count| Mode::Permits { count, of: 5 };
        let case = |outer, inner| find(&entry(outer, "e", "n"), "e", "n", inner);
        let covered = |outer, inner| matches!(case(outer, inner), Nesting::Covered { .. });
        assert!(covered(Mode::Exclusive, Mode::Exclusive));
        assert!(covered(Mode::Write, Mode::Read));
        assert!(covered(Mode::Read, Mode::Read));
        assert!(covered(many(3), many(2)));
        assert_eq!(case(many(1), many(2)), Nesting::Apart);
        assert_eq!(case(Mode::Read, Mode::Write), Nesting::Deadlock);
    }

    #[test]
    fn the_innermost_entry_counts() {
        let held = [entry(Mode::Read, "e", "n"), entry(Mode::Exclusive, "e", "n")].join(" ");
        assert!(matches!(find(&held, "e", "n", Mode::Exclusive), Nesting::Covered { .. }));
    }
}
