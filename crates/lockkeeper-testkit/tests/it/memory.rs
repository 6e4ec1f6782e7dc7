//! What is shown on the in-process engine alone: simulated time, stopped and
//! forked processes, histories under faults.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::layer::faults::{Fault, Faults, Gate, Method};
use lockkeeper::{Cause, Clock, Keeper, LockOptions, Memory, Released, State};
use lockkeeper_testkit::child::Worker;
use lockkeeper_testkit::history::{Recorder, Register};

/// A keeper whose driver runs on this very runtime, on a paused clock.
async fn simulated() -> (Keeper, Faults) {
    let faults = Faults::around(Memory::private());
    let keeper = Keeper::on_this_runtime(faults.clone(), Clock::tokio()).await.unwrap();
    (keeper, faults)
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_keep_alive_misses_nothing() {
    let (keeper, faults) = simulated().await;
    let start = tokio::time::Instant::now();
    let renewals = Arc::new(Mutex::new(vec![start]));
    let seen = renewals.clone();
    faults.plan(move |call| {
        if call.method == Method::Renew {
            seen.lock().unwrap().push(tokio::time::Instant::now());
        }
        None
    });
    let lease = Duration::from_secs(30);
    let mutex = keeper.mutex("hour").with_options(LockOptions::default().with_lease(lease));
    let guard = mutex.lock().await.unwrap();
    let (mut least, mut looks) = (lease, 0_u32);
    while start.elapsed() < Duration::from_secs(3600) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(guard.state(), State::Held, "after {:?}", start.elapsed());
        least = least.min(guard.valid_for());
        looks += 1;
    }
    assert!(looks >= 3599);
    // One every third of the lease and the timer's millisecond, or in the
    // keeper's rhythm before it: no drift.
    let renewals = renewals.lock().unwrap().clone();
    for pair in renewals.windows(2) {
        let gap = pair[1] - pair[0];
        let third = lease / 3;
        let early = Duration::from_millis(600);
        let range = third - early..=third + Duration::from_millis(5);
        assert!(range.contains(&gap), "a gap of {gap:?}");
    }
    assert!((359..=375).contains(&(renewals.len() - 1)), "{} renewals", renewals.len() - 1);
    // Renewed at a third, so two thirds minus the margin are left at worst.
    assert!(least >= lease * 2 / 3 - Duration::from_millis(400), "only {least:?} were left");
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

#[tokio::test(start_paused = true)]
async fn a_silent_engine_is_a_risk_at_half_the_lease_and_a_loss_before_its_end() {
    let (keeper, faults) = simulated().await;
    let lease = Duration::from_secs(30);
    let mutex = keeper.mutex("silent").with_options(LockOptions::default().with_lease(lease));
    let guard = mutex.lock().await.unwrap();
    let granted = tokio::time::Instant::now();
    let gate = Gate::closed();
    let stall = gate.clone();
    faults.plan(move |_| Some(Fault::StallBefore(stall.clone())));
    assert_eq!(guard.at_risk().await, State::AtRisk);
    let risk = granted.elapsed();
    assert!(risk >= lease / 2 - Duration::from_millis(400) && risk <= lease / 2, "{risk:?}");
    assert!(guard.is_held());
    assert_eq!(guard.lost().await, Cause::Expired);
    let loss = granted.elapsed();
    let margin = lease / 100 + Duration::from_millis(2);
    assert!(
        loss >= lease - margin && loss < lease - margin + Duration::from_millis(50),
        "{loss:?}"
    );
    gate.open();
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_not_watched_is_lost_by_the_clock_alone() {
    let (keeper, faults) = simulated().await;
    let mutex = keeper.mutex("sleep");
    let guard = mutex.lock().await.unwrap();
    faults.plan(|_| Some(Fault::Fail));
    // The machine sleeps: time passes and no timer of ours runs.
    tokio::time::advance(Duration::from_secs(31)).await;
    assert!(!guard.is_held(), "the first look after the sleep says held");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_guards_share_renewals() {
    let (keeper, faults) = simulated().await;
    let mut guards = Vec::new();
    for number in 0..1000 {
        guards.push(keeper.mutex(format!("many/{number}")).lock().await.unwrap());
    }
    let before = faults.calls();
    tokio::time::sleep(Duration::from_secs(300)).await;
    let calls = faults.calls() - before;
    assert!(guards.iter().all(|guard| guard.state() == State::Held));
    // Thirty rounds of two batches of up to 512.
    assert!(calls <= 31 * 2, "{calls} renewals for 1000 guards in 300 s");
}

#[tokio::test(start_paused = true)]
async fn the_earliest_deadline_is_renewed_first() {
    let (keeper, faults) = simulated().await;
    let mut guards = Vec::new();
    for number in 0..1500 {
        guards.push(keeper.mutex(format!("edf/{number}")).lock().await.unwrap());
    }
    let short = LockOptions::default().with_lease(Duration::from_secs(14));
    let urgent = keeper.mutex("urgent").with_options(short).lock().await.unwrap();
    // An outage makes everything due at once; then each call takes a second,
    // and there are three batches: only an order by urgency saves the lease
    // that ends after fourteen.
    faults.plan(|_| Some(Fault::Fail));
    tokio::time::sleep(Duration::from_millis(10_500)).await;
    faults.plan(move |call| {
        let gate = Gate::closed();
        let open = gate.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(1000)).await;
            open.open();
        });
        (call.method == Method::Renew).then_some(Fault::StallAfter(gate))
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(urgent.is_held(), "{:?}", urgent.state());
    assert!(guards.iter().all(|guard| guard.is_held()));
}

/// The worker binary of the kit.
const WORKER: &str = env!("CARGO_BIN_EXE_lk-worker");

#[test]
fn the_first_look_of_a_process_that_was_stopped_says_lost() {
    let mut worker = Worker::start(WORKER, "memory:");
    worker.lock("stopped", 600);
    assert_eq!(worker.ask("state"), "held");
    worker.send("watch");
    assert_eq!(worker.line(Duration::from_secs(5)), "watching");
    worker.stop();
    std::thread::sleep(Duration::from_millis(1500));
    worker.go_on();
    let look = worker.line(Duration::from_secs(5));
    assert!(look.ends_with("held false"), "{look}");
    assert_eq!(worker.ask("state"), "lost expired");
    assert_eq!(worker.ask("release"), "AlreadyLost(Expired)");
}

#[test]
fn a_short_stop_loses_nothing() {
    let mut worker = Worker::start(WORKER, "memory:");
    worker.lock("stopped", 20_000);
    worker.send("watch");
    assert_eq!(worker.line(Duration::from_secs(5)), "watching");
    worker.stop();
    std::thread::sleep(Duration::from_millis(900));
    worker.go_on();
    let look = worker.line(Duration::from_secs(5));
    assert!(look.ends_with("held true"), "{look}");
    assert_eq!(worker.ask("release"), "Released");
}

#[test]
fn a_forked_child_holds_nothing_and_releases_nothing() {
    let mut worker = Worker::start(WORKER, "memory:");
    worker.lock("forked", 20_000);
    assert_eq!(worker.ask("fork"), "child said 0, parent held");
    assert_eq!(worker.ask("release"), "Released");
}

/// Many tasks of several keepers, some of which fall silent now and then: a
/// fenced register loses no update, and no two checked sections overlap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_under_faults_is_sound() {
    let seed = lockkeeper_testkit::seed();
    let memory = Memory::private();
    let (recorder, register) = (Recorder::new(), Arc::new(Register::default()));
    let rejected = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for number in 0..6_u64 {
        let faults = Faults::around(memory.clone());
        let keeper = Keeper::new(faults.clone()).await.unwrap();
        for task in 0..3_u64 {
            let random = fastrand::Rng::with_seed(seed ^ (number << 8) ^ task);
            let parts = (recorder.clone(), register.clone(), rejected.clone());
            tasks.push(tokio::spawn(work(keeper.clone(), faults.clone(), random, parts)));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let (value, writes) = register.totals();
    let history = recorder.history();
    println!(
        "{} sections, {writes} writes accepted, {} stale ones rejected",
        history.total(),
        rejected.load(Ordering::Relaxed)
    );
    history.check();
    assert_eq!(value, writes, "an update was lost");
    assert!(writes > 100, "only {writes} writes");
    let bystander = Keeper::new(memory).await.unwrap();
    let gone = async || {
        let status = bystander.status("register").await.unwrap();
        status.holders.is_empty() && status.waiters.is_empty()
    };
    assert!(lockkeeper_testkit::eventually(Duration::from_secs(5), gone).await);
}

/// Adds one to the register under the lock, with faults of its own making.
async fn work(
    keeper: Keeper,
    faults: Faults,
    mut random: fastrand::Rng,
    (recorder, register, rejected): (Recorder, Arc<Register>, Arc<AtomicU64>),
) {
    let lease = Duration::from_millis(150);
    let options = LockOptions::default().with_lease(lease).with_wait(Duration::from_secs(30));
    let mutex = keeper.mutex("register").with_options(options);
    for _ in 0..25 {
        let arrival = recorder.now();
        let Ok(guard) = mutex.lock().await else { continue };
        let entry = recorder.enter("register", arrival, guard.token());
        let silent = random.u8(..) < 12;
        if silent {
            faults.plan(|_| Some(Fault::Fail));
            faults.hear(|_| false);
        }
        let value = register.read(guard.token());
        // A fault may strike between the read and the write.
        let pause = if silent { 250 } else { random.u64(..3) };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if guard.check().is_ok() {
            recorder.leave(entry);
        }
        // Written without a check, as a careless program would: the register
        // itself must refuse what is stale.
        let accepted = value.is_some_and(|value| register.write(guard.token(), value + 1));
        if !accepted {
            rejected.fetch_add(1, Ordering::Relaxed);
        }
        faults.heal();
        drop(guard);
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_was_forgotten_never_goes_back_to_low_tokens() {
    let (keeper, _faults) = simulated().await;
    let mut last = lockkeeper::Token::ZERO;
    for _ in 0..5 {
        last = keeper.mutex("plain").lock().await.unwrap().token();
        assert_eq!(keeper.rwlock("queued").write().await.unwrap().token(), last);
    }
    for number in 0..1100 {
        drop(keeper.mutex(format!("old/{number}")).lock().await.unwrap());
    }
    // A day later all of them are idle; new names make the engine forget.
    tokio::time::sleep(Duration::from_secs(25 * 3600)).await;
    for number in 0..1100 {
        drop(keeper.mutex(format!("new/{number}")).lock().await.unwrap());
    }
    assert_eq!(keeper.status("plain").await.unwrap().kind, None, "not forgotten");
    assert!(keeper.mutex("plain").lock().await.unwrap().token() > last);
    // Also for a writer that is served from the queue of a reader.
    let read = keeper.rwlock("queued").read().await.unwrap();
    let lock = keeper.rwlock("queued");
    let writer = tokio::spawn(async move { lock.write().await });
    tokio::time::sleep(Duration::from_millis(10)).await;
    drop(read);
    assert!(writer.await.unwrap().unwrap().token() > last);
}
