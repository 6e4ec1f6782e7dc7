//! Telling another keeper that its claim has changed: one datagram to it alone.
//!
//! A datagram is a hint that saves time. Whoever misses one finds out at its
//! next renewal, so nothing here is retried for long.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::{fs, mem};

use serde::{Deserialize, Serialize};
use tokio::task::AbortHandle;

use super::live::socket_path;
use super::place::Place;
use crate::cause::Cause;
use crate::engine::{Event, Events, Standing};
use crate::name::LockName;
use crate::token::{ClaimId, KeeperId, Token};

/// What one keeper tells another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Wake {
    HandedOver { claim: ClaimId, ticket: u64, token: Option<Token> },
    Gone { claim: ClaimId, cause: Cause },
    Nudge { claim: ClaimId },
    Cell { name: LockName },
}

impl Wake {
    /// Whom an event of the model is for, and what to tell it.
    pub(super) fn of(event: Event) -> Option<(KeeperId, Wake)> {
        Some(match event {
            Event::HandedOver { claim, ticket, token } => {
                (claim.keeper, Wake::HandedOver { claim, ticket, token })
            }
            Event::Is(claim, Standing::Gone(cause)) => (claim.keeper, Wake::Gone { claim, cause }),
            // What the model does not push, a keeper learns by asking.
            Event::Is(claim, _) | Event::Nudge(claim) => (claim.keeper, Wake::Nudge { claim }),
            Event::Link { .. } | Event::Cell(_) => return None,
        })
    }

    fn event(self) -> Event {
        match self {
            Wake::HandedOver { claim, ticket, token } => Event::HandedOver { claim, ticket, token },
            Wake::Gone { claim, cause } => Event::Is(claim, Standing::Gone(cause)),
            Wake::Nudge { claim } => Event::Nudge(claim),
            Wake::Cell { name } => Event::Cell(name),
        }
    }
}

/// Led by a version: another one is not read, but waited out.
const VERSION: u8 = 0xc1;
/// How much one datagram carries at most.
const MAX_BYTES: usize = 8192;
/// How often a full buffer is tried, a millisecond apart.
const TRIES: u32 = 200;

fn encode(wake: &Wake) -> Vec<u8> {
    postcard::to_extend(wake, vec![VERSION]).unwrap_or_default()
}

fn decode(bytes: &[u8]) -> Option<Wake> {
    match bytes.split_first() {
        Some((&VERSION, body)) => postcard::from_bytes(body).ok(),
        _ => None,
    }
}

/// The keepers of this very process, which need no datagram, each with the
/// process it was opened in: a fork has a copy of the list, but not of them.
type Neighbours = HashMap<KeeperId, (u32, Events)>;
static NEIGHBOURS: LazyLock<Mutex<Neighbours>> = LazyLock::new(Mutex::default);

fn neighbours() -> MutexGuard<'static, Neighbours> {
    NEIGHBOURS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn neighbour(keeper: KeeperId) -> Option<Events> {
    let neighbours = neighbours();
    let (pid, events) = neighbours.get(&keeper)?;
    (*pid == std::process::id()).then(|| events.clone())
}

/// Whether a keeper lives in this very process.
pub(super) fn is_neighbour(keeper: KeeperId) -> bool {
    neighbour(keeper).is_some()
}

/// Sends wakes to other keepers of the directory.
#[derive(Debug)]
pub(super) struct Postman {
    socket: Option<UnixDatagram>,
    addresses: Addresses,
    /// What did not fit into the receiver's buffer, to be tried again soon.
    unsent: Vec<(KeeperId, Wake)>,
    /// How often in a row that was in vain.
    tries: u32,
}

impl Postman {
    pub(super) fn new(place: &Place) -> Postman {
        let socket = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        let addresses = Addresses::new(place);
        Postman { socket: socket.ok(), addresses, unsent: Vec::new(), tries: 0 }
    }

    /// Tells each keeper what concerns it.
    pub(super) fn deliver(&mut self, wakes: impl IntoIterator<Item = (KeeperId, Wake)>) {
        for (keeper, wake) in wakes {
            match neighbour(keeper) {
                Some(events) => {
                    events.push(wake.event());
                }
                None => self.post(keeper, wake),
            }
        }
    }

    fn post(&mut self, keeper: KeeperId, wake: Wake) {
        let Some(socket) = &self.socket else { return };
        let address = self.addresses.of(keeper);
        // A receiver that is gone needs no news.
        if let Err(error) = socket.send_to(&encode(&wake), address)
            && error.kind() == io::ErrorKind::WouldBlock
            && self.unsent.len() < 1024
        {
            self.unsent.push((keeper, wake));
        }
    }

