//! People and machines gone: killed, stopped, rebooted, out of space.

use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::{Cause, Clock, ErrorKind, Keeper, Local, LockOptions, Released};
use rustix::process::Signal;

use crate::kit::{PATIENCE, keeper, until, waiters, worker};

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[tokio::test]
async fn a_killed_holder_is_followed_within_a_tenth_of_a_second() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    let mut took = Vec::new();
    for _ in 0..10 {
        let mut holder = worker(temp.path());
        let mut next = worker(temp.path());
        let old = holder.lock("m", 30_000);
        next.want("m", 30_000);
        waiters(&here, "m", 1).await;
        let killed = Clock::system().now();
        holder.kill();
        let (new, at) = next.granted();
        assert!(new > old);
        took.push(at.since(killed));
        next.finish();
    }
    took.sort();
    println!("taken over after {took:?}");
    assert!(took[9] < millis(100), "{took:?}");
}

#[tokio::test]
async fn a_waiter_that_became_the_holder_is_watched_too() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    for _ in 0..3 {
        let mut queue: Vec<_> = (0..3).map(|_| worker(temp.path())).collect();
        for (place, worker) in queue.iter_mut().enumerate() {
            worker.want("m", 30_000);
            if place == 0 {
                worker.granted();
            } else {
                waiters(&here, "m", place).await;
            }
        }
        // Only the second is told of this; the third was behind both.
        assert_eq!(queue[0].ask("release"), "Released");
        queue[1].granted();
        let killed = Clock::system().now();
        queue.remove(1).kill();
        let (_, at) = queue[1].granted();
        let took = at.since(killed);
        assert!(took < millis(100), "{took:?}");
    }
}

#[tokio::test]
async fn a_stopped_holder_is_replaced_after_its_lease_and_knows_it_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    let mut holder = worker(temp.path());
    let old = holder.lock("m", 500);
    let start = Instant::now();
    holder.stop();
    let options = LockOptions::default().with_wait(PATIENCE);
    let guard = here.mutex("m").with_options(options).lock().await.unwrap();
    assert!(start.elapsed() > millis(300), "before the lease was over: {:?}", start.elapsed());
    assert!(start.elapsed() < millis(3000), "{:?}", start.elapsed());
    assert!(guard.token() > old);
    holder.go_on();
    assert_eq!(holder.ask("state"), "lost expired");
    let released = holder.ask("release");
    assert!(released.starts_with("AlreadyLost"), "{released}");
    guard.verify().await.unwrap();
}

#[tokio::test]
async fn a_waiter_killed_in_the_queue_delays_nobody() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    let guard = here.mutex("m").lock().await.unwrap();
    let mut dead = worker(temp.path());
    let mut next = worker(temp.path());
    dead.want("m", 30_000);
    waiters(&here, "m", 1).await;
    next.want("m", 30_000);
    waiters(&here, "m", 2).await;
    dead.kill();
    let released = Clock::system().now();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let (_, at) = next.granted();
    let took = at.since(released);
    assert!(took < millis(100), "{took:?}");
}

#[tokio::test]
async fn a_waiter_stopped_in_the_queue_delays_it_a_little() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    let guard = here.mutex("m").lock().await.unwrap();
    let mut stopped = worker(temp.path());
    stopped.want("m", 30_000);
    waiters(&here, "m", 1).await;
    stopped.stop();
    let mut next = worker(temp.path());
    next.want("m", 30_000);
    waiters(&here, "m", 2).await;
    let start = Instant::now();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    next.granted();
    assert!(start.elapsed() < millis(4000), "{:?}", start.elapsed());
    stopped.go_on();
    assert_eq!(next.ask("release"), "Released");
    stopped.granted();
}

