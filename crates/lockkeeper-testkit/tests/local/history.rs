//! Histories: many processes, a witness that is not the engine, and power cuts.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::{Keeper, Local, Token};
use lockkeeper_testkit::hammer::Hammer;
use lockkeeper_testkit::seed;
use rusqlite::Connection;

use crate::kit::{WORKER, keeper, url};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Lets the database itself note who came and who was granted, in order.
fn witness(dir: &Path) {
    let db = Connection::open(dir.join("lk.db")).unwrap();
    let claim = "NEW.session || '-' || NEW.number || '-' || NEW.turn";
    let old = claim.replace("NEW", "OLD");
    db.execute_batch(&format!(
        "CREATE TABLE log (at INTEGER PRIMARY KEY, name TEXT, what TEXT, claim TEXT, token INTEGER);
         CREATE TRIGGER log_ticket AFTER INSERT ON tickets BEGIN
            INSERT INTO log (name, what, claim) VALUES (NEW.name, 'came', {claim}); END;
         CREATE TRIGGER log_left AFTER DELETE ON tickets BEGIN
            INSERT INTO log (name, what, claim) VALUES (OLD.name, 'left', {old}); END;
         CREATE TRIGGER log_grant AFTER INSERT ON holders BEGIN
            INSERT INTO log (name, what, claim, token) \
            VALUES (NEW.name, 'granted', {claim}, NEW.token); END;"
    ))
    .unwrap();
}

/// Checks the order that the database noted; returns how many grants waited.
fn check_order(dir: &Path) -> usize {
    let db = Connection::open(dir.join("lk.db")).unwrap();
    let mut log = db.prepare("SELECT name, what, claim, token FROM log ORDER BY at").unwrap();
    let mut rows = log.query([]).unwrap();
    let mut queues: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut granted: HashMap<(String, String), u64> = HashMap::new();
    let mut highest: BTreeMap<String, u64> = BTreeMap::new();
    let mut waited = 0;
    let mut next: BTreeMap<String, String> = BTreeMap::new();
    while let Some(row) = rows.next().unwrap() {
        let (name, what): (String, String) = (row.get(0).unwrap(), row.get(1).unwrap());
        let claim: String = row.get(2).unwrap();
        let queue = queues.entry(name.clone()).or_default();
        match what.as_str() {
            "came" => queue.push(claim),
            "left" => {
                assert_eq!(queue.first(), Some(&claim), "served out of turn on {name}");
                queue.remove(0);
                next.insert(name, claim);
            }
            _ => {
                let token = row.get::<_, i64>(3).unwrap() as u64;
                if granted.insert((name.clone(), claim.clone()), token).is_some() {
                    continue; // a renewal
                }
                match next.remove(&name) {
                    Some(served) => {
                        assert_eq!(served, claim, "somebody else was served on {name}");
                        waited += 1;
                    }
                    None => assert!(queue.is_empty(), "{claim} overtook the queue on {name}"),
                }
                let last = highest.insert(name.clone(), token).unwrap_or(0);
                assert!(token > last, "token {token} after {last} on {name}");
            }
        }
    }
    waited
}

#[tokio::test]
async fn eight_processes_never_overlap_and_are_served_in_order() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("locks");
    let here = keeper(&dir).await;
    witness(&dir);
    // Of each process; the variable makes it longer, or short for a quick look.
    let each = std::env::var("LOCKKEEPER_ACQUISITIONS").ok();
    let each: u32 = each.map_or(20_000, |each| each.parse().expect("a number"));
    let inside = temp.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    let hammer = Hammer { each, watched: Some(inside), ..Hammer::new(WORKER, &NAMES) };
    let start = Instant::now();
    let history = hammer.on(&url(&dir), seed()).await;
    let took = start.elapsed();
    assert_eq!(history.total(), hammer.total(), "a guard was lost");
    history.check();
    let waited = check_order(&dir);
    println!("{} stays in {took:?}, {waited} after a wait", history.total());
    assert!(waited > 1000, "hardly anybody waited: {waited}");
    for name in NAMES {
        let status = here.status(name).await.unwrap();
        assert!(status.holders.is_empty() && status.waiters.is_empty(), "{status:?}");
    }
}

/// What a power cut leaves: the database, and some of the log that was not
/// yet forced to the disk, cut off anywhere.
fn power_cut(from: &Path, to: &Path, keep: f64) {
    std::fs::create_dir(to).unwrap();
    std::fs::copy(from.join("lk.db"), to.join("lk.db")).unwrap();
    let wal = std::fs::read(from.join("lk.db-wal")).unwrap_or_default();
    let keep = (wal.len() as f64 * keep) as usize;
    std::fs::write(to.join("lk.db-wal"), &wal[..keep]).unwrap();
}

