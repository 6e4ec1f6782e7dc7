#![forbid(unsafe_code)]

mod cause;
mod clock;
pub mod engine;
mod error;
pub mod model;
mod name;
mod options;
mod token;
pub use cause::Cause;
pub use clock::{Clock, Moment};
pub use engine::memory::Memory;
pub use error::{Error, ErrorKind, Result};
pub use name::LockName;
pub use options::LockOptions;
pub use token::{ClaimId, KeeperId, Token};