#[tokio::test]
async fn lock_delay_follows_a_killed_holder_and_no_release() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    let mut holder = worker(temp.path());
    holder.send("lock m 30000 400");
    holder.granted();
    assert_eq!(holder.ask("release"), "Released");
    assert!(here.mutex("m").try_lock().await.unwrap().is_some(), "a release is no failure");
    until("given back", async || here.status("m").await.unwrap().holders.is_empty()).await;
    holder.send("lock m 30000 400");
    holder.granted();
    let start = Instant::now();
    holder.kill();
    let _guard = here.mutex("m").lock().await.unwrap();
    assert!(start.elapsed() >= millis(400), "{:?}", start.elapsed());
    assert!(start.elapsed() < millis(2000), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_fork_does_not_keep_the_locks_of_a_killed_parent() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    let mut holder = worker(temp.path());
    holder.lock("m", 30_000);
    let child: i32 = holder.ask("leave").parse().unwrap();
    assert!(here.mutex("m").try_lock().await.unwrap().is_none());
    holder.kill();
    let start = Instant::now();
    let free = async || here.mutex("m").try_lock().await.unwrap().is_some();
    until("free", free).await;
    let took = start.elapsed();
    let child = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(child, Signal::KILL).expect("the fork was still there");
    assert!(took < millis(1000), "{took:?}");
}

#[tokio::test]
async fn a_reboot_ends_every_lock_and_no_token_comes_back() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, rebooted) = (temp.path().join("one"), temp.path().join("two"));
    let before = Keeper::new(Local::at(&dir).with_boot_id("one")).await.unwrap();
    let guard = before.mutex("m").lock().await.unwrap();
    let waiting = before.mutex("m");
    let waiter = tokio::spawn(async move { waiting.lock().await });
    assert!(before.latch("l").set(3).await.unwrap());
    before.latch("l").count_down("a").await.unwrap();
    before.fence("f").check(guard.token()).await.unwrap();
    before.semaphore("s", 7).acquire().await.unwrap().release().await.map(drop).unwrap();

    // The files outlive it, and no lock on them does.
    std::fs::create_dir(&rebooted).unwrap();
    for file in std::fs::read_dir(&dir).unwrap().flatten() {
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), rebooted.join(file.file_name())).unwrap();
        }
    }
    let after = Keeper::new(Local::at(&rebooted).with_boot_id("two")).await.unwrap();
    let status = after.status("m").await.unwrap();
    assert!(status.holders.is_empty() && status.waiters.is_empty(), "{status:?}");
    let new = after.mutex("m").lock().await.unwrap();
    assert!(
        new.token().get() >= guard.token().get() + (1 << 20) - 1,
        "{} after {}",
        new.token(),
        guard.token()
    );
    // Numbers that are no claims outlive it.
    assert_eq!(after.latch("l").remaining().await.unwrap(), Some(2));
    assert_eq!(after.latch("l").count_down("a").await.unwrap(), Some(2));
    assert_eq!(after.fence("f").highest().await.unwrap(), Some(guard.token()));
    assert_eq!(after.semaphore("s", 7).stored_capacity().await.unwrap(), Some(7));
    waiter.abort();
}

#[tokio::test]
async fn a_container_with_a_boot_id_of_its_own_ends_nobodys_locks() {
    let temp = tempfile::tempdir().unwrap();
    let host = Keeper::new(Local::at(temp.path()).with_boot_id("host")).await.unwrap();
    let guard = host.mutex("m").lock().await.unwrap();
    let inside = Keeper::new(Local::at(temp.path()).with_boot_id("container")).await.unwrap();
    assert!(inside.mutex("m").try_lock().await.unwrap().is_none(), "two hold it");
    guard.verify().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let guard = inside.mutex("m").lock().await.unwrap();
    let again = Keeper::new(Local::at(temp.path()).with_boot_id("host")).await.unwrap();
    assert!(again.mutex("m").try_lock().await.unwrap().is_none(), "two hold it");
    guard.verify().await.unwrap();
}

