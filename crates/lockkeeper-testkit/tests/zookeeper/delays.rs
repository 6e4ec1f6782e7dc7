//! Lock-delays among people of whom nobody fails.

use std::time::Duration;

use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::zookeeper::url;
use lockkeeper_testkit::{eventually, within};

use crate::kit::{Nodes, connect, name, patient, server};

/// Somebody comes in while another is between two of its requests, at each of
/// them: the other must not take it for one who failed because the list it read
/// is older, or it would strike out the newcomer's delay and close the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_in_between_two_requests_has_not_failed() {
    // No session ends in this test.
    const REST: &str = "/?session=20s&tick=2s&command=10s";
    let server = server().await;
    let nodes = Nodes::of(&server).await;
    let (first, second) =
        (connect(&url(&[server.port()], REST)).await, connect(&url(&[server.port()], REST)).await);
    let proxy = Proxy::start(server.port()).await;
    let slow = connect(&url(&[proxy.port()], REST)).await;
    let options = patient().with_lock_delay(Duration::from_secs(60));
    let limit = Duration::from_secs(15);
    let mut points = 0;
    for point in 0..40 {
        let name = name("between");
        let lock = |keeper: &lockkeeper::Keeper| keeper.rwlock(&name).with_options(options.clone());
        let one = within(limit, "the first reader", lock(&first).read()).await.unwrap();
        proxy.hold_after(point);
        let late = lock(&slow);
        let late = tokio::spawn(async move { late.read().await });
        let reached = async || proxy.is_holding() || late.is_finished();
        assert!(eventually(limit, reached).await, "neither held up nor let in");
        let held_up = !late.is_finished();
        let two = within(limit, "the second reader", lock(&second).read()).await.unwrap();
        proxy.let_go();
        let late = within(limit, "the one held up", late).await.unwrap().unwrap();
        let data = nodes.0.get_data(&format!("/{name}")).await.unwrap().0;
        let data = String::from_utf8_lossy(&data);
        assert!(!data.contains("closed"), "at request {point} the name was closed: {data}");
        for node in nodes.claims(&format!("/{name}")).await {
            assert!(data.contains(&node), "at request {point}, {node} was struck out: {data}");
        }
        drop((one, two, late));
        nodes.deserted(&format!("/{name}"), limit).await;
        if !held_up {
            break;
        }
        points += 1;
    }
    assert!(points >= 3, "held up at {points} requests only");
}
