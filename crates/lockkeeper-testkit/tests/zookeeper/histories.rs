//! Long histories of many processes.

use std::time::Duration;

use lockkeeper_testkit::hammer::Hammer;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::seed;
use lockkeeper_testkit::zookeeper::url;

use crate::kit::{Nodes, WORKER, name, server};

const REST: &str = "/?session=10s&tick=200ms";

fn hammer(names: &[String]) -> Hammer {
    Hammer { each: 250, limit: Duration::from_secs(150), ..Hammer::new(WORKER, names) }
}

/// Undisturbed, the order of arrival is kept to within the time that requests
/// of busy processes take to be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calm_history_is_sound_and_in_order() {
    let server = server().await;
    let names: Vec<String> = (0..3).map(|_| name("calm")).collect();
    let hammer = hammer(&names);
    let history = hammer.on(&url(&[server.port()], REST), seed()).await;
    assert_eq!(history.total(), hammer.total());
    history.check();
    assert_eq!(history.out_of_order(Duration::from_millis(500)), None);
    let nodes = Nodes::of(&server).await;
    for name in names {
        nodes.deserted(&format!("/{name}"), Duration::from_secs(2)).await;
    }
}

/// The same with every connection cut again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_with_cut_connections_is_sound() {
    let server = server().await;
    let names: Vec<String> = (0..3).map(|_| name("cut")).collect();
    let proxy = Proxy::start(server.port()).await;
    let (hammer, url) = (hammer(&names), url(&[proxy.port()], REST));
    let (history, cuts) = hammer.cut_off(&url, seed(), &proxy, 100..900).await;
    println!("{} stays with {cuts} cuts", history.total());
    history.check();
    assert!(history.total() > hammer.total() * 9 / 10);
    let nodes = Nodes::of(&server).await;
    for name in names {
        nodes.deserted(&format!("/{name}"), Duration::from_secs(3)).await;
    }
}
