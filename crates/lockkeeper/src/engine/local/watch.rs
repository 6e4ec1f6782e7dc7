//! Noticing the death of those we wait for.
//!
//! Whoever waits watches the processes that stand before it: the holders and
//! the nearest places ahead, because one of those will be the holder when its
//! own turn comes. When one dies, the waiting claims are nudged; their
//! renewals find the holder dead and pass the name on.
//!
//! A process descriptor tells a death at once. It may be missing (another PID
//! namespace, another kernel), so the file locks are looked at as well, a few
//! times a second, for as long as anybody waits.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::live::{self, Life};
use crate::engine::{Event, Events};
use crate::token::{ClaimId, KeeperId};

/// How often locks are looked at, with and without a process descriptor.
const SAFETY: Duration = Duration::from_millis(250);
const BLIND: Duration = Duration::from_millis(40);
/// How many processes are watched without need, for the next wait.
const SPARE: usize = 64;

/// The claims of one keeper that wait, and whom they wait for.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Shared>,
    patrol: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    events: Events,
    state: Mutex<State>,
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<ClaimId, Vec<KeeperId>>,
    watched: HashMap<KeeperId, Watched>,
    /// Whether the patrol rests until somebody waits.
    idle: bool,
}

#[derive(Debug)]
struct Watched {
    claims: HashSet<ClaimId>,
    /// The task that waits for the end of the process, where that is possible.
    task: Option<AbortHandle>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Watch {
    /// Starts with nobody to watch. Must be called inside the keeper's runtime.
    pub(super) fn new(dir: &Path, events: &Events) -> Watch {
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            events: events.clone(),
            state: Mutex::default(),
            wanted: Notify::new(),
        });
        let patrol = tokio::spawn(patrol(Arc::downgrade(&shared))).abort_handle();
        Watch { shared, patrol }
    }

    /// A claim waits for these keepers now.
    pub(super) fn wait(&self, claim: ClaimId, ahead: Vec<KeeperId>) {
        let mut state = self.shared.lock();
        let all_watched = ahead.iter().all(|keeper| state.watched.contains_key(keeper));
        if all_watched && state.waiting.get(&claim) == Some(&ahead) {
            return;
        }
        state.forget(claim);
        let mut look = std::mem::take(&mut state.idle);
        for &keeper in &ahead {
            let watched = state.watched.entry(keeper).or_insert_with(|| self.start(keeper));
            look |= watched.claims.insert(claim) && watched.task.is_none();
        }
        state.waiting.insert(claim, ahead);
        if look {
            self.shared.wanted.notify_one();
        }
    }

    /// A claim waits no longer.
    pub(super) fn done(&self, claim: ClaimId) {
        let mut state = self.shared.lock();
        state.forget(claim);
        if state.watched.len() > SPARE {
            state.watched.retain(|_, watched| !watched.claims.is_empty());
        }
    }

    fn start(&self, keeper: KeeperId) -> Watched {
        let shared = Arc::downgrade(&self.shared);
        let task = pidfd(&self.shared.dir, keeper).map(|fd| {
            let ended = async move {
                let _ = fd.readable().await;
                if let Some(shared) = shared.upgrade() {
                    shared.died(keeper);
                }
            };
            tokio::spawn(ended).abort_handle()
        });
        Watched { claims: HashSet::new(), task }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.patrol.abort();
    }
}

impl State {
    fn forget(&mut self, claim: ClaimId) {
        for keeper in self.waiting.remove(&claim).into_iter().flatten() {
            if let Some(watched) = self.watched.get_mut(&keeper) {
                watched.claims.remove(&claim);
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes those who wait for a dead keeper ask again.
    fn died(&self, keeper: KeeperId) {
        let Some(watched) = self.lock().watched.remove(&keeper) else { return };
        for &claim in &watched.claims {
            self.events.push(Event::Nudge(claim));
        }
    }

    /// Looks at the locks of everybody who is waited for.
    ///
    /// Returns how soon to look again; `None` if nobody is waited for.
    fn look(&self) -> Option<Duration> {
        let mut state = self.lock();
        let wanted = state.watched.iter().filter(|(_, watched)| !watched.claims.is_empty());
        let keepers: Vec<(KeeperId, bool)> =
            wanted.map(|(&keeper, watched)| (keeper, watched.task.is_some())).collect();
        state.idle = keepers.is_empty();
        drop(state);
        for &(keeper, _) in &keepers {
            if live::probe(&self.dir, keeper) == Life::Dead {
                self.died(keeper);
            }
        }
        let pause = |&(_, told): &(KeeperId, bool)| if told { SAFETY } else { BLIND };
        keepers.iter().map(pause).min()
    }
}

/// Looks a few times a second, while there is anybody to look for.
async fn patrol(shared: Weak<Shared>) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        match strong.look() {
            Some(pause) => {
                let _ = tokio::time::timeout(pause, strong.wanted.notified()).await;
            }
            None => strong.wanted.notified().await,
        }
    }
}

#[cfg(target_os = "linux")]
type PidFd = tokio::io::unix::AsyncFd<OwnedFd>;

/// A descriptor that becomes readable when the keeper's process ends.
#[cfg(target_os = "linux")]
fn pidfd(dir: &Path, keeper: KeeperId) -> Option<PidFd> {
    use rustix::process::{PidfdFlags, pidfd_open};

    let pid = live::process(dir, keeper)?.pid_here()?;
    let fd = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    // The number may have been given to another process before it was opened,
    // but not while the keeper is alive afterwards.
    if live::probe(dir, keeper) != Life::Alive {
        return None;
    }
    // Its replacement is unsafe because a caller could close the descriptor
    // early; an owned one that nobody else sees cannot be.
    #[allow(deprecated)]
    PidFd::with_interest(fd, tokio::io::Interest::READABLE).ok()
}

#[cfg(not(target_os = "linux"))]
struct PidFd(OwnedFd);

#[cfg(not(target_os = "linux"))]
impl PidFd {
    async fn readable(&self) {
        std::future::pending::<()>().await;
    }
}

#[cfg(not(target_os = "linux"))]
fn pidfd(_: &Path, _: KeeperId) -> Option<PidFd> {
    None
}
