//! Long histories of many processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_testkit::child::Worker;
use lockkeeper_testkit::history::History;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::zookeeper::url;

use crate::kit::{Nodes, WORKER, name, seed, server};

const PROCESSES: u64 = 8;
const EACH: u32 = 250;
const REST: &str = "/?session=10s&tick=200ms";

/// Lets all processes hammer the names, and puts their histories together.
async fn hammer(url: &str, names: &[String], seed: u64) -> History {
    let mut threads = Vec::new();
    for process in 0..PROCESSES {
        let (url, names) = (url.to_owned(), names.join(" "));
        threads.push(tokio::task::spawn_blocking(move || {
            let mut worker = Worker::start(WORKER, &url);
            worker.send(&format!("hammer {EACH} {} {names}", seed + process));
            worker.entries(Duration::from_secs(150))
        }));
    }
    let mut entries = Vec::new();
    for thread in threads {
        entries.extend(thread.await.expect("a worker"));
    }
    History::new(entries)
}

/// Undisturbed, the order of arrival is kept to within the time that requests
/// of busy processes take to be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calm_history_is_sound_and_in_order() {
    let server = server().await;
    let names: Vec<String> = (0..3).map(|_| name("calm")).collect();
    let history = hammer(&url(&[server.port()], REST), &names, seed()).await;
    assert_eq!(history.total(), PROCESSES as usize * EACH as usize);
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
    let seed = seed();
    let server = server().await;
    let names: Vec<String> = (0..3).map(|_| name("cut")).collect();
    let proxy = Arc::new(Proxy::start(server.port()).await);
    let over = Arc::new(AtomicBool::new(false));
    let cutting = tokio::spawn({
        let (proxy, over) = (proxy.clone(), over.clone());
        async move {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut cuts = 0;
            while !over.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(random.u64(100..900))).await;
                proxy.cut();
                cuts += 1;
            }
            cuts
        }
    });
    let history = hammer(&url(&[proxy.port()], REST), &names, seed).await;
    over.store(true, Ordering::Relaxed);
    println!("{} stays with {} cuts", history.total(), cutting.await.unwrap());
    history.check();
    assert!(history.total() as u64 > PROCESSES * u64::from(EACH) * 9 / 10);
    let nodes = Nodes::of(&server).await;
    for name in names {
        nodes.deserted(&format!("/{name}"), Duration::from_secs(3)).await;
    }
}
