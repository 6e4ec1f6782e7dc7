//! Files that somebody keeps, cuts off or writes over.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, Keeper, Local, LockOptions, Released};

use crate::kit::{PATIENCE, keeper, until, worker};

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// What a process that is stopped inside a transaction does to the others.
#[tokio::test]
async fn a_guard_that_nobody_gives_back_ends_every_wait_in_time() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    let options = LockOptions::default().with_lease(millis(1500)).with_wait(millis(700));
    let held = here.mutex("held").with_options(options.clone()).lock().await.unwrap();
    let stopped = File::open(temp.path().join("guard")).unwrap();
    stopped.lock().unwrap();

    let start = Instant::now();
    let error = here.mutex("m").with_options(options.clone()).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(start.elapsed() < millis(2000), "{:?}", start.elapsed());
    let error = here.status("held").await.unwrap_err();
    assert!(error.to_string().contains("no answer"), "{error}");
    tokio::time::timeout(PATIENCE, held.lost()).await.unwrap();
    let error = Keeper::new(Local::at(temp.path())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");

    stopped.unlock().unwrap();
    until("nothing is left", async || {
        let status = here.status("m").await.unwrap();
        status.holders.is_empty() && status.waiters.is_empty()
    })
    .await;
    let guard = here.mutex("m").with_options(options.clone()).lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Released);

    stopped.lock().unwrap();
    let start = Instant::now();
    let _ = here.close().await;
    assert!(start.elapsed() < millis(8000), "{:?}", start.elapsed());
}

fn spoil(path: &Path, from: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let noise: Vec<u8> = (from..length).map(|byte| (byte * 7 + 3) as u8).collect();
    file.write_all_at(&noise, from).unwrap();
}

fn cut(path: &Path, to: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(to).unwrap();
}

type Spoil = fn(&Path);

/// An error each time, or the right answer: never a second holder, never a panic.
#[tokio::test]
async fn a_damaged_database_is_said_and_nobody_holds_twice() {
    let spoils: [(&str, Spoil); 7] = [
        ("noise in lk.db", |dir| spoil(&dir.join("lk.db"), 4096)),
        ("noise all over lk.db", |dir| spoil(&dir.join("lk.db"), 0)),
        ("half of lk.db", |dir| cut(&dir.join("lk.db"), 8192)),
        ("an empty lk.db", |dir| cut(&dir.join("lk.db"), 0)),
        ("noise in the log", |dir| spoil(&dir.join("lk.db-wal"), 32)),
        ("half of the log", |dir| cut(&dir.join("lk.db-wal"), 5000)),
        ("an empty log", |dir| cut(&dir.join("lk.db-wal"), 0)),
    ];
    for (what, spoil) in spoils {
        let temp = tempfile::tempdir().unwrap();
        let options = LockOptions::default().with_lease(millis(500)).with_wait(millis(300));
        let here = keeper(temp.path()).await;
        let mut holder = worker(temp.path());
        holder.lock("m", 500);
        spoil(temp.path());
        for round in 0..4 {
            let other = Keeper::new(Local::at(temp.path())).await;
            let keeper = other.as_ref().ok().filter(|_| round % 2 == 1).unwrap_or(&here);
            let got = keeper.mutex("m").with_options(options.clone()).lock().await;
            let theirs = holder.ask("state");
            let ours = got.as_ref().is_ok_and(|guard| guard.is_held());
            println!("{what}: {theirs:?} there, {ours} here; {:?}; {:?}", got.err(), other.err());
            assert!(!ours || theirs.starts_with("lost"), "{what}: two hold it");
        }
    }
}