#[tokio::test]
async fn a_log_deleted_under_a_holder_is_said() {
    for deleted in ["lk.db-wal", "lk.db-shm"] {
        let temp = tempfile::tempdir().unwrap();
        let here = keeper(temp.path()).await;
        let options = LockOptions::default().with_lease(millis(600));
        let guard = here.mutex("held").with_options(options).lock().await.unwrap();
        std::fs::remove_file(temp.path().join(deleted)).unwrap();
        let error = here.status("held").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        // Whoever connects now may find nothing of it: it must not be renewed for ever.
        let cause = tokio::time::timeout(PATIENCE, guard.lost()).await.unwrap();
        assert_eq!(cause, Cause::Expired);
    }
}

#[tokio::test]
async fn a_full_disk_is_said_and_nothing_is_half_done() {
    let temp = tempfile::tempdir().unwrap();
    let small = Keeper::new(Local::at(temp.path()).with_max_pages(30)).await.unwrap();
    let held = small.mutex("held").lock().await.unwrap();
    let options = LockOptions::default().with_wait(millis(200)).with_note("x".repeat(1000));
    let mut guards = Vec::new();
    let error = loop {
        let name = format!("{}-{}", "n".repeat(400), guards.len());
        match small.mutex(name).with_options(options.clone()).lock().await {
            Ok(guard) => guards.push(guard),
            Err(error) => break error,
        }
        assert!(guards.len() < 1000, "the disk is never full");
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("disk is full"), "{error}");
    held.verify().await.unwrap();
    let listed = small.list("n", None, 1000).await.unwrap().entries;
    assert_eq!(listed.len(), guards.len(), "half a lock is listed");
    assert!(listed.iter().all(|entry| entry.holders.len() == 1), "{listed:?}");
    let freed = guards.pop().unwrap();
    assert_eq!(freed.release().await.unwrap(), Released::Released);
    drop(guards);
    until("it works again", async || small.mutex("again").try_lock().await.is_ok()).await;
}

#[tokio::test]
async fn a_full_file_system_is_said_and_nothing_is_half_done() {
    let temp = tempfile::tempdir().unwrap();
    if !mount_tiny(temp.path()) {
        eprintln!("skipped: only root can mount a tiny file system");
        return;
    }
    let small = keeper(&temp.path().join("locks")).await;
    let held = small.mutex("held").lock().await.unwrap();
    let filler = temp.path().join("filler");
    fill(&filler);
    let options = LockOptions::default().with_wait(millis(300)).with_note("x".repeat(1000));
    let mut guards = Vec::new();
    let error = loop {
        let name = format!("{}-{}", "n".repeat(400), guards.len());
        match small.mutex(name).with_options(options.clone()).lock().await {
            Ok(guard) => guards.push(guard),
            Err(error) => break error,
        }
        fill(&filler);
        assert!(guards.len() < 10_000, "the disk is never full");
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("disk is full"), "{error}");
    assert!(held.is_held());
    std::fs::remove_file(&filler).unwrap();
    until("it works again", async || small.mutex("again").try_lock().await.is_ok()).await;
    held.verify().await.unwrap();
    assert_eq!(held.release().await.unwrap(), Released::Released);
    drop(guards);
    small.close().await.unwrap();
    rustix::mount::unmount(temp.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

fn mount_tiny(dir: &Path) -> bool {
    use rustix::mount::{MountFlags, mount};
    mount("tmpfs", dir, "tmpfs", MountFlags::empty(), c"size=1m").is_ok()
}

fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    let block = [0; 4096];
    while file.write_all(&block).is_ok() {}
}

#[tokio::test]
async fn a_database_locked_by_a_foreign_program_is_said_and_waited_out() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    let guard = here.mutex("held").lock().await.unwrap();
    let foreign = rusqlite::Connection::open(temp.path().join("lk.db")).unwrap();
    foreign.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let options = LockOptions::default().with_wait(millis(1200));
    let error = here.mutex("m").with_options(options).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("another program"), "{error}");
    let blocked = guard.verify().await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::Unreachable, "{blocked}");
    assert!(blocked.to_string().contains("another program"), "{blocked}");
    let waiting = here.mutex("m");
    let patient = tokio::spawn(async move { waiting.lock().await });
    foreign.execute_batch("ROLLBACK").unwrap();
    let late = tokio::time::timeout(PATIENCE, patient).await.unwrap().unwrap().unwrap();
    assert!(late.is_held() && guard.is_held());
    guard.verify().await.unwrap();
}

