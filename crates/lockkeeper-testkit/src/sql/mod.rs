//! MariaDB and PostgreSQL servers for tests: on a free port of this host, in a
//! folder of their own, ended by their process ids.

mod install;
mod process;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::fleet::certificate;
use crate::server::{folder, free_port};
use process::Process;

/// Which database a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// MariaDB, through `mysql://`.
    MariaDb,
    /// PostgreSQL, through `postgres://`.
    Postgres,
}

impl Flavour {
    /// Both of them.
    pub const ALL: [Flavour; 2] = [Flavour::MariaDb, Flavour::Postgres];

    /// The scheme of its URLs.
    pub fn scheme(self) -> &'static str {
        match self {
            Flavour::MariaDb => "mysql",
            Flavour::Postgres => "postgres",
        }
    }
}

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Further settings: `max_connections=20`.
    pub settings: Vec<String>,
    /// Every commit is on the disk before it is answered.
    pub durable: bool,
    /// Nobody but the administrator gets in without TLS.
    pub tls: bool,
    /// Nobody but the administrator may write (PostgreSQL: a standby, nobody at all).
    pub read_only: bool,
    /// Its wall clock can be stepped.
    pub stepped: bool,
}

/// A database server. Ends with this value.
#[derive(Debug)]
pub struct SqlServer {
    flavour: Flavour,
    how: Settings,
    folder: PathBuf,
    port: u16,
    process: Process,
}

/// The password of the user `keeper`, and as it stands in a URL.
pub const PASSWORD: &str = "se%cret";
const PASSWORD_IN_URL: &str = "se%25cret";

impl SqlServer {
    /// Starts a server of its own; what it keeps outlives a crash of the
    /// server, but not one of the machine.
    pub fn start(flavour: Flavour) -> Self {
        SqlServer::with(flavour, Settings::default())
    }

    /// Starts a server whose commits are on the disk.
    pub fn durable(flavour: Flavour) -> Self {
        SqlServer::with(flavour, Settings { durable: true, ..Settings::default() })
    }

    /// Starts a server with further settings.
    ///
    /// # Panics
    /// When the program is not installed or does not come up.
    pub fn with(flavour: Flavour, how: Settings) -> Self {
        let folder = folder(flavour.scheme());
        install::copy(flavour, &folder.join("data"));
        if how.tls {
            certificate(&folder);
        }
        if how.stepped {
            install::clock(&folder);
        }
        install::own(flavour, &folder);
        // A standby cannot be given users: they are made before it becomes one.
        let first = Settings { read_only: false, ..how.clone() };
        let mut server = SqlServer::launch(flavour, first, folder);
        server.make_user();
        if how.read_only {
            server.sql("", "CREATE DATABASE lk");
            server.process.end(libc::SIGTERM);
            if flavour == Flavour::Postgres {
                fs::write(server.folder.join("data/standby.signal"), "").expect("a file");
                install::own(flavour, &server.folder);
            }
            server.how = how;
            server.restart();
        }
        server
    }

    fn launch(flavour: Flavour, how: Settings, folder: PathBuf) -> Self {
        let port = free_port();
        let process = start(flavour, &how, &folder, port);
        let mut server = SqlServer { flavour, how, folder, port, process };
        // Somebody else may take the port between the look and the start.
        for _ in 0..20 {
            if server.comes_up() {
                return server;
            }
            if server.process.is_up() {
                server.process.kill();
            }
            server.port = free_port();
            server.process = start(flavour, &server.how, &server.folder, server.port);
        }
        panic!("{flavour:?} does not start: {}", log(&server.folder));
    }

