//! Finds the jars, and starts virtual machines that end with this process.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What a ZooKeeper server needs.
pub(super) const SERVER: &[(&str, &str)] =
    &[("libzookeeper-java", "zookeeper.jar"), ("libslf4j-java", "slf4j-simple.jar")];

/// What a server that speaks TLS needs beside.
pub(super) const NETTY: &[(&str, &str)] = &[
    ("libnetty-java", "netty-all.jar"),
    ("libnetty-java", "netty-codec.jar"),
    ("libnetty-java", "netty-resolver.jar"),
    ("libnetty-java", "netty-transport-native-unix-common.jar"),
];

/// The class path made of these jars, each given with its package.
///
/// # Panics
/// When one is missing.
pub(super) fn class_path(jars: &[(&str, &str)]) -> String {
    let paths: Vec<String> =
        jars.iter().map(|(package, file)| jar(package, file).display().to_string()).collect();
    paths.join(":")
}

fn jar(package: &str, file: &str) -> PathBuf {
    let listed = Command::new("dpkg").args(["-L", package]).output().expect("dpkg lists packages");
    let files = String::from_utf8_lossy(&listed.stdout);
    let found = files.lines().find(|line| line.rsplit('/').next() == Some(file));
    let path = found.map(PathBuf::from).filter(|path| path.exists());
    path.unwrap_or_else(|| {
        panic!("{file} is missing: install the package {package} (scripts/setup does it)")
    })
}

/// A virtual machine that starts soon and stays small.
pub(super) fn machine() -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    command
}

/// Starts a program that the kernel kills when this process ends, however it
/// ends: a virtual machine that nobody stops stays for ever.
///
/// # Panics
/// When there is no such program.
pub(super) fn spawn(command: Command) -> Child {
    type Order = (Command, Sender<io::Result<Child>>);
    static NURSERY: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let nursery = NURSERY.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        // The kernel looks at the thread that forked, not at its process: the
        // threads of tests end long before what they started.
        std::thread::spawn(move || {
            for (mut command, reply) in orders {
                end_with_us(&mut command);
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let program = command.get_program().to_string_lossy().into_owned();
    let (reply, child) = channel();
    let sender = nursery.lock().unwrap_or_else(PoisonError::into_inner).clone();
    sender.send((command, reply)).expect("the nursery is there");
    child.recv().expect("the nursery answers").unwrap_or_else(|error| {
        panic!("{program} cannot be started ({error}): scripts/setup installs it")
    })
}

#[cfg(target_os = "linux")]
fn end_with_us(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: prctl is async-signal-safe and touches no memory of ours.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

#[cfg(not(target_os = "linux"))]
fn end_with_us(_command: &mut Command) {}
