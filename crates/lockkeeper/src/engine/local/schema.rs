//! Opening the database: whose it is, which version, which boot.

use std::fs::OpenOptions;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, params};

use super::failure::{Stage, explain};
use super::place::{Place, failed};
use crate::error::{Error, Result, invalid};
use crate::model::Time;

/// `LKPR`: tells our databases from those of other programs.
const APPLICATION: i64 = 0x4c4b_5052;
/// The version of the tables.
const VERSION: i64 = 1;
/// How far the ceiling of tokens is raised at a time.
pub(super) const STEP: u64 = 1 << 20;
/// How long a foreign program may hold the database before we say so.
const PATIENCE: Duration = Duration::from_millis(800);

/// Opens the database, made or renewed if need be. The caller holds the guard.
pub(super) fn open(place: &Place, boot: &str, max_pages: Option<u32>) -> Result<Connection> {
    let path = place.database();
    create_file(place)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let refused = |error| explain(error, Stage::Open).during("connect");
    let db = Connection::open_with_flags(&path, flags).map_err(refused)?;
    prepare(&db, max_pages, boot).map_err(|error| match error {
        Opening::Sql(error) => refused(error),
        Opening::Refused(text) => invalid(format!("{} {text}", path.display())),
    })?;
    Ok(db)
}

enum Opening {
    Sql(rusqlite::Error),
    Refused(String),
}

impl From<rusqlite::Error> for Opening {
    fn from(error: rusqlite::Error) -> Self {
        Opening::Sql(error)
    }
}

/// Makes an empty file with the right mode; SQLite gives its others the same.
///
/// Only a new file is ever opened by us: closing a descriptor of one in use
/// would drop the locks SQLite has on it.
fn create_file(place: &Place) -> Result<()> {
    let path = place.database();
    match OpenOptions::new().write(true).create_new(true).mode(place.mode).open(&path) {
        Ok(_) => fs::set_permissions(&path, fs::Permissions::from_mode(place.mode))
            .map_err(|error| failed("make", &path, error)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed("make", &path, error)),
    }
}

fn prepare(db: &Connection, max_pages: Option<u32>, boot: &str) -> Result<(), Opening> {
    db.busy_timeout(PATIENCE)?;
    db.set_prepared_statement_cache_capacity(64);
    let is_new = check_version(db)?;
    if pragma_text(db, "journal_mode")? != "wal" {
        let mode: String = db.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        if mode != "wal" {
            return Err(Opening::Refused("cannot be used by several processes here".to_owned()));
        }
    }
    if let Some(pages) = max_pages {
        db.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    }
    // The log is copied back by `tidy`, outside the guard, and not at every
    // close: that would cost a short-lived program two waits for the disk.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Plans do not depend on bound values, so that none is made twice.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    db.execute_batch("PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 0")?;
    full_sync(db, || {
        if is_new {
            create_tables(db, boot)?;
        }
        begin_boot(db, boot)
    })?;
    Ok(())
}

/// Whether the database is empty; an error if it is not ours or too new.
fn check_version(db: &Connection) -> Result<bool, Opening> {
    let application = pragma(db, "application_id")?;
    let version = pragma(db, "user_version")?;
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application, version) {
        (0, 0) if tables == 0 => Ok(true),
        (APPLICATION, VERSION) => Ok(false),
        (APPLICATION, newer) => Err(Opening::Refused(format!(
            "is from a newer version of Lockkeeper (format {newer}, this one knows {VERSION})"
        ))),
        _ => Err(Opening::Refused("is a database of another program".to_owned())),
    }
}

fn create_tables(db: &Connection, boot: &str) -> rusqlite::Result<()> {
    let tables = include_str!("schema.sql");
    db.execute_batch(&format!(
        "BEGIN IMMEDIATE; {tables} PRAGMA application_id = {APPLICATION}; \
         PRAGMA user_version = {VERSION}"
    ))?;
    // Were the directory deleted, counting from one would repeat tokens; no
    // name is granted more often than once in a microsecond.
    let floor = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
    let ceiling = floor.saturating_add(STEP as i64);
    db.execute(
        "INSERT INTO meta (one, boot, floor, ceiling) VALUES (1, ?1, ?2, ?3)",
        params![boot, floor, ceiling],
    )?;
    db.execute_batch("COMMIT")
}

