//! Recorded histories and what must be true of them.
//!
//! A history says who was inside which name from when to when, with which
//! token. Times are readings of the host's clock, so the histories of several
//! processes can be put together.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::{Clock, Token};

/// One stay inside a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which name.
    pub name: String,
    /// When it was asked for.
    pub arrival: u64,
    /// When the guard was there.
    pub entered: u64,
    /// When the guard was last known to be held.
    pub left: u64,
    /// The grant's token.
    pub token: Token,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { name, arrival, entered, left, token } = self;
        write!(f, "entry {arrival} {entered} {left} {token} {name}")
    }
}

impl FromStr for Entry {
    type Err = String;
    fn from_str(line: &str) -> Result<Self, String> {
        let bad = || format!("{line:?} is no entry of a history");
        let mut words = line.splitn(6, ' ');
        if words.next() != Some("entry") {
            return Err(bad());
        }
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).ok_or_else(bad);
        let (arrival, entered, left) = (number()?, number()?, number()?);
        let token = Token::new(number()?);
        let name = words.next().ok_or_else(bad)?.to_owned();
        Ok(Entry { name, arrival, entered, left, token })
    }
}

/// Takes down entries from many tasks.
#[derive(Clone, Debug)]
pub struct Recorder {
    clock: Clock,
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder::new()
    }
}

impl Recorder {
    /// An empty record on the host's clock.
    pub fn new() -> Self {
        Recorder { clock: Clock::system(), entries: Arc::default() }
    }

    /// The present, for an arrival.
    pub fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// Starts a stay: call it when the guard is there.
    pub fn enter(&self, name: &str, arrival: u64, token: Token) -> Entry {
        let entered = self.now();
        Entry { name: name.to_owned(), arrival, entered, left: entered, token }
    }

    /// Ends a stay: call it while the guard is still held.
    pub fn leave(&self, mut entry: Entry) {
        entry.left = self.now();
        self.put(entry);
    }

    /// Takes down a stay whose end is known already.
    pub fn put(&self, entry: Entry) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    /// The entries taken down so far, as they came.
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was taken down so far.
    pub fn history(&self) -> History {
        History::new(self.entries())
    }
}

/// Stays inside names, per name in the order of entry.
#[derive(Clone, Debug, Default)]
pub struct History(BTreeMap<String, Vec<Entry>>);

impl History {
    /// Puts entries in order.
    pub fn new(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut names: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for entry in entries {
            names.entry(entry.name.clone()).or_default().push(entry);
        }
        for stays in names.values_mut() {
            stays.sort_by_key(|stay| (stay.entered, stay.token));
        }
        History(names)
    }

    /// How many stays a name had.
    pub fn grants(&self, name: &str) -> usize {
        self.0.get(name).map_or(0, Vec::len)
    }

    /// How many stays there were in all.
    pub fn total(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// The first thing that must not be, in a sentence.
    pub fn violation(&self) -> Option<String> {
        self.0.iter().find_map(|(name, stays)| {
            stays.windows(2).find_map(|pair| {
                let (before, after) = (&pair[0], &pair[1]);
                if after.entered < before.left {
                    return Some(format!("overlap under {name:?}: {before:?} and {after:?}"));
                }
                if after.token <= before.token {
                    return Some(format!("tokens of {name:?} fell: {before:?} then {after:?}"));
                }
                None
            })
        })
    }

    /// Whether somebody was let in more than `tolerance` out of turn.
    ///
    /// Whoever enters must not have arrived later than somebody who enters
    /// after it. Arrivals are taken before the request is sent, so the order
    /// at the engine may differ by as much as a request takes.
    pub fn out_of_order(&self, tolerance: Duration) -> Option<String> {
        let tolerance = u64::try_from(tolerance.as_nanos()).unwrap_or(u64::MAX);
        self.0.iter().find_map(|(name, stays)| {
            let mut overtaken: Option<&Entry> = None;
            stays.iter().rev().find_map(|stay| {
                let victim =
                    overtaken.filter(|v| v.arrival.saturating_add(tolerance) < stay.arrival);
                if overtaken.is_none_or(|earliest| stay.arrival < earliest.arrival) {
                    overtaken = Some(stay);
                }
                victim.map(|victim| format!("under {name:?} {stay:?} overtook {victim:?}"))
            })
        })
    }

    /// Panics if two overlapped or a token did not rise.
    pub fn check(&self) {
        if let Some(violation) = self.violation() {
            panic!("{violation}");
        }
    }
}

/// A number that only newer tokens may change: the resource behind a lock.
///
/// It keeps the highest token and refuses lower ones, so an update that was
/// overtaken is refused instead of lost.
#[derive(Debug, Default)]
pub struct Register {
    state: Mutex<(Token, u64, u64)>,
}

impl Register {
    /// Reads the value, showing a token; `None` if the token is stale.
    pub fn read(&self, token: Token) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if token < state.0 {
            return None;
        }
        state.0 = token;
        Some(state.1)
    }

    /// Writes the value; false if the token is stale by now.
    pub fn write(&self, token: Token, value: u64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if token < state.0 {
            return false;
        }
        *state = (token, value, state.2 + 1);
        true
    }

    /// The value, and how many writes were accepted: equal, if each added one
    /// to what it had read and no update was lost.
    pub fn totals(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.1, state.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stay(arrival: u64, entered: u64, left: u64, token: u64) -> Entry {
        let token = Token::new(token);
        Entry { name: "n".to_owned(), arrival, entered, left, token }
    }

    #[test]
    fn a_sound_history_passes() {
        let history = History::new([stay(2, 30, 40, 2), stay(1, 10, 20, 1)]);
        assert_eq!((history.violation(), history.grants("n")), (None, 2));
        assert_eq!(history.out_of_order(Duration::ZERO), None);
    }

    #[test]
    fn an_overlap_is_found() {
        let history = History::new([stay(1, 10, 20, 1), stay(2, 19, 40, 2)]);
        assert!(history.violation().unwrap().contains("overlap"));
    }

    #[test]
    fn a_token_that_does_not_rise_is_found() {
        for second in [1, 2] {
            let history = History::new([stay(1, 10, 20, 2), stay(2, 30, 40, second)]);
            assert!(history.violation().unwrap().contains("fell"));
        }
    }

    #[test]
    fn an_overtaken_waiter_is_found() {
        let history = History::new([stay(50, 100, 110, 1), stay(5, 120, 130, 2)]);
        assert!(history.out_of_order(Duration::from_nanos(10)).is_some());
        assert!(history.out_of_order(Duration::from_nanos(45)).is_none());
    }

    #[test]
    fn entries_read_back() {
        let entry = stay(1, 2, 3, 4);
        assert_eq!(entry.to_string().parse::<Entry>().unwrap(), entry);
        assert!("entry 1 2".parse::<Entry>().is_err());
    }

    #[test]
    fn a_register_refuses_what_is_stale() {
        let register = Register::default();
        assert_eq!(register.read(Token::new(2)), Some(0));
        assert_eq!(register.read(Token::new(1)), None);
        assert!(!register.write(Token::new(1), 9));
        assert!(register.write(Token::new(2), 1));
        assert_eq!(register.totals(), (1, 1));
    }
}
