//! Every promise, shown.

mod driver;
mod memory;
mod meta;
mod rules;

lockkeeper_testkit::conformance! { memory_engine: lockkeeper_testkit::start::memory }
lockkeeper_testkit::conformance! { redis: lockkeeper_testkit::start::redis }
lockkeeper_testkit::conformance! { local_engine: lockkeeper_testkit::start::local }
lockkeeper_testkit::conformance! { redis_tls: lockkeeper_testkit::start::redis_tls }
lockkeeper_testkit::conformance! { redis_sentinel: lockkeeper_testkit::start::redis_sentinel }
lockkeeper_testkit::conformance! { redis_confirm: lockkeeper_testkit::start::redis_confirm }
lockkeeper_testkit::conformance! { redis_cluster: lockkeeper_testkit::start::redis_cluster }
lockkeeper_testkit::conformance! { zookeeper: lockkeeper_testkit::start::zookeeper }
lockkeeper_testkit::conformance! { zookeeper_ensemble: lockkeeper_testkit::start::zookeeper_ensemble }
lockkeeper_testkit::conformance! { mariadb: lockkeeper_testkit::start::mariadb }
lockkeeper_testkit::conformance! { postgres: lockkeeper_testkit::start::postgres }
lockkeeper_testkit::conformance! { mariadb_session: lockkeeper_testkit::start::mariadb_session }
lockkeeper_testkit::conformance! { postgres_session: lockkeeper_testkit::start::postgres_session }
