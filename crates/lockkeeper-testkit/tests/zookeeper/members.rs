//! Members of an ensemble that die or freeze while locks are held.

use std::time::{Duration, Instant};

use lockkeeper::{Keeper, Released, State};
use lockkeeper_testkit::history::Recorder;
use lockkeeper_testkit::zookeeper::{Ensemble, Settings, url};
use lockkeeper_testkit::{eventually, within};

use crate::kit::{connect, locked, locking, patient, verified, waiters};

const REST: &str = "/?session=8s&tick=200ms";

/// A keeper of the whole ensemble, and the member that it is on.
async fn keeper_on(ensemble: &Ensemble) -> (Keeper, usize) {
    let before: Vec<usize> = sessions(ensemble);
    let keeper = connect(&url(&ensemble.ports(), REST)).await;
    let after = sessions(ensemble);
    let host = (0..3).find(|&index| after[index] > before[index]).expect("it is on one of them");
    (keeper, host)
}

fn sessions(ensemble: &Ensemble) -> Vec<usize> {
    ensemble.members.iter().map(|member| member.sessions().len()).collect()
}

/// The leader dies: the guards stay, a waiter keeps its place, tokens go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_outlive_their_leader() {
    let mut ensemble = Ensemble::start();
    let leader = ensemble.leader().expect("a leader");
    let mut guards = Vec::new();
    let mut keepers = Vec::new();
    for index in 0..4 {
        let (keeper, host) = keeper_on(&ensemble).await;
        println!("keeper {index} is on member {host}, the leader is {leader}");
        guards.push(locked(&keeper, &format!("kept-{index}")).await);
        keepers.push(keeper);
    }
    let waiting = locking(keepers[1].clone(), "kept-0");
    waiters(&keepers[0], "kept-0", 1).await;
    ensemble.members[leader].kill();
    let start = Instant::now();
    for guard in &guards {
        assert!(verified(guard, Duration::from_secs(7)).await, "{:?}", guard.state());
    }
    println!("all verified {:?} after the leader died", start.elapsed());
    // Looked at anew: every connection that was lost is back.
    let held = async || guards.iter().all(|guard| guard.state() == State::Held);
    assert!(eventually(Duration::from_secs(4), held).await);
    assert!(!waiting.is_finished());
    for (index, keeper) in keepers.iter().rev().enumerate() {
        assert!(keeper.mutex(format!("kept-{index}")).try_lock().await.unwrap().is_none());
    }
    let first = guards.remove(0);
    let token = first.token();
    assert_eq!(first.release().await.unwrap(), Released::Released);
    let (next, _) = within(Duration::from_secs(3), "the waiter", waiting).await.unwrap();
    assert!(next.token() > token);
    drop(locked(&keepers[3], "new").await);
    for guard in guards {
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

/// The member that a keeper is connected to dies, and later another freezes:
/// the keeper goes to the next one with its session and its locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_leaves_a_member_that_dies_or_freezes() {
    // A leader that freezes is replaced after two seconds.
    let mut ensemble = Ensemble::with(&Settings::default().line("syncLimit=10"));
    let (keeper, host) = keeper_on(&ensemble).await;
    let session = ensemble.members[host].sessions().pop().expect("its session");
    let guard = locked(&keeper, "kept").await;
    ensemble.members[host].kill();
    let start = Instant::now();
    assert!(verified(&guard, Duration::from_secs(7)).await, "{:?}", guard.state());
    println!("verified {:?} after the member died", start.elapsed());
    let second = ensemble.host_of(&session).expect("the same session on another member");
    assert_ne!(second, host);
    ensemble.members[host].restart();
    ensemble.members[second].freeze();
    let start = Instant::now();
    let at_risk = async || guard.state() == State::AtRisk;
    assert!(eventually(Duration::from_secs(6), at_risk).await, "{:?}", guard.state());
    assert!(verified(&guard, Duration::from_secs(8)).await, "{:?}", guard.state());
    println!("verified {:?} after the member froze", start.elapsed());
    // The election of another leader may still cut the connection once more.
    let held = async || guard.state() == State::Held;
    assert!(eventually(Duration::from_secs(4), held).await, "{:?}", guard.state());
    let other = connect(&url(&[ensemble.members[host].port()], REST)).await;
    assert!(other.mutex("kept").try_lock().await.unwrap().is_none());
    ensemble.members[second].thaw();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    drop(locked(&other, "kept").await);
}

/// Leaders freeze for a moment and die while many lock: nobody overlaps, and
/// everybody is served again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_with_failing_leaders_is_sound() {
    let mut random = fastrand::Rng::with_seed(lockkeeper_testkit::seed());
    let mut ensemble = Ensemble::with(&Settings::default().line("syncLimit=10"));
    let recorder = Recorder::new();
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut workers = Vec::new();
    for worker in 0..6 {
        // The shortest session: the likeliest to be lost.
        let keeper = connect(&ensemble.url()).await;
        let (recorder, over) = (recorder.clone(), over.clone());
        workers.push(tokio::spawn(async move {
            let name = format!("busy-{}", worker % 2);
            let mutex =
                keeper.mutex(&name).with_options(patient().with_wait(Duration::from_secs(40)));
            let mut grants = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let arrival = recorder.now();
                let guard = match mutex.lock().await {
                    Ok(guard) => guard,
                    // Nobody answered for as long as a call waits.
                    Err(error) if error.is_silence() => continue,
                    Err(error) => panic!("{error}"),
                };
                let mut entry = recorder.enter(&name, arrival, guard.token());
                // Inside for a while, as long as it is known to be held.
                for _ in 0..5 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    let now = recorder.now();
                    if !guard.is_held() {
                        break;
                    }
                    entry.left = now;
                }
                recorder.put(entry);
                drop(guard);
                grants += 1;
            }
            grants
        }));
    }
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(random.u64(300..800))).await;
        let Some(leader) = ensemble.leader() else { continue };
        if round == 3 {
            ensemble.members[leader].kill();
        } else {
            ensemble.members[leader].freeze();
            tokio::time::sleep(Duration::from_millis(random.u64(200..2600))).await;
            ensemble.members[leader].thaw();
        }
    }
    // Somebody is served after the last failure.
    let served = recorder.entries().len();
    assert!(
        eventually(Duration::from_secs(20), async || recorder.entries().len() > served + 20).await
    );
    over.store(true, std::sync::atomic::Ordering::Relaxed);
    for worker in workers {
        let grants: u32 = within(Duration::from_secs(45), "a worker", worker).await.unwrap();
        assert!(grants > 5, "only {grants} grants");
    }
    println!("{} stays", recorder.entries().len());
    recorder.history().check();
}