#[tokio::test]
async fn a_directory_removed_under_load_is_said() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("locks");
    let here = keeper(&dir).await;
    let options = LockOptions::default().with_lease(millis(1000)).with_wait(millis(500));
    let guard = here.mutex("held").with_options(options.clone()).lock().await.unwrap();
    let mut load = tokio::task::JoinSet::new();
    for number in 0..4 {
        let (keeper, options) = (here.clone(), options.clone());
        load.spawn(async move {
            loop {
                let mutex = keeper.mutex(format!("load-{number}")).with_options(options.clone());
                match mutex.lock().await {
                    Ok(guard) => drop(guard.release().await),
                    Err(error) => break error,
                }
            }
        });
    }
    std::fs::remove_dir_all(&dir).unwrap();
    while let Some(error) = load.join_next().await {
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("does not exist"), "{error}");
    }
    // The holder is told in time, although nobody can renew it.
    let cause = tokio::time::timeout(PATIENCE, guard.lost()).await.unwrap();
    assert_eq!(cause, Cause::Expired);
    // Who connects now locks in a new directory, and tokens still grow.
    let new = keeper(&dir).await;
    let next = new.mutex("held").lock().await.unwrap();
    assert!(next.token() > guard.token());
    let error = here.status("held").await.unwrap_err();
    assert!(error.to_string().contains("replaced"), "{error}");
}

#[tokio::test]
async fn a_deleted_proof_of_life_does_not_free_the_lock() {
    let temp = tempfile::tempdir().unwrap();
    let one = keeper(temp.path()).await;
    let mut holder = worker(temp.path());
    holder.lock("m", 1_000);
    for entry in std::fs::read_dir(temp.path()).unwrap().flatten() {
        if entry.file_name().to_str().unwrap().ends_with(".lock") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    assert!(one.mutex("m").try_lock().await.unwrap().is_none(), "no proof is not a proof of death");
    // It is made again with the next renewals, and then proves a death again.
    until("made again", async || {
        let files = std::fs::read_dir(temp.path()).unwrap().flatten();
        files.filter(|file| file.file_name().to_str().unwrap().ends_with(".lock")).count() >= 1
    })
    .await;
    assert!(one.mutex("m").try_lock().await.unwrap().is_none());
    holder.kill();
    until("free", async || one.mutex("m").try_lock().await.unwrap().is_some()).await;
}

#[tokio::test]
async fn what_the_dead_left_is_swept() {
    let temp = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let mut holder = worker(temp.path());
        holder.lock("m", 30_000);
        holder.kill();
    }
    let here = keeper(temp.path()).await;
    let count = || {
        let files = std::fs::read_dir(temp.path()).unwrap().flatten();
        files.filter(|file| file.file_name().to_str().unwrap().starts_with("s-")).count()
    };
    assert_eq!(count(), 2, "ours alone");
    assert!(here.mutex("m").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn a_failed_request_leaves_nothing_and_fails_alone() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    let db = rusqlite::Connection::open(temp.path().join("lk.db")).unwrap();
    db.execute_batch(
        "CREATE TRIGGER boom BEFORE INSERT ON holders WHEN NEW.name = 'boom'
         BEGIN SELECT RAISE(FAIL, 'boom'); END",
    )
    .unwrap();
    let good: Vec<_> = (0..50).map(|n| here.mutex(format!("good-{n}"))).collect();
    let good = good.into_iter().map(|mutex| tokio::spawn(async move { mutex.lock().await }));
    let good: Vec<_> = good.collect();
    let error = here.mutex("boom").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    for guard in good {
        assert!(guard.await.unwrap().unwrap().is_held());
    }
    let half: i64 = db
        .query_row("SELECT count(*) FROM names WHERE name = 'boom'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(half, 0, "half a request was kept");
}
