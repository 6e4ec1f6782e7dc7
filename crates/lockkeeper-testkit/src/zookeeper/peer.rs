//! Programs that use ZooKeeper's and Curator's own classes.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::java;
use crate::child::Worker;
use crate::start::{kept, shared};

const CURATOR: &[(&str, &str)] =
    &[("libcurator-recipes-java", "curator-recipes.jar"), ("libslf4j-java", "slf4j-simple.jar")];

/// Starts a process that takes locks with the real Curator, told how in lines:
/// see `java/CuratorPeer.java`.
///
/// # Panics
/// When Java, its compiler or a jar is missing.
pub fn curator(ports: &[u16], session: Duration) -> Worker {
    let servers: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut command = program("CuratorPeer");
    command.arg(servers.join(",")).arg(session.as_millis().to_string());
    Worker::run(command)
}

/// Sets the counter that sequential children of `path` are numbered by, in
/// the data folder of a server that is down.
///
/// # Panics
/// When it cannot.
pub fn preset_counter(data: &Path, path: &str, counter: i32) {
    let mut command = program("PresetCounter");
    let done = command.arg(data).arg(path).arg(counter.to_string()).output().expect("java runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A program of the `java` folder, compiled once for this process.
fn program(class: &str) -> Command {
    static CLASSES: Mutex<Weak<tempfile::TempDir>> = Mutex::new(Weak::new());
    let classes: Arc<tempfile::TempDir> = kept(shared(&CLASSES, compile));
    let class_path = format!("{}:{}", classes.path().display(), java::class_path(CURATOR));
    let mut command = java::machine();
    command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error").args(["-cp", &class_path, class]);
    command
}

fn compile() -> tempfile::TempDir {
    let classes = tempfile::tempdir().expect("a folder for the classes");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("java");
    let done = Command::new("javac")
        .args(["-implicit:none", "-proc:none", "-cp", &java::class_path(CURATOR), "-d"])
        .arg(classes.path())
        .arg(sources.join("CuratorPeer.java"))
        .arg(sources.join("PresetCounter.java"))
        .output()
        .expect("javac is installed (scripts/setup does it)");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    classes
}
