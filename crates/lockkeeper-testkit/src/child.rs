//! Processes that take locks, and are killed, stopped and continued.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use lockkeeper::{Moment, Token};

use crate::history::Entry;

/// How long a worker may take to answer; nothing waits this long unless it is
/// broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// A worker process, spoken to in lines. Ended with this value.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
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
        let input = child.stdin.take();
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
        assert_eq!(worker.line(PATIENCE), "ready");
        worker
    }

    /// Sends a command.
    pub fn send(&mut self, command: &str) {
        let input = self.input.as_mut().expect("the worker has an input");
        writeln!(input, "{command}").expect("the worker listens");
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
        self.line(PATIENCE)
    }

    /// Asks `lk-worker` for a lock, and does not wait for it.
    pub fn want(&mut self, name: &str, lease_ms: u64) {
        self.send(&format!("lock {name} {lease_ms}"));
    }

    /// Waits until it has what it wanted: the token, and the instant it was
    /// told, on the clock that all processes of a host share.
    ///
    /// # Panics
    /// When it says anything else.
    pub fn granted(&mut self) -> (Token, Moment) {
        let line = self.line(PATIENCE);
        let mut words = line.strip_prefix("granted ").unwrap_or_default().split(' ');
        let mut number = || words.next().and_then(|word| word.parse().ok());
        match (number(), number()) {
            (Some(token), Some(told)) => (Token::new(token), Moment::from_nanos(told)),
            _ => panic!("the worker was not granted its lock: {line:?}"),
        }
    }

    /// Lets it lock a name, and returns the token.
    pub fn lock(&mut self, name: &str, lease_ms: u64) -> Token {
        self.want(name, lease_ms);
        self.granted().0
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

    /// Ends it in order.
    ///
    /// # Panics
    /// When it does not end well.
    pub fn finish(mut self) {
        drop(self.input.take());
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the worker is ours") {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "the worker does not end");
            std::thread::sleep(Duration::from_millis(2));
        };
        assert!(status.success(), "the worker failed: {status}");
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