    /// Whether something is still to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Tries once more what found a full buffer, but not for ever: a stopped
    /// process finds out by itself when it goes on.
    pub(super) fn retry(&mut self) {
        let unsent = mem::take(&mut self.unsent);
        self.tries = if unsent.is_empty() { 0 } else { self.tries + 1 };
        if self.tries < TRIES {
            unsent.into_iter().for_each(|(keeper, wake)| self.post(keeper, wake));
        }
    }
}

/// Where the sockets of a directory are, however long its path is.
#[derive(Debug)]
struct Addresses {
    dir: PathBuf,
    /// Held open for the short way to a long path.
    _short: Option<File>,
}

impl Addresses {
    fn new(place: &Place) -> Addresses {
        // `sun_path` has 108 bytes on Linux and 104 elsewhere, with a zero at the end.
        let fits = socket_path(&place.dir, KeeperId::from_number(0)).as_os_str().len() < 104;
        let short = if fits { None } else { File::open(&place.dir).ok() };
        let dir = short.as_ref().map(|dir| format!("/proc/self/fd/{}", dir.as_raw_fd()).into());
        Addresses { dir: dir.unwrap_or_else(|| place.dir.clone()), _short: short }
    }

    fn of(&self, keeper: KeeperId) -> PathBuf {
        socket_path(&self.dir, keeper)
    }
}

/// Our own socket, and the task that reads it.
#[derive(Debug)]
pub(super) struct Mailbox {
    keeper: KeeperId,
    path: PathBuf,
    task: Option<AbortHandle>,
}

impl Mailbox {
    /// Opens the mailbox. Must be called inside the keeper's runtime.
    ///
    /// Without a socket (a path that is too long where there is no /proc, a
    /// file system without sockets) waiting still works, by renewals.
    pub(super) fn open(place: &Place, keeper: KeeperId, events: &Events) -> Mailbox {
        neighbours().insert(keeper, (std::process::id(), events.clone()));
        let path = socket_path(&place.dir, keeper);
        let bound = bind(&Addresses::new(place).of(keeper), &path, place.mode);
        let task = match bound {
            Ok(socket) => Some(tokio::spawn(read(socket, events.clone())).abort_handle()),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no wake-ups; waiting will be slower");
                None
            }
        };
        Mailbox { keeper, path, task }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        neighbours().remove(&self.keeper);
        if let Some(task) = &self.task {
            task.abort();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn bind(address: &Path, path: &Path, mode: u32) -> io::Result<tokio::net::UnixDatagram> {
    let socket = UnixDatagram::bind(address)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    socket.set_nonblocking(true)?;
    tokio::net::UnixDatagram::from_std(socket)
}

async fn read(socket: tokio::net::UnixDatagram, events: Events) {
    let mut bytes = vec![0; MAX_BYTES];
    while let Ok(length) = socket.recv(&mut bytes).await {
        let heard = decode(&bytes[..length]).is_none_or(|wake| events.push(wake.event()));
        if !heard {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn claim(keeper: u128) -> ClaimId {
        ClaimId { keeper: KeeperId::from_number(keeper), number: 3, turn: 1 }
    }

    #[test]
    fn a_wake_reads_back_and_nonsense_does_not() {
        let name = LockName::new("a\0b").unwrap();
        let wakes = [
            Wake::HandedOver { claim: claim(1), ticket: 9, token: Some(Token::new(u64::MAX)) },
            Wake::Gone {
                claim: claim(2),
                cause: Cause::Broken { reason: "x".repeat(1024).into() },
            },
            Wake::Nudge { claim: claim(3) },
            Wake::Cell { name },
        ];
        for wake in wakes {
            let bytes = encode(&wake);
            assert!(bytes.len() <= MAX_BYTES);
            assert_eq!(decode(&bytes), Some(wake));
            assert_eq!(decode(&bytes[1..]), None);
        }
        assert_eq!(decode(&[]), None);
    }

    #[tokio::test]
    async fn a_datagram_arrives_also_by_a_long_path() {
        for depth in [0, 5] {
            let temp = tempfile::tempdir().unwrap();
            let dir = (0..depth).fold(temp.path().to_owned(), |dir, _| dir.join("x".repeat(40)));
            let place = Place::prepare(&dir).unwrap();
            let keeper = claim(depth as u128 + 100).keeper;
            let (events, mut pushed) = Events::channel();
            let mailbox = Mailbox::open(&place, keeper, &events);
            assert!(mailbox.task.is_some());
            neighbours().remove(&keeper);
            let mut postman = Postman::new(&place);
            postman.deliver([(keeper, Wake::Nudge { claim: claim(1) })]);
            let event = tokio::time::timeout(Duration::from_secs(5), pushed.recv()).await.unwrap();
            assert_eq!(event, Some(Event::Nudge(claim(1))));
            drop(mailbox);
            assert!(!socket_path(&place.dir, keeper).exists());
        }
    }
}
