//! Distributed locking that is honest and hard to misuse.
#![forbid(unsafe_code)]

pub mod blocking;
mod cause;
mod clock;
mod driver;
pub mod engine;
mod error;
mod fence;
mod guard;
mod hold;
mod keeper;
mod latch;
pub mod layer;
pub mod model;
mod multi;
mod mutex;
mod name;
mod options;
mod reentry;
mod request;
mod rwlock;
mod semaphore;
mod token;
mod url;

pub use cause::Cause;
pub use clock::{Clock, Moment};
pub use driver::link::Waiting;
pub use engine::memory::Memory;
#[cfg(feature = "redis")]
pub use engine::redis::Redis;
pub use engine::{Connect, Engine};
pub use error::{Error, ErrorKind, Result};
pub use fence::Fence;
pub use guard::{Guard, Permits, ReadGuard, RunError, Scope, WriteGuard};
pub use hold::{Hold, Released, State};
pub use keeper::Keeper;
pub use latch::{Latch, Opened};
pub use multi::{Multi, MultiGuard};
pub use mutex::Mutex;
pub use name::LockName;
pub use options::LockOptions;
pub use reentry::Reentry;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use token::{ClaimId, KeeperId, Token};
pub use url::redact;