#[tokio::test]
async fn a_power_cut_never_repeats_a_token() {
    let temp = tempfile::tempdir().unwrap();
    let mut dir = temp.path().join("boot-0");
    let mut highest: BTreeMap<String, Token> = BTreeMap::new();
    for boot in 1..=8 {
        let keeper =
            Keeper::new(Local::at(&dir).with_boot_id(&format!("boot {boot}"))).await.unwrap();
        for round in 0..40 {
            // A name of its own per boot is forgotten by the cut altogether.
            for name in ["old".to_owned(), format!("new-{}", (boot + round) % 3)] {
                let guard = keeper.mutex(&name).lock().await.unwrap();
                let last = highest.insert(name.clone(), guard.token()).unwrap_or(Token::ZERO);
                assert!(guard.token() > last, "{} after {last} in boot {boot}", guard.token());
                let _ = guard.release().await.unwrap();
                // A writer served from a queue, behind a reader, on a forgotten name.
                let shared = keeper.rwlock(format!("rw-{name}"));
                let reader = shared.read().await.unwrap();
                let writing = tokio::spawn({
                    let lock = keeper.rwlock(format!("rw-{name}"));
                    async move { lock.write().await.unwrap().token() }
                });
                tokio::task::yield_now().await;
                drop(reader);
                let token = writing.await.unwrap();
                let last = highest.insert(format!("rw-{name}"), token).unwrap_or(Token::ZERO);
                assert!(token > last, "{token} after {last} in boot {boot}");
            }
        }
        let next = temp.path().join(format!("boot-{boot}"));
        // From nothing of the log to nearly all of it.
        power_cut(&dir, &next, f64::from(boot % 5) / 4.0 * 0.97);
        dir = next;
    }
}

#[tokio::test]
async fn the_ceiling_is_raised_before_it_is_passed() {
    let temp = tempfile::tempdir().unwrap();
    let keeper = keeper(temp.path()).await;
    let db = Connection::open(temp.path().join("lk.db")).unwrap();
    let bounds = || -> (i64, i64) {
        db.query_row("SELECT floor, ceiling FROM meta", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
    };
    let (floor, _) = bounds();
    // As if a million grants had been made.
    db.execute("UPDATE meta SET ceiling = floor + 2", []).unwrap();
    for round in 1..=5 {
        let guard = keeper.mutex("m").lock().await.unwrap();
        assert_eq!(guard.token().get() as i64, floor + round);
        assert!(bounds().1 >= floor + round, "a token above the ceiling");
        let _ = guard.release().await.unwrap();
    }
    assert!(bounds().1 >= floor + (1 << 20), "{:?}", bounds());
}

#[tokio::test]
async fn a_thousand_waiters_do_not_make_everything_slow() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    let guard = here.mutex("m").lock().await.unwrap();
    let _alive = keeper(temp.path()).await;
    // Tickets of a keeper that nothing is known of: they live as long as they say.
    let db = Connection::open(temp.path().join("lk.db")).unwrap();
    db.execute_batch(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
         INSERT INTO tickets SELECT 'm', i, printf('%032x', i), i, 0, 'exclusive', 0, 0,
         9000000000000000, 0, 0, 'w', 'h', 1, '' FROM n;
         UPDATE names SET last_ticket = 1000 WHERE name = 'm'",
    )
    .unwrap();
    let waiting = keeper(temp.path()).await;
    let start = Instant::now();
    let mut asked = 0;
    while start.elapsed() < Duration::from_millis(500) {
        assert!(waiting.mutex("m").try_lock().await.unwrap().is_none());
        asked += 1;
    }
    let each = start.elapsed() / asked;
    println!("asking behind a thousand: {each:?}");
    assert!(each < Duration::from_millis(5), "{each:?}");
    assert_eq!(here.status("m").await.unwrap().waiters.len(), 1000);
    drop(guard);
}

#[tokio::test]
async fn nobody_is_overtaken_behind_many_dead_tickets() {
    let temp = tempfile::tempdir().unwrap();
    let here = keeper(temp.path()).await;
    let guard = here.mutex("m").lock().await.unwrap();
    let db = Connection::open(temp.path().join("lk.db")).unwrap();
    db.execute("UPDATE names SET last_ticket = 41 WHERE name = 'm'", []).unwrap();
    let behind = keeper(temp.path()).await.mutex("m");
    let behind = tokio::spawn(async move { behind.lock().await });
    crate::kit::waiters(&here, "m", 1).await;
    // Forty dead ones, more than are read at once, and one that is not.
    db.execute_batch(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 41)
         INSERT INTO tickets SELECT 'm', i, printf('%032x', i), i, 0, 'exclusive', 0, 0,
         iif(i = 41, 9000000000000000, 1), 0, 0, 'w', 'h', 1, '' FROM n",
    )
    .unwrap();
    let _ = guard.release().await.unwrap();
    let status = here.status("m").await.unwrap();
    assert_eq!(status.holders[0].claim.number, 41, "{status:?}");
    assert_eq!(status.waiters.len(), 1, "{status:?}");
    behind.abort();
}
