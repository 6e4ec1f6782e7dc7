//! Proof of life: a file per keeper, locked for as long as its process lives.
//!
//! The kernel drops the lock when the process ends, however it ends. So
//! whoever can lock the file of a keeper knows that the keeper is gone.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Pid;

use super::place::{Place, SESSION, failed};
use crate::error::{Error, ErrorKind, Result};
use crate::token::KeeperId;

/// Whether a keeper is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Its process runs, or is stopped.
    Alive,
    /// Its process has ended, or the keeper has been closed.
    Dead,
    /// Nothing proves either. Its leases decide.
    Unknown,
}

/// What a session's file says about its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Its PID namespace, in which alone the number means something.
    pub(super) space: String,
}

impl Process {
    fn current() -> Process {
        Process { pid: std::process::id(), space: pid_space() }
    }

    fn read(file: &mut File) -> Option<Process> {
        let mut text = String::new();
        file.take(256).read_to_string(&mut text).ok()?;
        let (pid, space) = text.trim_end().split_once(' ')?;
        Some(Process { pid: pid.parse().ok()?, space: space.to_owned() })
    }

    /// Its number, if it means the same process to us.
    pub(super) fn pid_here(&self) -> Option<Pid> {
        let here = self.space == pid_space() && self.space != NOWHERE;
        Pid::from_raw(i32::try_from(self.pid).ok()?).filter(|_| here)
    }

    /// Whether the process is gone, or waits to be buried by its parent.
    fn has_ended(&self) -> bool {
        self.pid_here().is_some_and(has_ended)
    }
}

#[cfg(target_os = "linux")]
fn has_ended(pid: Pid) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{PidfdFlags, pidfd_open};

    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&at_once)) == Ok(1)
        }
        Err(error) => error == Errno::SRCH,
    }
}

#[cfg(not(target_os = "linux"))]
fn has_ended(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
}

const NOWHERE: &str = "-";

fn pid_space() -> String {
    let link = fs::read_link("/proc/self/ns/pid");
    link.map_or_else(|_| NOWHERE.to_owned(), |link| link.to_string_lossy().into_owned())
}

/// Our own proof of life. Closing the file ends it.
#[derive(Debug)]
pub(super) struct Session {
    file: File,
    path: PathBuf,
}

impl Session {
    /// Makes and locks our file. The caller holds the guard, so that nobody
    /// sweeps it away in between.
    pub(super) fn begin(place: &Place, keeper: KeeperId) -> Result<Session> {
        let path = lock_path(&place.dir, keeper);
        let make = || -> io::Result<File> {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(place.mode)
                .open(&path)?;
            // The umask of this process must not decide who can look.
            file.set_permissions(Permissions::from_mode(place.mode))?;
            file.lock()?;
            let process = Process::current();
            writeln!(file, "{} {}", process.pid, process.space)?;
            Ok(file)
        };
        let file = make().map_err(|error| failed("make", &path, error))?;
        Ok(Session { file, path })
    }

    /// Makes the file again if somebody deleted it, and keeps those away who
    /// delete old files. The caller holds the guard.
    pub(super) fn assure(&mut self, place: &Place, keeper: KeeperId) -> Result<()> {
        let ours = self.file.metadata().map(|meta| (meta.dev(), meta.ino()));
        let there = fs::symlink_metadata(&self.path).map(|meta| (meta.dev(), meta.ino()));
        match (ours, there) {
            (Ok(ours), Ok(there)) if ours == there => {
                let _ = self.file.set_modified(std::time::SystemTime::now());
                Ok(())
            }
            (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                *self = Session::begin(place, keeper)?;
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::Unreachable,
                format!("{} was replaced by somebody", self.path.display()),
            )),
        }
    }

    /// Deletes the file, if nothing is left behind that it must disprove.
    pub(super) fn end(self, leaves_nothing: bool) {
        if leaves_nothing {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Asks the kernel whether a keeper lives.
pub(super) fn probe(dir: &Path, keeper: KeeperId) -> Life {
    let Ok(mut file) = open(&lock_path(dir, keeper)) else { return Life::Unknown };
    match file.try_lock_shared() {
        Ok(()) => Life::Dead,
        // A child that was forked without exec keeps the lock of its parent,
        // but never its locks.
        Err(TryLockError::WouldBlock) => match Process::read(&mut file) {
            Some(process) if process.has_ended() => Life::Dead,
            _ => Life::Alive,
        },
        Err(TryLockError::Error(_)) => Life::Unknown,
    }
}

/// Which process a keeper lives in.
pub(super) fn process(dir: &Path, keeper: KeeperId) -> Option<Process> {
    open(&lock_path(dir, keeper)).ok().and_then(|mut file| Process::read(&mut file))
}

/// The keepers that have a file here and are dead.
pub(super) fn dead_sessions(dir: &Path) -> Vec<KeeperId> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let session = |name: &str| -> Option<KeeperId> {
        name.strip_prefix(SESSION)?.strip_suffix(".lock")?.parse().ok()
    };
    let sessions = entries.flatten().filter_map(|entry| session(entry.file_name().to_str()?));
    sessions.filter(|&keeper| probe(dir, keeper) == Life::Dead).collect()
}

/// Deletes what a dead keeper left. The caller holds the guard.
pub(super) fn bury(dir: &Path, keeper: KeeperId) {
    let _ = fs::remove_file(socket_path(dir, keeper));
    let _ = fs::remove_file(lock_path(dir, keeper));
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

fn lock_path(dir: &Path, keeper: KeeperId) -> PathBuf {
    dir.join(format!("{SESSION}{keeper}.lock"))
}

pub(super) fn socket_path(dir: &Path, keeper: KeeperId) -> PathBuf {
    dir.join(format!("{SESSION}{keeper}.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lives_as_long_as_its_lock() {
        let temp = tempfile::tempdir().unwrap();
        let place = Place::prepare(temp.path()).unwrap();
        let keeper = KeeperId::from_number(7);
        assert_eq!(probe(&place.dir, keeper), Life::Unknown);
        let session = Session::begin(&place, keeper).unwrap();
        assert_eq!(probe(&place.dir, keeper), Life::Alive);
        assert_eq!(process(&place.dir, keeper), Some(Process::current()));
        assert!(dead_sessions(&place.dir).is_empty());
        session.end(false);
        assert_eq!(probe(&place.dir, keeper), Life::Dead);
        assert_eq!(dead_sessions(&place.dir), [keeper]);
        bury(&place.dir, keeper);
        assert_eq!(probe(&place.dir, keeper), Life::Unknown);
    }

    #[test]
    fn a_deleted_session_is_made_again() {
        let temp = tempfile::tempdir().unwrap();
        let place = Place::prepare(temp.path()).unwrap();
        let keeper = KeeperId::from_number(7);
        let mut session = Session::begin(&place, keeper).unwrap();
        bury(&place.dir, keeper);
        session.assure(&place, keeper).unwrap();
        assert_eq!(probe(&place.dir, keeper), Life::Alive);
        session.assure(&place, keeper).unwrap();
    }
}
