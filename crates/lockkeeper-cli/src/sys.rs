//! The only unsafe code: what the kernel offers and no safe wrapper covers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal};

/// Whether this signal was ignored when we were started (`nohup`, a shell's `&`).
pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is valid, and a null action only reads.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}

/// Our process group. One that was made outside of our PID namespace (`unshare
/// --pid`, `bwrap --unshare-pid`) has no number in it: the kernel says 0, which
/// rustix takes for impossible.
pub(crate) fn own_group() -> Option<Pid> {
    // SAFETY: only reads.
    Pid::from_raw(unsafe { libc::getpgrp() })
}

/// Ignores SIGTTOU, which would stop us for moving the terminal from the
/// background. Returns whether that is news, and so to be undone for a command.
pub(crate) fn may_move_terminal() -> bool {
    let news = !is_ignored(libc::SIGTTOU);
    set_action(libc::SIGTTOU, libc::SIG_IGN);
    news
}

/// Prepares the first moments of a child, between fork and exec: it dies with
/// us, its guardian knows it, and it has the terminal before its first
/// instruction if `terminal` is given. `heed` undoes what [`may_move_terminal`] did.
pub(crate) fn prepare(
    command: &mut Command,
    guardian: Option<&Guardian>,
    terminal: Option<RawFd>,
    heed: bool,
) {
    let parent = rustix::process::getpid();
    let guardian = guardian.map(|guardian| guardian.alive.as_raw_fd());
    let first_moments = move || {
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // We may have died before the line above.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        // SAFETY: system calls on descriptors that stay open until the spawn is over.
        unsafe {
            let group = libc::getpid();
            if let Some(guardian) = guardian {
                libc::write(guardian, (&raw const group).cast(), size_of::<i32>());
            }
            if let Some(terminal) = terminal {
                libc::tcsetpgrp(terminal, group);
            }
        }
        if heed {
            set_action(libc::SIGTTOU, libc::SIG_DFL);
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only; it allocates and locks nothing.
    unsafe { command.pre_exec(first_moments) };
}

/// Stops our whole process group, as Ctrl-Z would have if the terminal were
/// ours; returns when somebody continues us.
pub(crate) fn stop_ourselves() {
    // SAFETY: plain system calls on valid structures.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGTSTP, std::ptr::null(), &mut before);
        // First the others: while ignored, the signal passes us by.
        set_action(libc::SIGTSTP, libc::SIG_IGN);
        libc::kill(0, libc::SIGTSTP);
        // Then this very thread, so that the stop comes before the next line.
        set_action(libc::SIGTSTP, libc::SIG_DFL);
        libc::raise(libc::SIGTSTP);
        libc::sigaction(libc::SIGTSTP, &before, std::ptr::null_mut());
    }
}

/// Ends us by a signal, so that a shell knows that its loop is to end too.
/// `others` passes it to the rest of our process group first.
pub(crate) fn die_by(signal: i32, others: bool) {
    if others {
        set_action(signal, libc::SIG_IGN);
        // SAFETY: a plain system call.
        unsafe { libc::kill(0, signal) };
    }
    set_action(signal, libc::SIG_DFL);
    // SAFETY: a plain system call.
    unsafe { libc::raise(signal) };
}

fn set_action(signal: i32, action: libc::sighandler_t) {
    // SAFETY: an all-zero sigaction with a predefined action is valid.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = action;
        libc::sigaction(signal, &new, std::ptr::null_mut());
    }
}

/// A process of ours that outlives us by a moment: when we are killed, it
/// kills the command's group, then ends.
///
/// The parent-death signal reaches the command alone; its own children need
/// this. It is posted before the command is, which tells it its group with
/// its first breath: there is no moment in which a group runs unguarded.
#[derive(Debug)]
pub(crate) struct Guardian {
    pid: Pid,
    /// Carries the group's id, and is closed by the kernel when we die.
    alive: OwnedFd,
}

impl Guardian {
    /// Posts a guardian.
    pub(crate) fn post() -> io::Result<Self> {
        let (heard, alive) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (ear, mouth) = (heard.as_raw_fd(), alive.as_raw_fd());
        // SAFETY: the child makes system calls only, and never returns.
        let pid = match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()),
            0 => unsafe { guard(ear, mouth) },
            pid => Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?,
        };
        Ok(Guardian { pid, alive })
    }

    /// The process, which is a child of ours but not the command's.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }
}

impl Drop for Guardian {
    /// Dismisses it. It dies in its read, before it could take our end for a
    /// murder; nobody needs to wait for that.
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
    }
}

/// The guardian's whole life.
///
/// # Safety
/// Only for the child of a fork: it never returns.
unsafe fn guard(ear: RawFd, mouth: RawFd) -> ! {
    // SAFETY: system calls on our own descriptors and locals; nothing allocates or locks.
    unsafe {
        // Our handlers write into a pipe that is shared with our parent.
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        // Out of the terminal's reach, and of signals to our parent's group.
        libc::setsid();
        #[cfg(target_os = "linux")]
        libc::prctl(libc::PR_SET_NAME, c"lockkeeper-grd".as_ptr());
        libc::close(mouth);
        let (mut group, mut nothing) = (0i32, 0u8);
        let told = libc::read(ear, (&raw mut group).cast(), size_of::<i32>());
        // Returns when the last writer, our parent, is dead.
        libc::read(ear, (&raw mut nothing).cast(), 1);
        if told != size_of::<i32>() as isize || group <= 1 {
            libc::_exit(0);
        }
        let millisecond = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        for _ in 0..5_000 {
            if libc::kill(-group, libc::SIGKILL) != 0 || !crate::procs::group_lives(group) {
                break;
            }
            libc::nanosleep(&millisecond, std::ptr::null_mut());
        }
        libc::_exit(0)
    }
}
