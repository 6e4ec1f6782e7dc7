//! Cancelled at every request that goes over the wire: nothing is left behind,
//! although the session lives on.

use std::time::{Duration, Instant};

use lockkeeper::{Guard, Keeper};
use lockkeeper_testkit::proxy::{Proxy, Weather};
use lockkeeper_testkit::zookeeper::{ZooKeeper, url};
use lockkeeper_testkit::{eventually, within};

use crate::kit::{Nodes, locked, name, patient, server};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scene {
    Free,
    Waiting,
    Reader,
    StepDown,
    Permit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// The request goes on its way when the caller has gone.
    Arrives,
    /// So late that the engine has given up on its answer.
    ArrivesLate,
    /// The connection breaks instead.
    Breaks,
    /// The request arrives; the connection breaks before the answer.
    LosesReply,
}

/// Connects, also while the machine is too busy to answer as soon as these
/// keepers want it.
async fn connected(url: &str) -> Keeper {
    let connecting = async {
        loop {
            match Keeper::connect(url).await {
                Err(error) if error.is_silence() => {}
                connected => return connected.expect("a keeper"),
            }
        }
    };
    within(Duration::from_secs(20), "connecting", connecting).await
}

/// Cancels a scene when its `point`-th request is about to be sent. False if
/// it has fewer requests than that.
async fn cancelled_at(
    server: &ZooKeeper,
    nodes: &Nodes,
    scene: Scene,
    then: Then,
    point: u32,
) -> bool {
    let proxy = Proxy::start(server.port()).await;
    let rest = "/?session=20s&tick=200ms&command=400ms";
    let keeper = connected(&url(&[proxy.port()], rest)).await;
    let name = name("cancelled");
    let path = format!("/{name}");
    let held: Option<(Guard, Keeper)> = match scene {
        Scene::Waiting => {
            let other = connected(&url(&[server.port()], rest)).await;
            Some((locked(&other, &name).await, other))
        }
        _ => None,
    };
    proxy.hold_after(point);
    let work = tokio::spawn(play(keeper.clone(), scene, name.clone()));
    let start = Instant::now();
    // Heartbeats count too, so a scene that waits comes to every point.
    while !proxy.is_holding() && !work.is_finished() && start.elapsed() < Duration::from_secs(3) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let reached = proxy.is_holding();
    work.abort();
    let _ = work.await;
    match then {
        Then::Arrives => {}
        Then::ArrivesLate => tokio::time::sleep(Duration::from_millis(900)).await,
        Then::Breaks => proxy.cut(),
        Then::LosesReply => proxy.arm(Weather::LoseReply, ""),
    }
    proxy.let_go();
    drop(held);
    nodes.deserted(&path, Duration::from_secs(10)).await;
    // Gone for good: nothing that was on its way makes a node again.
    let free = connected(&url(&[server.port()], rest)).await;
    let mutex_like = async || match scene {
        Scene::Free | Scene::Waiting => free.mutex(&name).try_lock().await.unwrap().is_some(),
        Scene::Reader | Scene::StepDown => free.rwlock(&name).try_write().await.unwrap().is_some(),
        Scene::Permit => free.semaphore(&name, 2).try_acquire_many(2).await.unwrap().is_some(),
    };
    assert!(eventually(Duration::from_secs(3), mutex_like).await, "{scene:?} {then:?} {point}");
    // The keeper itself is as good as before.
    let after = crate::kit::name("after");
    drop(within(Duration::from_secs(10), "the keeper", locked(&keeper, &after)).await);
    reached
}

async fn play(keeper: Keeper, scene: Scene, name: String) {
    match scene {
        Scene::Free | Scene::Waiting => {
            drop(keeper.mutex(&name).with_options(patient()).lock().await);
        }
        Scene::Reader => drop(keeper.rwlock(&name).with_options(patient()).read().await),
        Scene::StepDown => {
            if let Ok(write) = keeper.rwlock(&name).with_options(patient()).write().await {
                drop(write.downgrade().await);
            }
        }
        Scene::Permit => {
            drop(keeper.semaphore(&name, 2).with_options(patient()).acquire().await);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_at_every_request_leaves_no_node() {
    let server = server().await;
    let nodes = Nodes::of(&server).await;
    let mut points = Vec::new();
    for scene in [Scene::Free, Scene::Waiting, Scene::Reader, Scene::StepDown, Scene::Permit] {
        for then in [Then::Arrives, Then::ArrivesLate, Then::Breaks, Then::LosesReply] {
            points.extend((0..8).map(|point| (scene, then, point)));
        }
    }
    let mut reached = 0;
    for chunk in points.chunks(20) {
        let runs = chunk
            .iter()
            .map(|&(scene, then, point)| cancelled_at(&server, &nodes, scene, then, point));
        let all = futures_util::future::join_all(runs).await;
        reached += all.into_iter().filter(|reached| *reached).count();
    }
    println!("{reached} of {} points were reached", points.len());
    assert!(reached > points.len() / 3, "only {reached} points were reached");
}
