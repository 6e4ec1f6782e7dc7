//! Servers that tests start: on a free port of this host, in a folder of
//! their own, ended by their process id, also when a test panics.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::SteppedClock;

/// A Redis server.
#[derive(Debug)]
pub struct RedisServer {
    folder: PathBuf,
    port: u16,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    child: Child,
}

impl RedisServer {
    /// Starts a server that keeps nothing on disk.
    pub fn start() -> Self {
        RedisServer::with(&["--save", "", "--appendonly", "no"])
    }

    /// Starts a server that writes every change to disk.
    pub fn durable() -> Self {
        RedisServer::with(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"])
    }

    /// Starts a server with further settings, as on its command line.
    ///
    /// # Panics
    /// When the program is not installed or does not come up.
    pub fn with(arguments: &[&str]) -> Self {
        RedisServer::launched(arguments, Vec::new())
    }

    /// Starts a server whose wall clock is `clock`, and that keeps nothing on disk.
    ///
    /// # Panics
    /// As [`with`](Self::with).
    pub fn on(clock: &SteppedClock) -> Self {
        RedisServer::launched(&["--save", "", "--appendonly", "no"], clock.environment().to_vec())
    }

    fn launched(arguments: &[&str], environment: Vec<(String, String)>) -> Self {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let mut said = String::new();
        // Somebody else may take the port between the look and the start.
        for _ in 0..20 {
            // One that does not come up takes its folder along.
            let (port, folder) = (free_port(), folder("redis"));
            let child = launch(&folder, port, &arguments, &environment);
            let mut server = RedisServer {
                folder,
                port,
                arguments: arguments.clone(),
                environment: environment.clone(),
                child,
            };
            if server.comes_up() {
                return server;
            }
            said = log(&server.folder);
        }
        panic!("redis-server does not start: {said}");
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Asks it something with `redis-cli`, and returns what that prints.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(arguments)
            .output()
            .expect("redis-cli is installed");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.child.wait();
    }

    /// Starts it again in the same place.
    pub fn restart(&mut self) {
        self.kill();
        for _ in 0..50 {
            self.child = launch(&self.folder, self.port, &self.arguments, &self.environment);
            if self.comes_up() {
                return;
            }
        }
        panic!("redis-server does not start again: {}", log(&self.folder));
    }

    /// Stops it where it stands.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    fn comes_up(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            if self.cli(&["PING"]).contains("PONG") || self.cli(&["PING"]).contains("NOAUTH") {
                // Another server may have won the port while ours gave up.
                let pid = format!("process_id:{}", self.child.id());
                let info = self.cli(&["INFO", "server"]);
                return info.contains(&pid) || info.contains("NOAUTH");
            }
            if !matches!(self.child.try_wait(), Ok(None)) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    fn signal(&self, signal: libc::c_int) {
        let id = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: kill has no memory to corrupt; the id is that of our own
        // child, which is not reaped before it is replaced or dropped.
        unsafe { libc::kill(id, signal) };
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn launch(
    folder: &Path,
    port: u16,
    arguments: &[String],
    environment: &[(String, String)],
) -> Child {
    let log = fs::File::options().create(true).append(true).open(folder.join("log"));
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"])
        .args(["--dir", &folder.display().to_string()])
        .args(arguments)
        .envs(environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(log.expect("a log file"))
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed (scripts/setup does it)")
}

fn log(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap_or_default()
}

/// A port that nobody listens on right now.
///
/// Nobody else of this process is given it, and it is not one of those that
/// the kernel picks for connections and for listeners that leave it the
/// choice: they come and go while a server starts. Neither is the port 10000
/// above, which a node of a Redis cluster listens on as well.
///
/// # Panics
/// When thousands are taken.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_001;
    const COUNT: u64 = 9_999;
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    // Test programs that run at once begin at different places.
    static START: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
    for _ in 0..COUNT {
        let number = GIVEN.fetch_add(1, Ordering::Relaxed).wrapping_add(*START) % COUNT;
        let port = FIRST + u16::try_from(number).expect("less than COUNT");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}

/// A new folder that nobody else uses.
pub fn folder(label: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("lockkeeper-{label}-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    fs::create_dir_all(&path).expect("a temporary folder");
    path
}