/// Ends everything that the last boot left: its processes are gone, and so
/// is its clock. What a power cut may have undone is below the ceiling.
fn begin_boot(db: &Connection, boot: &str) -> rusqlite::Result<()> {
    let same = |db: &Connection| -> rusqlite::Result<bool> {
        let stored: String = db.query_row("SELECT boot FROM meta", [], |row| row.get(0))?;
        Ok(stored == boot)
    };
    if same(db)? {
        return Ok(());
    }
    tracing::info!("the machine was restarted: earlier locks are void");
    db.execute_batch("BEGIN IMMEDIATE")?;
    let (ceiling, raised) = raised(db, 0)?;
    let now = now().0 as i64;
    // A holder that did not let go has failed.
    db.execute(
        "UPDATE names SET used = ?1, latch_until = ?1 + latch_keep, closed_until = coalesce( \
         (SELECT ?1 + max(lock_delay) FROM holders WHERE holders.name = names.name \
          AND lock_delay > 0), 0)",
        [now],
    )?;
    db.execute_batch(
        "DELETE FROM holders; DELETE FROM tickets; DELETE FROM watchers; DELETE FROM finished; \
         DELETE FROM listeners",
    )?;
    db.execute(
        "UPDATE meta SET boot = ?1, floor = ?2, ceiling = ?3",
        params![boot, ceiling, raised],
    )?;
    db.execute_batch("COMMIT")
}

/// Raises the ceiling of tokens above `token`, and puts that on the disk.
pub(super) fn raise_ceiling(db: &Connection, token: u64) -> rusqlite::Result<()> {
    full_sync(db, || {
        db.execute_batch("BEGIN IMMEDIATE")?;
        let (_, raised) = raised(db, token)?;
        db.execute("UPDATE meta SET ceiling = ?1", [raised])?;
        db.execute_batch("COMMIT")
    })
}

/// Copies the log back into the database once it is longer than `limit`.
///
/// Others can go on meanwhile, and the next writer starts the log anew.
pub(super) fn tidy(db: &Connection, place: &Place, limit: u64) {
    if log_bytes(place) > limit {
        let _ = db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }
}

/// Empties the log if it is longer than `limit` and nobody else uses it: the
/// first to open the database has to read all of it.
pub(super) fn tidy_at_end(db: &Connection, place: &Place, limit: u64) {
    if log_bytes(place) > limit && db.busy_timeout(Duration::ZERO).is_ok() {
        let _ = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
}

fn log_bytes(place: &Place) -> u64 {
    let mut log = place.database().into_os_string();
    log.push("-wal");
    fs::metadata(&log).map_or(0, |meta| meta.len())
}

/// The ceiling as it is, and raised by a step, and above `token`.
fn raised(db: &Connection, token: u64) -> rusqlite::Result<(i64, i64)> {
    let ceiling: i64 = db.query_row("SELECT ceiling FROM meta", [], |row| row.get(0))?;
    Ok((ceiling, (ceiling as u64).max(token).saturating_add(STEP) as i64))
}

/// Does something that must be on the disk before anybody relies on it.
fn full_sync(db: &Connection, work: impl FnOnce() -> rusqlite::Result<()>) -> rusqlite::Result<()> {
    db.execute_batch("PRAGMA synchronous = FULL")?;
    let changes = db.total_changes();
    let done = work();
    if done.is_err() && !db.is_autocommit() {
        let _ = db.execute_batch("ROLLBACK");
    }
    if done.is_ok() && db.total_changes() != changes {
        // Into the main file, so that it does not depend on the log at all.
        let _ = db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }
    // Without a boot id, nothing tells a power cut from a pause: then every
    // single grant must be on the disk.
    if cfg!(target_os = "linux") {
        db.execute_batch("PRAGMA synchronous = NORMAL")?;
    }
    done
}

fn pragma(db: &Connection, name: &str) -> rusqlite::Result<i64> {
    db.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
}

fn pragma_text(db: &Connection, name: &str) -> rusqlite::Result<String> {
    db.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
}

/// The engine's clock: it stops while the machine sleeps, for everybody alike,
/// and starts anew with every boot.
#[cfg(unix)]
pub(super) fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The kernel never reports a negative time since boot.
    Time(now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000)
}

/// What changes with every start of the machine.
pub(super) fn boot_id() -> Result<String> {
    if cfg!(not(target_os = "linux")) {
        return Ok("-".to_owned());
    }
    let path = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(path)
        .map_err(|error: io::Error| -> Error { failed("read", path.as_ref(), error) })?;
    Ok(text.trim().to_owned())
}
