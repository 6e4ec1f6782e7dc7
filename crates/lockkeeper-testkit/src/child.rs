//! Processes that take locks, and are killed, stopped and continued.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::history::Entry;

/// A worker process, spoken to in lines. Ended with this value.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    /// Starts `program` (the kit's `lk-worker`) on the engine at `url`.
    pub fn start(program: impl AsRef<Path>, url: &str) -> Self {
        let mut command = Command::new(program.as_ref());
        // Not an argument: URLs may hold secrets, and process lists are public.
        command.env("LOCKKEEPER_URL", url);
        Worker::run(command)
    }

    /// Starts a program that speaks in lines as `lk-worker` does, and says
    /// `ready` first.
    ///
    /// # Panics
    /// When it does not.
    pub fn run(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the worker starts");
        let input = child.stdin.take().expect("the worker has an input");
        let output = child.stdout.take().expect("the worker has an output");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut worker = Worker { child, input, lines };
        assert_eq!(worker.line(Duration::from_secs(30)), "ready");
        worker
    }

    /// Sends a command.
    pub fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the worker listens");
    }

    /// The next line it says.
    pub fn line(&mut self, limit: Duration) -> String {
        match self.lines.recv_timeout(limit) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the worker said nothing for {limit:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the worker is gone"),
        }
    }

    /// Whether it says something within `limit`, and what.
    pub fn try_line(&mut self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// Sends a command and takes the answer.
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.line(Duration::from_secs(30))
    }

    /// Takes entries until the worker says it is done.
    pub fn entries(&mut self, limit: Duration) -> Vec<Entry> {
        let start = Instant::now();
        let mut entries = Vec::new();
        loop {
            let line = self.line(limit.saturating_sub(start.elapsed()));
            if line == "done" {
                return entries;
            }
            entries.push(line.parse().expect("an entry of the history"));
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, as a crash would.
    pub fn kill(mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.child.wait();
    }

    /// Stops it where it stands.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: libc::c_int) {
        let id = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: kill has no memory to corrupt; the id is that of our own
        // child, which is not reaped before this value ends.
        unsafe { libc::kill(id, signal) };
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
