//! The terminal: the command gets it while it runs, and we get it back.

use std::io::IsTerminal;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal that controls us, if there is one.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: Option<OwnedFd>,
    /// Our own process group, unless it has no name here.
    ours: Option<Pid>,
    /// Whether we ignore a signal that the command is to heed.
    pub(super) heed: bool,
}

impl Terminal {
    pub(super) fn open() -> Self {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let tty = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok();
        let heed = tty.is_some() && crate::sys::may_move_terminal();
        Terminal { tty, ours: crate::sys::own_group(), heed }
    }

    /// What the command is to be given from its first instruction: a terminal
    /// that is ours to give and that it would read. In `cat | lockkeeper run …`
    /// it stays with us, because `cat` needs it.
    pub(super) fn to_hand_over(&self) -> Option<RawFd> {
        let tty = self.tty.as_ref()?;
        (std::io::stdin().is_terminal() && self.is_ours()).then(|| tty.as_raw_fd())
    }

    /// Whether our group is in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        self.ours.is_some_and(|ours| self.belongs_to(ours))
    }

    /// Whether that group is in the foreground.
    pub(super) fn belongs_to(&self, group: Pid) -> bool {
        self.tty.as_ref().is_some_and(|tty| tcgetpgrp(tty) == Ok(group))
    }

    /// Puts the command's group in the foreground.
    pub(super) fn give_to(&self, group: Pid) {
        self.set(group);
    }

    /// Puts our own group in the foreground if the command's is.
    pub(super) fn take_back_from(&self, group: Pid) {
        if self.belongs_to(group) {
            self.reclaim();
        }
    }

    /// Puts our own group in the foreground after a start that failed half way.
    pub(super) fn reclaim(&self) {
        if let Some(ours) = self.ours {
            self.set(ours);
        }
    }

    fn set(&self, group: Pid) {
        if let Some(tty) = &self.tty {
            // A terminal that was hung up is nobody's any more.
            let _ = tcsetpgrp(tty, group);
        }
    }
}
