//! Where the programs are, how they are called, and the first state of the
//! data, which is made once per process and copied.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{Flavour, Settings, run};

/// Puts fresh data at `place`.
pub(super) fn copy(flavour: Flavour, place: &Path) {
    static MARIADB: OnceLock<tempfile::TempDir> = OnceLock::new();
    static POSTGRES: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = match flavour {
        Flavour::MariaDb => &MARIADB,
        Flavour::Postgres => &POSTGRES,
    };
    let made = made.get_or_init(|| {
        let temp = tempfile::tempdir().expect("a folder for the first data");
        make(flavour, &temp.path().join("data"));
        remove_at_exit(temp.path());
        temp
    });
    run(Command::new("cp").arg("-a").arg(made.path().join("data")).arg(place));
}

/// What a static holds is not dropped at the end of a process.
fn remove_at_exit(path: &Path) {
    use std::sync::Mutex;
    static PATHS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    extern "C" fn remove() {
        for path in PATHS.lock().map(|paths| paths.clone()).unwrap_or_default() {
            let _ = fs::remove_dir_all(path);
        }
    }
    let mut paths = PATHS.lock().expect("nobody panics here");
    if paths.is_empty() {
        // SAFETY: the function touches nothing that is gone at exit.
        unsafe { libc::atexit(remove) };
    }
    paths.push(path.to_owned());
}

fn make(flavour: Flavour, place: &Path) {
    match flavour {
        Flavour::MariaDb => run(Command::new("mariadb-install-db")
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(format!("--datadir={}", place.display()))
            // Servers that share a place for temporary tables take them from each other.
            .arg(format!("--tmpdir={}", place.parent().expect("a folder above").display()))
            .args(user())
            .args(SMALL)),
        Flavour::Postgres => {
            let parent = place.parent().expect("a folder above");
            own(flavour, parent);
            run(as_postgres("initdb").arg("-D").arg(place).args([
                "-U",
                "postgres",
                "-A",
                "trust",
                "-N",
                "-E",
                "UTF8",
                "--locale=C.UTF-8",
            ]));
            let hba = "host all postgres 127.0.0.1/32 trust\n\
                       hostssl all all 127.0.0.1/32 scram-sha-256\n";
            fs::write(place.join("hba-tls"), hba).expect("a file");
            let hba = hba.replace("hostssl", "host");
            fs::write(place.join("hba"), hba).expect("a file");
            own(flavour, parent);
        }
    }
}

const SMALL: [&str; 3] = [
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=16M",
    "--aria-pagecache-buffer-size=1M",
];

/// The command that starts a server.
pub(super) fn server(flavour: Flavour, how: &Settings, folder: &Path, port: u16) -> Command {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut command = match flavour {
        Flavour::MariaDb => {
            let mut command = Command::new(mariadbd());
            command
                .arg("--no-defaults")
                .args(user())
                .arg(format!("--datadir={}", file("data")))
                .arg(format!("--tmpdir={}", folder.display()))
                .arg(format!("--port={port}"))
                .arg(format!("--socket={}", file("socket")))
                .args(["--bind-address=127.0.0.1", "--skip-name-resolve"])
                .args(["--performance-schema=OFF", "--max-connections=400"])
                .arg(match how.durable {
                    true => "--innodb-flush-log-at-trx-commit=1",
                    false => "--innodb-flush-log-at-trx-commit=2",
                })
                .args(SMALL);
            if how.tls {
                command
                    .arg(format!("--ssl-cert={}", file("cert.pem")))
                    .arg(format!("--ssl-key={}", file("key.pem")));
            }
            if how.read_only {
                command.arg("--read-only");
            }
            command.args(how.settings.iter().map(|setting| format!("--{setting}")));
            command
        }
        Flavour::Postgres => {
            let mut command = as_postgres("postgres");
            command.arg("-D").arg(file("data")).args(["-p", &port.to_string()]);
            let mut set = |setting: &str| _ = command.args(["-c", setting]);
            set("listen_addresses=127.0.0.1");
            set("unix_socket_directories=");
            set("max_connections=400");
            set("shared_buffers=16MB");
            set("max_wal_size=64MB");
            if !how.durable {
                // A crash of the server alone loses nothing by this: the
                // kernel has what was written.
                set("fsync=off");
            }
            if how.tls {
                set("ssl=on");
                set(&format!("ssl_cert_file={}", file("cert.pem")));
                set(&format!("ssl_key_file={}", file("key.pem")));
            }
            let hba = if how.tls { "data/hba-tls" } else { "data/hba" };
            set(&format!("hba_file={}", file(hba)));
            how.settings.iter().for_each(|setting| set(setting));
            command
        }
    };
    if how.stepped {
        command.env("LD_PRELOAD", file("clock.so")).env("LOCKKEEPER_CLOCK", file("offset"));
    }
    command
}

/// The client program, for the administrator; a query is still to be added.
pub(super) fn client(flavour: Flavour, port: u16, database: &str) -> Command {
    let mut command;
    match flavour {
        Flavour::MariaDb => {
            command = Command::new("mariadb");
            command.args(["--no-defaults", "-h127.0.0.1", "-uroot", "--batch"]);
            command.args(["--skip-column-names", &format!("-P{port}")]);
            if !database.is_empty() {
                command.arg(format!("-D{database}"));
            }
            command.arg("-e");
        }
        Flavour::Postgres => {
            let database = if database.is_empty() { "postgres" } else { database };
            command = Command::new(postgres_program("psql"));
            command.args(["-X", "-A", "-t", "-q", "-F", "\t", "-h", "127.0.0.1", "-U", "postgres"]);
            command.args(["-v", "ON_ERROR_STOP=1", "-p", &port.to_string(), "-d", database]);
            command.arg("-c");
        }
    }
    command
}

/// Gives a folder to the user that the server runs as.
pub(super) fn own(flavour: Flavour, folder: &Path) {
    if flavour == Flavour::Postgres && is_root() {
        run(Command::new("chown").args(["-R", "postgres:"]).arg(folder));
    }
}

/// Compiles the clock that can be stepped.
pub(super) fn clock(folder: &Path) {
    let source = folder.join("clock.c");
    fs::write(&source, include_str!("clock.c")).expect("a file");
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-fno-builtin", "-o"])
        .arg(folder.join("clock.so"))
        .arg(&source)
        .arg("-ldl"));
    step(folder, 0);
}

/// Writes the clock's offset, in place: the file is mapped.
pub(super) fn step(folder: &Path, seconds: i64) {
    let mut file = fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join("offset"))
        .expect("the file of the clock");
    file.write_all(&(seconds * 1_000_000_000).to_ne_bytes()).expect("the clock is set");
}

/// A program of PostgreSQL as the user it insists on: it refuses to be root.
fn as_postgres(program: &str) -> Command {
    let program = postgres_program(program);
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

/// Debian keeps them out of the way, one folder per version.
fn postgres_program(program: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())))
        .max();
    newest.map_or_else(|| PathBuf::from(program), |(_, path)| path.join("bin").join(program))
}

/// `/usr/sbin` is not in every user's path.
fn mariadbd() -> &'static str {
    match Path::new("/usr/sbin/mariadbd").exists() {
        true => "/usr/sbin/mariadbd",
        false => "mariadbd",
    }
}

fn is_root() -> bool {
    // SAFETY: only reads the process's user.
    unsafe { libc::geteuid() == 0 }
}

/// MariaDB runs as root only where it is told to; for others there is nothing to
/// tell, and `$USER` is not set everywhere.
fn user() -> Option<&'static str> {
    is_root().then_some("--user=root")
}
