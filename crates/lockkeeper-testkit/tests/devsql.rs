lockkeeper_testkit::conformance! { mariadb: lockkeeper_testkit::start::mariadb }
lockkeeper_testkit::conformance! { postgres: lockkeeper_testkit::start::postgres }
