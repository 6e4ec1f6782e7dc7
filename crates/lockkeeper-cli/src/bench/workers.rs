//! The workers of *handover*, from their start to their certain end.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::worker::{Answer, Order, WORKER, serve};
use crate::exit::{self, Failure};

/// How long a worker may take to close its keeper and go.
const GRACE: Duration = Duration::from_secs(2);

/// Everybody who waits.
#[derive(Debug, Default)]
pub(super) struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    body: Body,
    answers: UnboundedReceiver<Answer>,
}

#[derive(Debug)]
enum Body {
    Process(Child),
    /// For engines that live in this process only.
    Thread {
        orders: Option<PipeWriter>,
        thread: Option<JoinHandle<()>>,
    },
}

impl Workers {
    /// Starts `count` of them. Dropped half way, all are ended.
    pub(super) async fn start(
        count: usize,
        private: bool,
        order: impl Fn(usize) -> Order,
    ) -> Result<Self, Failure> {
        make_room();
        let mut workers = Workers::default();
        for seat in 0..count {
            let worker = if private { Worker::thread() } else { Worker::process() };
            let failed = |error| {
                let text = format!("bench: cannot start waiter {} of {count}: {error}", seat + 1);
                Failure::new(exit::FAILED, "io", text)
            };
            let mut worker = worker.map_err(failed)?;
            worker.order(&order(seat))?;
            workers.0.push(worker);
        }
        Ok(workers)
    }

    /// Tells all of them the same.
    pub(super) fn tell(&mut self, order: &Order) -> Result<(), Failure> {
        self.0.iter_mut().try_for_each(|worker| worker.order(order))
    }

    /// Waits for an answer of each.
    pub(super) async fn answers(&mut self, limit: Duration) -> Result<Vec<Answer>, Failure> {
        let deadline = tokio::time::Instant::now() + limit;
        let mut answers = Vec::with_capacity(self.0.len());
        for worker in &mut self.0 {
            let failed =
                |text: &str| Err(Failure::new(exit::FAILED, "bench", format!("bench: {text}")));
            match tokio::time::timeout_at(deadline, worker.answers.recv()).await {
                Ok(Some(Answer::Failed { code, message, .. })) => {
                    return Err(Failure::new(code, "bench", message));
                }
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => return failed("a waiter has ended before its time"),
                Err(_) => return failed("a waiter has not answered in time"),
            }
        }
        Ok(answers)
    }
}

impl Drop for Workers {
    /// Ends them all: those who listen at once, the others by force.
    fn drop(&mut self) {
        for worker in &mut self.0 {
            worker.dismiss();
        }
        let deadline = Instant::now() + GRACE;
        for worker in &mut self.0 {
            worker.bury(deadline);
        }
    }
}

impl Worker {
    fn process() -> std::io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(WORKER)
            // Ctrl-C is for us: they end when we let go of their stdin.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = hear(child.stdout.take());
        Ok(Worker { body: Body::Process(child), answers })
    }

    fn thread() -> std::io::Result<Self> {
        let (input, orders): (PipeReader, PipeWriter) = std::io::pipe()?;
        let (heard, output) = std::io::pipe()?;
        let body = move || {
            // What went wrong has been answered, or there is nobody to hear it.
            let _ = serve(input, output);
        };
        let thread = std::thread::Builder::new().name("bench".to_owned()).spawn(body)?;
        let body = Body::Thread { orders: Some(orders), thread: Some(thread) };
        Ok(Worker { body, answers: hear(Some(heard)) })
    }

    fn order(&mut self, order: &Order) -> Result<(), Failure> {
        let mut line = serde_json::to_string(order).map_err(std::io::Error::from)?;
        line.push('\n');
        let written = match &mut self.body {
            Body::Process(child) => child.stdin.as_mut().map(|to| to.write_all(line.as_bytes())),
            Body::Thread { orders, .. } => orders.as_mut().map(|to| to.write_all(line.as_bytes())),
        };
        // One that has ended is found out when its answer is missing.
        let _ = written;
        Ok(())
    }

    fn dismiss(&mut self) {
        match &mut self.body {
            Body::Process(child) => drop(child.stdin.take()),
            Body::Thread { orders, .. } => drop(orders.take()),
        }
    }

    fn bury(&mut self, deadline: Instant) {
        match &mut self.body {
            Body::Process(child) => {
                while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Of one that is gone already, this is an error, and no harm.
                let _ = child.kill();
                let _ = child.wait();
            }
            Body::Thread { thread, .. } => {
                if let Some(thread) = thread.take() {
                    while !thread.is_finished() && Instant::now() < deadline {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        }
    }
}

/// Reads answers in the background.
fn hear(output: Option<impl Read + Send + 'static>) -> UnboundedReceiver<Answer> {
    let (sender, answers) = unbounded_channel();
    std::thread::spawn(move || {
        let Some(output) = output else { return };
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let Ok(answer) = serde_json::from_str(&line) else { return };
            if sender.send(answer).is_err() {
                return;
            }
        }
    });
    answers
}

/// Allows as many open files as there may be: two pipes per process.
fn make_room() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // What is missing is told by the start that fails.
    let _ = setrlimit(Resource::Nofile, most);
}
