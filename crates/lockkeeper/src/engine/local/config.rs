//! Which directory to lock in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use super::LocalEngine;
use super::place::Place;
use crate::engine::{Connect, Engine, Seat};
use crate::error::Result;

/// Opens the embedded engine: locks for the processes of one host, no server.
///
/// Everything lives in one directory: a SQLite database with the records, a
/// file that keeps writers fair, and two files per keeper, by which it proves
/// that it is alive and is woken. See `docs/engines/local.md`.
///
/// It does not reach beyond the host: directories on network file systems are
/// refused. Everybody who may write to the directory may take, break and forge
/// its locks; a directory that the engine makes is open to its user only.
///
/// # Examples
/// ```
/// use lockkeeper::{Keeper, Local};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let temp = tempfile::tempdir().unwrap();
/// # let dir = temp.path().join("locks");
/// let keeper = Keeper::new(Local::at(&dir)).await?;
/// let guard = keeper.mutex("nightly").lock().await?;
///
/// let other = Keeper::connect(&format!("local:{}", dir.display())).await?;
/// assert!(other.mutex("nightly").try_lock().await?.is_none());
/// # drop(guard);
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Local(Settings);

#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// `None` is the directory of the current user.
    dir: Option<PathBuf>,
    pub(super) boot: Option<Arc<str>>,
    pub(super) max_pages: Option<u32>,
}

impl Settings {
    /// Finds and checks the directory.
    pub(super) fn place(&self) -> Result<Place> {
        match &self.dir {
            Some(dir) => Place::prepare(dir),
            None => Place::of_user(),
        }
    }
}

impl Local {
    /// The engine in this directory, which is made if it is missing.
    pub fn at(dir: impl AsRef<Path>) -> Self {
        let dir = dir.as_ref();
        // Fails only without a current directory, which opening tells better.
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        Local(Settings { dir: Some(dir), boot: None, max_pages: None })
    }

    /// The engine of the current user: `$XDG_STATE_HOME/lockkeeper`, else
    /// `~/.local/state/lockkeeper`; without a home on a local disk, a private
    /// directory below `/tmp`.
    pub fn of_user() -> Self {
        Local(Settings { dir: None, boot: None, max_pages: None })
    }

    /// Pretends to run under this boot id: what a restart does, in a test.
    #[doc(hidden)]
    pub fn with_boot_id(mut self, boot: &str) -> Self {
        self.0.boot = Some(boot.into());
        self
    }

    /// Fails as on a full disk beyond this many pages, in a test.
    #[doc(hidden)]
    pub fn with_max_pages(mut self, pages: u32) -> Self {
        self.0.max_pages = Some(pages);
        self
    }
}

#[async_trait]
impl Connect for Local {
    fn label(&self) -> Arc<str> {
        match &self.0.dir {
            Some(dir) => format!("local:{}", dir.display()).into(),
            None => "local:".into(),
        }
    }

    async fn open(&self, seat: Seat) -> Result<Arc<dyn Engine>> {
        let engine = LocalEngine::open(self.0.clone(), seat).await?;
        Ok(Arc::new(engine))
    }
}
