//! That the rows do what the model says.

use lockkeeper_testkit::parity;
use lockkeeper_testkit::sql::{Flavour, SqlServer};

async fn the_rows_do_what_the_model_says(flavour: Flavour) {
    let server = SqlServer::start(flavour);
    let url = server.url(&server.database());
    parity::compare(&format!("{url}?connections=1"), 32).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_of_mariadb_do_what_the_model_says() {
    the_rows_do_what_the_model_says(Flavour::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_of_postgres_do_what_the_model_says() {
    the_rows_do_what_the_model_says(Flavour::Postgres).await;
}
