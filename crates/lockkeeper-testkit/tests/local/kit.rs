//! Worker processes, spoken to in lines with deadlines.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use lockkeeper::engine::Status;
use lockkeeper::{Keeper, Local};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Worker {
    pub(crate) fn start(dir: &Path) -> Worker {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lk-local-worker"))
            .arg(dir)
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
        let worker = Worker { child, input, lines };
        assert_eq!(worker.line(), "ready");
        worker
    }

    pub(crate) fn send(&mut self, command: &str) {
        let input = self.input.as_mut().expect("the worker listens");
        writeln!(input, "{command}").expect("the worker listens");
    }

    pub(crate) fn line(&self) -> String {
        self.line_within(PATIENCE).expect("the worker says something")
    }

    pub(crate) fn line_within(&self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.line()
    }

    /// Asks for a lock and does not wait for it.
    pub(crate) fn want(&mut self, name: &str, lease_ms: u64) {
        self.want_with_delay(name, lease_ms, 0);
    }

    pub(crate) fn want_with_delay(&mut self, name: &str, lease_ms: u64, delay_ms: u64) {
        assert_eq!(self.ask(&format!("lock {name} {lease_ms} {delay_ms}")), "asked");
    }

    /// Waits until it holds; the token and the instant it was told.
    pub(crate) fn held(&self) -> (u64, u64) {
        let line = self.line();
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some("held"), "{line}");
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        (number(), number())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the worker is there");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the worker is there");
        self.child.wait().expect("the worker ends");
    }

    /// Ends it in order.
    pub(crate) fn finish(mut self) {
        self.input.take();
        assert!(self.child.wait().expect("the worker ends").success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) async fn keeper(dir: &Path) -> Keeper {
    Keeper::new(Local::at(dir)).await.expect("a keeper opens")
}

/// Asks until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until this many wait for a name.
pub(crate) async fn waiters(keeper: &Keeper, name: &str, count: usize) -> Status {
    let status = async || keeper.status(name).await.expect("a status");
    until("waiters", async || status().await.waiters.len() == count).await;
    status().await
}
