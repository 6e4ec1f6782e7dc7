//! Every promise, shown.

mod memory;
mod meta;

lockkeeper_testkit::conformance! { memory_engine: lockkeeper_testkit::start::memory }
