//! The signals we listen to.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What is passed on to the command, and ends a wait.
const FORWARDED: [i32; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// What only concerns a command that runs.
const JOB: [i32; 3] = [libc::SIGCHLD, libc::SIGTSTP, libc::SIGCONT];

/// The signals that have come for us.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(i32, Stream)>);

impl Signals {
    /// Listens for what ends a wait.
    pub(crate) fn listen() -> io::Result<Self> {
        let mut signals = Signals(Vec::new());
        signals.add(&FORWARDED)?;
        Ok(signals)
    }

    /// Listens also for what concerns a command that runs.
    pub(crate) fn listen_for_jobs(&mut self) -> io::Result<()> {
        self.add(&JOB)
    }

    fn add(&mut self, numbers: &[i32]) -> io::Result<()> {
        for &number in numbers {
            // What was ignored before us stays so, for the command too: that
            // is what `nohup` is for.
            if number == libc::SIGCHLD || !crate::sys::is_ignored(number) {
                self.0.push((number, signal(SignalKind::from_raw(number))?));
            }
        }
        Ok(())
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            for (number, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}
