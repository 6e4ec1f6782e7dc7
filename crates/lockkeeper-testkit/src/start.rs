//! Starts engines for tests: one function per engine, each returning a
//! [`Stage`] that ends what it started.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stage::Stage;

/// An in-process engine that nobody else in the process uses.
pub async fn memory() -> Stage {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    Stage::new(format!("memory:stage-{number}"), ()).await
}

/// The embedded engine in a directory of its own.
pub async fn local() -> Stage {
    let temp = tempfile::tempdir().expect("a directory for the engine");
    Stage::new(format!("local:{}", temp.path().display()), temp).await
}
