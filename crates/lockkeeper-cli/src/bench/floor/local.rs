//! Beside `local:` stand `flock` on an open file and a datagram between
//! processes.
//!
//! Everything happens in a directory of its own inside the engine's, on the
//! same disk, which is deleted afterwards: names that were used once would
//! stay in the database for a day.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use lockkeeper::engine::EngineInfo;
use tokio::net::UnixDatagram;

use super::{Floor, Ring, Words};
use crate::bench::meter::Meter;
use crate::exit::{self, Failure};

/// The longest path that a socket can have on Linux, its end included.
const LONGEST: usize = 108;

pub(super) struct LocalFloor {
    url: String,
    dir: PathBuf,
    /// Whether the directory is ours to delete.
    ours: bool,
}

impl LocalFloor {
    pub(super) fn open(info: &EngineInfo, url: &str, prepared: bool) -> Result<Self, Failure> {
        // The label has the directory as the engine found it.
        let dir = Path::new(info.label.strip_prefix("local:").unwrap_or(&info.label));
        if prepared {
            return Ok(LocalFloor { url: url.to_owned(), dir: dir.to_owned(), ours: false });
        }
        let dir = dir.join(format!("bench-{}", std::process::id()));
        // Left by a process of this number that was killed.
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).map_err(|error| failed("make", &dir, &error))?;
        Ok(LocalFloor { url: format!("local:{}", dir.display()), dir, ours: true })
    }

    /// Away from the engine's files, which must have their directory alone.
    fn files(&self) -> Result<PathBuf, Failure> {
        let files = self.dir.join("floor");
        match fs::create_dir(&files) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(failed("make", &files, &error))
            }
            _ => Ok(files),
        }
    }
}

#[async_trait]
impl Floor for LocalFloor {
    fn url(&self) -> &str {
        &self.url
    }

    fn words(&self) -> Words {
        Words {
            pair: "flock and unlock of an open file",
            hand_over: Some("a datagram from one process to the next"),
        }
    }

    async fn pairs(&self, name: &str, meter: &mut Meter) -> Result<(), Failure> {
        let path = self.files()?.join(name.replace('/', "-"));
        let file = File::create(&path).map_err(|error| failed("make", &path, &error))?;
        while meter.runs() {
            file.lock()?;
            file.unlock()?;
            meter.tick();
            // Nothing here waits, and the other tasks want their turn.
            tokio::task::consume_budget().await;
        }
        Ok(())
    }

    async fn sit(&self, _ring: &str, seat: usize) -> Result<Option<Box<dyn Ring>>, Failure> {
        let files = self.files()?;
        let path = files.join(seat.to_string());
        if path.as_os_str().len() + 4 >= LONGEST {
            return Ok(None);
        }
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).map_err(|error| failed("make", &path, &error))?;
        Ok(Some(Box::new(Seat { files, socket })))
    }

    async fn clean(&self, _names: &[String]) -> Result<(), Failure> {
        if !self.ours {
            return Ok(());
        }
        fs::remove_dir_all(&self.dir).map_err(|error| failed("delete", &self.dir, &error))
    }
}

struct Seat {
    files: PathBuf,
    socket: UnixDatagram,
}

#[async_trait]
impl Ring for Seat {
    async fn pass(&mut self, to: usize, what: &str) -> Result<(), Failure> {
        self.socket.send_to(what.as_bytes(), self.files.join(to.to_string())).await?;
        Ok(())
    }

    async fn receive(&mut self) -> Result<String, Failure> {
        let mut buffer = [0; 256];
        let count = self.socket.recv(&mut buffer).await?;
        Ok(String::from_utf8_lossy(&buffer[..count]).into_owned())
    }
}

fn failed(verb: &str, path: &Path, error: &std::io::Error) -> Failure {
    let code = match error.kind() {
        std::io::ErrorKind::PermissionDenied => exit::NOT_PERMITTED,
        _ => exit::FAILED,
    };
    Failure::new(code, "io", format!("bench: cannot {verb} {}: {error}", path.display()))
}
