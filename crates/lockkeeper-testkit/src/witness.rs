//! A witness that knows nothing of locks: it sees by files of its own who is
//! inside, so that processes in any language can be watched together.
//!
//! In a folder: `exclusive` while somebody is inside alone, `shared-…` for
//! everybody who is inside beside others, and `log` with a line per stay, in
//! the order of entry. `java/CuratorPeer.java` is the same in Java.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::Released;
use lockkeeper::blocking::Keeper;

/// Watches the stays of one process.
#[derive(Debug)]
pub struct Witness {
    folder: PathBuf,
    who: String,
}

impl Witness {
    /// A witness for this process; all that share a folder are watched together.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Witness { folder: folder.into(), who: format!("ours-{}", std::process::id()) }
    }

    /// Call it while holding a name alone.
    pub fn exclusive(&self, token: u64) {
        self.stay("exclusive", 1, token);
    }

    /// Call it while holding a name beside others, of whom there may be `limit`.
    pub fn shared(&self, limit: usize) {
        self.stay(&format!("shared-{}", self.who), limit, 0);
    }

    fn stay(&self, file: &str, limit: usize, token: u64) {
        let path = self.folder.join(file);
        self.pass_gate(|| {
            let (exclusive, shared) = (self.count("exclusive"), self.count("shared-"));
            let alone = file == "exclusive";
            let crowded = if alone { shared > 0 } else { shared + 1 > limit };
            let bad = exclusive > 0 || crowded || File::create_new(&path).is_err();
            let word = if bad { "overlap" } else { if alone { "exclusive" } else { "shared" } };
            let line = format!("{word} {token} {} {}\n", shared + 1, self.who);
            let log = OpenOptions::new().create(true).append(true).open(self.folder.join("log"));
            log.and_then(|mut log| log.write_all(line.as_bytes())).expect("the log is written");
        });
        // Now and then long enough for all the others to come in too.
        if file != "exclusive" && fastrand::u8(..4) == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.pass_gate(|| {
            let _ = fs::remove_file(&path);
        });
    }

    fn count(&self, prefix: &str) -> usize {
        let files = fs::read_dir(&self.folder).expect("the witness has a folder");
        let names = files.map_while(Result::ok).map(|file| file.file_name());
        names.filter(|name| name.to_string_lossy().starts_with(prefix)).count()
    }

    /// One at a time: a list of files made while they change may show too many.
    fn pass_gate(&self, step: impl FnOnce()) {
        let gate = self.folder.join("gate");
        loop {
            match File::create_new(&gate) {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err(error) => panic!("the witness cannot work in {}: {error}", gate.display()),
            }
        }
        step();
        fs::remove_file(&gate).expect("the gate was ours");
    }
}

/// Locks `name` again and again before a witness: as a `mutex`, `readwrite`
/// (one in four as the writer) or `semaphore-N`.
pub fn visit(keeper: &Keeper, kind: &str, name: &str, count: u32, folder: &Path) {
    let witness = Witness::new(folder);
    let permits = kind.strip_prefix("semaphore-").map(|n| n.parse::<u32>().expect("a number"));
    for _ in 0..count {
        match (kind, permits) {
            ("mutex", _) => {
                let guard = keeper.mutex(name).lock().expect("the lock");
                witness.exclusive(guard.token().get());
                assert_eq!(guard.release().expect("an answer"), Released::Released);
            }
            (_, Some(permits)) => {
                let guard = keeper.semaphore(name, permits).acquire().expect("a permit");
                witness.shared(permits as usize);
                assert_eq!(guard.release().expect("an answer"), Released::Released);
            }
            ("readwrite", _) if fastrand::u8(..4) == 0 => {
                let guard = keeper.rwlock(name).write().expect("the write lock");
                witness.exclusive(guard.token().get());
                assert_eq!(guard.release().expect("an answer"), Released::Released);
            }
            ("readwrite", _) => {
                let guard = keeper.rwlock(name).read().expect("the read lock");
                witness.shared(1000);
                assert_eq!(guard.release().expect("an answer"), Released::Released);
            }
            _ => panic!("{kind:?} is no kind of lock"),
        }
    }
}

/// What a witness has seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How many stays were alone.
    pub exclusive: usize,
    /// How many stays were beside others.
    pub shared: usize,
    /// How many were inside together at most.
    pub together: usize,
    /// How often a stay followed one of another process.
    pub turns: usize,
    /// How many stays each process had.
    pub stays: BTreeMap<String, usize>,
}

impl Seen {
    /// Reads the log in a witness's folder.
    ///
    /// # Panics
    /// When stays overlapped that must not, or a token did not rise.
    pub fn read(folder: &Path) -> Self {
        let log = fs::read_to_string(folder.join("log")).expect("the witness has a log");
        let (mut seen, mut last, mut before) = (Seen::default(), 0, "");
        for line in log.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [word, token, together, who] = words[..] else { panic!("{line:?} in the log") };
            let token: u64 = token.parse().expect("a token");
            match word {
                "exclusive" => {
                    assert!(token > last, "the token {last} was followed by {line:?}");
                    last = token;
                    seen.exclusive += 1;
                }
                "shared" => {
                    seen.together = seen.together.max(together.parse().expect("a number"));
                    seen.shared += 1;
                }
                _ => panic!("two were inside: {line:?}"),
            }
            seen.turns += usize::from(who != before);
            before = who;
            *seen.stays.entry(who.to_owned()).or_default() += 1;
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "two were inside")]
    fn a_second_one_inside_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("exclusive"), "").unwrap();
        Witness::new(folder.path()).shared(5);
        Seen::read(folder.path());
    }

    #[test]
    #[should_panic(expected = "two were inside")]
    fn one_too_many_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        for other in ["shared-a", "shared-b"] {
            fs::write(folder.path().join(other), "").unwrap();
        }
        Witness::new(folder.path()).shared(2);
        Seen::read(folder.path());
    }

    #[test]
    #[should_panic(expected = "was followed by")]
    fn a_token_that_does_not_rise_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let witness = Witness::new(folder.path());
        witness.exclusive(7);
        witness.shared(1);
        witness.exclusive(7);
        Seen::read(folder.path());
    }
}
