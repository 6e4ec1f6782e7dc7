//! What the tests share: a place for locks, processes that never outlive a
//! test, and waiting for conditions instead of for time.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Long enough for a busy machine; nothing waits this long unless it is broken.
/// Shorter than what commands sleep, so that none ends by itself in time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// A directory of the test's own, with an embedded engine in it.
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("lkcli-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        Place { dir }
    }

    /// The engine's URL.
    pub(crate) fn url(&self) -> String {
        format!("local:{}", self.dir.join("locks").display())
    }

    /// The program, on this place's engine and in its directory.
    pub(crate) fn lockkeeper(&self, words: &[&str]) -> Command {
        let mut command = lockkeeper(words);
        command.env("LOCKKEEPER_URL", self.url()).current_dir(&self.dir);
        command
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// What a process has written into a file, once it has written a whole line.
    pub(crate) fn line(&self, name: &str) -> String {
        let path = self.file(name);
        eventually(&format!("a line in {name}"), || {
            let text = fs::read_to_string(&path).ok()?;
            text.ends_with('\n').then(|| text.trim().to_owned())
        })
    }

    /// The process id that a process has written into a file.
    pub(crate) fn pid(&self, name: &str) -> i32 {
        self.line(name).parse().unwrap()
    }

    /// A holder of `name` that runs until it is dropped.
    pub(crate) fn hold(&self, name: &str) -> Running {
        let script = "echo $$ > holder.pid; exec sleep 60";
        let holder = Running::start(self.lockkeeper(&["run", name, "sh", "-c", script]));
        self.pid("holder.pid");
        fs::remove_file(self.file("holder.pid")).unwrap();
        holder
    }

    /// The status of a name, as JSON.
    pub(crate) fn status(&self, name: &str) -> serde_json::Value {
        let output = run(self.lockkeeper(&["--json", "status", name]));
        serde_json::from_str(&output.stdout).unwrap()
    }

    /// Waits until this many wait for a name.
    pub(crate) fn until_waiting(&self, name: &str, count: usize) {
        eventually("waiters", || {
            let waiters = self.status(name)["waiters"].as_array().unwrap().len();
            (waiters == count).then_some(())
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The program on an engine of its own, with nothing of ours in its environment.
pub(crate) fn lockkeeper(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("LOCKKEEPER_") {
            command.env_remove(variable);
        }
    }
    command.env("LOCKKEEPER_URL", "memory:").args(words);
    command
}

/// What a program that has ended said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Said {
    /// The events among the lines of stderr.
    pub(crate) fn events(&self) -> Vec<serde_json::Value> {
        self.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Runs a command to its end.
pub(crate) fn run(command: Command) -> Said {
    Running::start(command).end()
}

/// Runs a command to its end, with something on its stdin.
pub(crate) fn run_with_stdin(mut command: Command, input: &str) -> Said {
    command.stdin(Stdio::piped());
    let mut running = Running::start(command);
    running.child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    running.end()
}

/// A running program, killed when dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    started: Instant,
    stdout: Arc<Mutex<String>>,
    stderr: Arc<Mutex<String>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        if command.get_program() == env!("CARGO_BIN_EXE_lockkeeper") {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        heed_signals(&mut command);
        let started = Instant::now();
        let mut child = command.spawn().unwrap();
        let (stdout, stderr) = (Arc::default(), Arc::default());
        let readers =
            vec![collect(child.stdout.take(), &stdout), collect(child.stderr.take(), &stderr)];
        Running { child, started, stdout, stderr, readers }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    pub(crate) fn stdout(&self) -> String {
        self.stdout.lock().unwrap().clone()
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Waits until stderr has this text, and says how long it took from the start.
    pub(crate) fn until_stderr(&self, text: &str) -> Duration {
        eventually(&format!("{text:?} on stderr"), || self.stderr().contains(text).then_some(()));
        self.started.elapsed()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn status(&mut self) -> ExitStatus {
        eventually("the program's end", || self.child.try_wait().unwrap())
    }

    /// Waits for the end and returns what was said.
    pub(crate) fn end(mut self) -> Said {
        let status = self.status();
        let took = self.started.elapsed();
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        // Ended by a signal reads as a negative number, so that no test mixes them up.
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        Said { code, stdout: self.stdout(), stderr: self.stderr(), took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A killed lockkeeper takes everything it runs along.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets a program start with the usual actions of signals, whatever they are
/// here: a shell ignores SIGINT and SIGQUIT for what it runs in the background,
/// `nohup` SIGHUP, and whoever is started by such a runner would keep to it.
#[allow(unsafe_code)]
pub(crate) fn heed_signals(command: &mut Command) {
    let usual = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGTSTP] {
            // SAFETY: a system call with a predefined action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only; it allocates and locks nothing.
    unsafe { command.pre_exec(usual) };
}

fn collect(
    from: Option<impl Read + Send + 'static>,
    into: &Arc<Mutex<String>>,
) -> thread::JoinHandle<()> {
    let into = into.clone();
    thread::spawn(move || {
        let Some(mut from) = from else { return };
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            into.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    })
}

/// Asks again and again until there is an answer.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "no {what} after {:?}", start.elapsed());
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn kill(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// Whether a process is at work; a zombie is not.
pub(crate) fn is_alive(pid: i32) -> bool {
    matches!(state(pid), Some(state) if !"ZX".contains(state))
}

/// The letter that the kernel shows for a process.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

pub(crate) fn until_dead(pid: i32) {
    eventually(&format!("end of process {pid}"), || (!is_alive(pid)).then_some(()));
}

/// Holds the file that every write to an embedded engine has to lock: the
/// engine is frozen until this is dropped.
pub(crate) struct Frozen(#[allow(dead_code)] fs::File);

impl Frozen {
    pub(crate) fn freeze(place: &Place) -> Self {
        let guard: &Path = &place.dir.join("locks").join("guard");
        let file = fs::File::options().read(true).write(true).open(guard).unwrap();
        file.lock().unwrap();
        Frozen(file)
    }
}
