//! Every promise, shown.

mod driver;
mod memory;
mod meta;

lockkeeper_testkit::conformance! { memory_engine: lockkeeper_testkit::start::memory }
lockkeeper_testkit::conformance! { redis: lockkeeper_testkit::start::redis }