    /// Which database it is.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its folder, with `cert.pem` if it speaks TLS.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes a database that belongs to the user `keeper`, and returns its name.
    pub fn database(&self) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("lk_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        match self.flavour {
            Flavour::MariaDb => {
                self.sql("", &format!("CREATE DATABASE {name}"));
                self.sql("", &format!("GRANT ALL ON {name}.* TO keeper@'%'"));
            }
            Flavour::Postgres => {
                self.sql("", &format!("CREATE DATABASE {name} OWNER keeper"));
            }
        }
        name
    }

    /// The URL of a database for the user `keeper`.
    pub fn url(&self, database: &str) -> String {
        self.url_at(self.port, database)
    }

    /// The same through a proxy that listens on `port`.
    pub fn url_at(&self, port: u16, database: &str) -> String {
        let scheme = self.flavour.scheme();
        format!("{scheme}://keeper:{PASSWORD_IN_URL}@127.0.0.1:{port}/{database}")
    }

    /// Asks it something as its administrator, in `database` or in none (""),
    /// and returns the rows, one a line, values parted by tabs.
    ///
    /// # Panics
    /// When it is an error.
    pub fn sql(&self, database: &str, query: &str) -> String {
        match self.try_sql(database, query) {
            Ok(rows) => rows,
            Err(error) => panic!("{query}: {error}"),
        }
    }

    /// The same; an error is what the client program says of it.
    pub fn try_sql(&self, database: &str, query: &str) -> Result<String, String> {
        let output = install::client(self.flavour, self.port, database)
            .arg(query)
            .output()
            .expect("the client program is installed (scripts/setup does it)");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }

    /// Kills it with all its processes, as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same data and port; kills it first if it runs.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn restart(&mut self) {
        self.process.kill();
        for _ in 0..50 {
            self.process = start(self.flavour, &self.how, &self.folder, self.port);
            if self.comes_up() {
                return;
            }
        }
        panic!("{:?} does not start again: {}", self.flavour, log(&self.folder));
    }

    /// Stops it where it stands.
    pub fn freeze(&self) {
        self.process.signal_all(libc::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.process.signal_all(libc::SIGCONT);
    }

    /// Sets its wall clock this much ahead of the host's; needs
    /// [`Settings::stepped`].
    pub fn step_clock(&self, seconds: i64) {
        assert!(self.how.stepped, "this server has the host's clock");
        install::step(&self.folder, seconds);
    }

    /// How many sessions the user `keeper` has, in `database` or in all ("").
    pub fn sessions(&self, database: &str) -> usize {
        let query = match self.flavour {
            Flavour::MariaDb => {
                "SELECT count(*) FROM information_schema.processlist WHERE user = 'keeper' \
                 AND (db = '{}' OR '{}' = '')"
            }
            Flavour::Postgres => {
                "SELECT count(*) FROM pg_stat_activity WHERE usename = 'keeper' \
                 AND (datname = '{}' OR '{}' = '')"
            }
        };
        self.sql("", &query.replace("{}", database)).parse().expect("a number")
    }

    fn make_user(&self) {
        match self.flavour {
            Flavour::MariaDb => {
                let tls = if self.how.tls { "REQUIRE SSL" } else { "" };
                let user = format!("CREATE USER keeper@'%' IDENTIFIED BY '{PASSWORD}' {tls}");
                self.sql("", &user)
            }
            Flavour::Postgres => {
                self.sql("", &format!("CREATE ROLE keeper LOGIN PASSWORD '{PASSWORD}'"))
            }
        };
    }

    fn comes_up(&mut self) -> bool {
        let start = Instant::now();
        // Another server may have won the port while ours gave up.
        let whose = match self.flavour {
            Flavour::MariaDb => "SELECT @@datadir",
            Flavour::Postgres => "SHOW data_directory",
        };
        let own = self.folder.join("data").display().to_string();
        while start.elapsed() < Duration::from_secs(20) {
            if let Ok(place) = self.try_sql("", whose) {
                return place.trim_end_matches('/') == own;
            }
            if !self.process.is_up() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

fn start(flavour: Flavour, how: &Settings, folder: &Path, port: u16) -> Process {
    Process::start(&mut install::server(flavour, how, folder, port), folder)
}

impl Drop for SqlServer {
    fn drop(&mut self) {
        // PostgreSQL's quick end; it takes its shared memory along.
        self.process.end(match self.flavour {
            Flavour::MariaDb => libc::SIGKILL,
            Flavour::Postgres => libc::SIGQUIT,
        });
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn log(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap_or_default()
}

/// Runs a program that must succeed.
fn run(command: &mut Command) {
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!(
            "{command:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => panic!("{command:?}: {error} (scripts/setup installs it)"),
    }
}
