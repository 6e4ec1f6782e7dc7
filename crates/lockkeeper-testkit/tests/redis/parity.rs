//! That the scripts do what the model says.

use lockkeeper_testkit::parity;
use lockkeeper_testkit::server::RedisServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_do_what_the_model_says() {
    let server = RedisServer::start();
    parity::compare(&server.url(), 96).await;
}
