//! A server's wall clock, to be stepped forward and back.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use crate::server::folder;

/// The clock of one server. Its other clocks go on as they do, as with a real step.
#[derive(Debug)]
pub struct SteppedClock {
    folder: PathBuf,
    file: File,
}

impl SteppedClock {
    /// A clock that is right so far.
    ///
    /// # Panics
    /// When there is no C compiler, which building this crate needs anyway.
    pub fn new() -> Self {
        let folder = folder("clock");
        let source = folder.join("clock.c");
        fs::write(&source, include_str!("clock.c")).expect("a file for the clock");
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
            .arg(folder.join("clock.so"))
            .arg(&source)
            .arg("-ldl")
            .output()
            .expect("cc is installed (scripts/setup does it)");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let path = folder.join("offset");
        let file = File::options().create_new(true).write(true).open(path).expect("a file");
        let clock = SteppedClock { folder, file };
        clock.step_to(0);
        clock
    }

    /// Sets it so many seconds away from the true time, at once.
    pub fn step_to(&self, seconds: i64) {
        self.file.write_all_at(&seconds.to_ne_bytes(), 0).expect("the clock can be set");
    }

    /// What a server must be started with to have this clock.
    pub fn environment(&self) -> [(String, String); 2] {
        let file = |name: &str| self.folder.join(name).display().to_string();
        [
            ("LD_PRELOAD".to_owned(), file("clock.so")),
            ("LOCKKEEPER_CLOCK".to_owned(), file("offset")),
        ]
    }
}

impl Default for SteppedClock {
    fn default() -> Self {
        SteppedClock::new()
    }
}

impl Drop for SteppedClock {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
