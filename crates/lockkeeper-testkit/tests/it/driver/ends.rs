//! Ends: of work, of keepers, of crowds.

use super::*;

#[tokio::test(start_paused = true)]
async fn work_that_is_dropped_gives_its_lock_back_though_its_scope_lives_on() {
    let pair = Pair::simulated().await;
    let kept = Arc::new(Mutex::new(None));
    let keep = kept.clone();
    let mutex = pair.waiter.mutex("n");
    let work = tokio::spawn(async move {
        let work = mutex.run(|scope| async move {
            *keep.lock().unwrap() = Some(scope);
            std::future::pending::<Result<(), String>>().await
        });
        work.await
    });
    let at_work = async || kept.lock().unwrap().is_some();
    assert!(eventually(Duration::from_secs(5), at_work).await);
    work.abort();
    let free = async || pair.holder.mutex("n").try_lock().await.unwrap().is_some();
    assert!(eventually(Duration::from_secs(5), free).await, "held by a scope without work");
    assert!(!kept.lock().unwrap().as_ref().unwrap().is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_drop_waits_for_a_withdrawn_acquisition() {
    let memory = Memory::private();
    let faults = Faults::around(memory.clone());
    let keeper = Keeper::new(faults.clone()).await.unwrap();
    let bystander = Keeper::new(memory).await.unwrap();
    let gate = stall(&faults, Method::Acquire);
    let mutex = keeper.mutex("n");
    let lock = tokio::spawn(async move { mutex.lock().await.map(drop) });
    gate.reached().await;
    lock.abort();
    let _ = lock.await;
    // The answer comes while the program is about to end.
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        gate.open();
    });
    tokio::task::spawn_blocking(move || drop(keeper)).await.unwrap();
    assert!(bystander.status("n").await.unwrap().holders.is_empty(), "left to its lease");
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_learns_that_its_keeper_closed() {
    let pair = Pair::simulated().await;
    let latch = pair.waiter.latch("l");
    let waiting = tokio::spawn(async move { latch.wait().await });
    pair.faults.answered(Method::Cell).await;
    pair.waiter.close().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// How long something takes for many claims of one keeper on one name.
async fn crowd<F, T>(name: &str, count: usize, pair: &Pair, ask: impl Fn() -> F) -> Duration
where
    F: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let start = worked();
    let tasks: Vec<_> = (0..count).map(|_| tokio::spawn(ask())).collect();
    tokio::task::yield_now().await;
    // A few beats of everyone who waits.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(tasks.iter().all(|task| !task.is_finished()), "{name}: did not wait");
    pair.tap.push(Event::Link { shard: 0, up: true });
    pair.holder.close().await.unwrap();
    for task in tasks {
        drop(task.await.unwrap().unwrap());
    }
    idle(&pair.waiter).await;
    worked() - start
}

/// How long this thread has worked: all of a simulation runs on it, and what
/// others do with the processors is not its fault.
fn worked() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_local_claims_take_no_seconds() {
    const MANY: usize = 10_000;
    let options = LockOptions::default().with_max_waiters(100_000);
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let mutex = pair.waiter.mutex("n").with_options(options.clone());
    let waiters = crowd("waiters", MANY, &pair, || {
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    let waiters = waiters.await;

    let pair = Pair::simulated().await;
    let _guard = pair.holder.rwlock("n").write().await.unwrap();
    let lock = pair.waiter.rwlock("n").with_options(options.clone());
    let readers = crowd("readers", MANY, &pair, || {
        let lock = lock.clone();
        async move { lock.read().await }
    });
    let readers = readers.await;

    let pair = Pair::simulated().await;
    let capacity = MANY as u32;
    let _all = pair.holder.semaphore("n", capacity).acquire_many(capacity).await.unwrap();
    let semaphore = pair.waiter.semaphore("n", capacity).with_options(options);
    let permits = crowd("permits", MANY, &pair, || {
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await }
    });
    let permits = permits.await;
    println!("{MANY} waiters {waiters:?}, readers {readers:?}, permits {permits:?}");
    for took in [waiters, readers, permits] {
        assert!(took < Duration::from_secs(4), "{waiters:?} {readers:?} {permits:?}");
    }
}
