//! The thread that talks to SQLite.
//!
//! SQLite blocks, so it has a thread of its own. Requests that arrive while
//! it is busy are done in one transaction. A file lock around each write
//! keeps processes fair: the kernel queues them, while SQLite's own way of
//! waiting (sleep, look again) starves some for seconds.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::fs::OFlags;
use tokio::sync::oneshot;

use super::config::Settings;
use super::desk::Desk;
use super::failure::{Fail, Stage, explain};
use super::live::{self, Session};
use super::place::{Place, failed};
use super::schema;
use super::wake::Postman;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::token::KeeperId;

/// How many requests one transaction carries at most.
const BATCH: usize = 256;
/// How often what the dead left is looked for, while there is work to do.
const SWEEP: Duration = Duration::from_secs(60);
/// How long the log may get while we work, and when we leave.
const LOG: u64 = 4 << 20;
const LOG_AT_END: u64 = 1 << 19;
/// After how many transactions its length is looked at.
const TIDY: u32 = 64;
/// One in how many openings forgets idle names.
const FORGETFUL: u8 = 64;
/// How often our own proof of life is looked after.
const ASSURE: Duration = Duration::from_secs(1);

/// The way to the thread.
#[derive(Debug)]
pub(super) struct Store {
    jobs: Mutex<Option<Sender<Box<dyn Job>>>>,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
    /// A fork of this process has no such thread, and must not use its files.
    pid: u32,
}

impl Store {
    /// Starts the thread and opens the database on it.
    pub(super) async fn open(settings: Settings, keeper: KeeperId) -> Result<(Store, Place)> {
        let (jobs, inbox) = mpsc::channel();
        let (ready, opened) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let body = move || {
            match Clerk::open(&settings, keeper) {
                Ok(clerk) => {
                    let place = clerk.place.clone();
                    // Nobody waits for it any more: the first receive ends it.
                    let _ = ready.send(Ok(place));
                    clerk.serve(&inbox);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
            let _ = end.send(());
        };
        let failed =
            |error| Error::new(ErrorKind::Unexpected, "no thread to be had").because(error);
        thread::Builder::new().name("lockkeeper-db".to_owned()).spawn(body).map_err(failed)?;
        let place = opened.await.unwrap_or_else(|_| Err(gone()))?;
        let (jobs, ended) = (Mutex::new(Some(jobs)), Mutex::new(Some(ended)));
        Ok((Store { jobs, ended, pid: std::process::id() }, place))
    }

    /// Does some work in a transaction, perhaps together with other work.
    ///
    /// It may be run again if the transaction has to be.
    pub(super) async fn run<T, W>(&self, access: Access, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnMut(&mut Desk<'_>) -> Result<T, Fail> + Send + 'static,
    {
        if std::process::id() != self.pid {
            return Err(invalid("a fork of a process has none of its locks; connect anew"));
        }
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Typed { access, work, answer: None, reply });
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        jobs.and_then(|jobs| jobs.send(job).ok()).ok_or_else(gone)?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Ends the thread after what it has to do.
    pub(super) async fn close(&self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            let _ = ended.await;
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unexpected, "the database thread has ended")
}

/// Whether work may change rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A request, whatever its answer is.
trait Job: Send {
    fn access(&self) -> Access;
    fn run(&mut self, desk: &mut Desk<'_>) -> Result<(), Fail>;
    fn finish(self: Box<Self>, outcome: Result<()>);
}

struct Typed<T, W> {
    access: Access,
    work: W,
    answer: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T: Send, W: FnMut(&mut Desk<'_>) -> Result<T, Fail> + Send> Job for Typed<T, W> {
    fn access(&self) -> Access {
        self.access
    }

    fn run(&mut self, desk: &mut Desk<'_>) -> Result<(), Fail> {
        self.answer = Some((self.work)(desk)?);
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<()>) {
        let Typed { answer, reply, .. } = *self;
        let _ = reply.send(outcome.and_then(|()| answer.ok_or_else(gone)));
    }
}

/// What lives on the thread.
struct Clerk {
    place: Place,
    keeper: KeeperId,
    db: Connection,
    guard: File,
    /// Which files these are, to notice when somebody replaces them.
    identity: Identity,
    session: Option<Session>,
    postman: Postman,
    swept: Instant,
    assured: Instant,
    /// Writes since the log was last looked at.
    writes: u32,
}

impl Clerk {
    fn open(settings: &Settings, keeper: KeeperId) -> Result<Clerk> {
        let boot = match &settings.boot {
            Some(boot) => boot.to_string(),
            None => schema::boot_id()?,
        };
        let place = settings.place()?;
        let guard = open_guard(&place)?;
        let locked = Locked::new(&guard, &place)?;
        let db = schema::open(&place, &boot, settings.max_pages)?;
        let identity = Identity::of(&place)?;
        let session = Some(Session::begin(&place, keeper)?);
        drop(locked);
        let postman = Postman::new(&place);
        let now = Instant::now();
        let mut clerk = Clerk {
            place,
            keeper,
            db,
            guard,
            identity,
            session,
            postman,
            swept: now,
            assured: now,
            writes: 0,
        };
        clerk.sweep(fastrand::u8(..FORGETFUL) == 0);
        Ok(clerk)
    }

    fn serve(mut self, inbox: &Receiver<Box<dyn Job>>) {
        loop {
            let first = if self.postman.has_unsent() {
                inbox.recv_timeout(Duration::from_millis(1))
            } else {
                inbox.recv().map_err(RecvTimeoutError::from)
            };
            match first {
                Ok(first) => {
                    let mut jobs = vec![first];
                    jobs.extend(inbox.try_iter().take(BATCH - 1));
                    self.batch(jobs);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.postman.retry();
            if self.writes >= TIDY {
                self.writes = 0;
                schema::tidy(&self.db, &self.place, LOG);
            }
            if self.swept.elapsed() >= SWEEP {
                self.sweep(true);
            }
        }
        self.end();
    }

    /// Does requests together; if one of them fails, each on its own.
    fn batch(&mut self, mut jobs: Vec<Box<dyn Job>>) {
        let mut outcome = self.attempt(&mut jobs);
        if jobs.len() > 1 && matches!(outcome, Err((Stage::Work, _))) {
            for job in jobs {
                self.batch(vec![job]);
            }
            return;
        }
        for job in jobs {
            let answer = match &mut outcome {
                Ok(()) => Ok(()),
                Err((_, error)) => Err(error.clone()),
            };
            job.finish(answer);
        }
    }

    /// Runs requests in one transaction, all or none.
    fn attempt(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), (Stage, Error)> {
        let access = jobs.iter().map(|job| job.access());
        let access =
            access.fold(Access::Read, |all, one| if one == Access::Write { one } else { all });
        self.transact(access, |desk| jobs.iter_mut().try_for_each(|job| job.run(desk)))
    }

    fn transact(
        &mut self,
        access: Access,
        mut work: impl FnMut(&mut Desk<'_>) -> Result<(), Fail>,
    ) -> Result<(), (Stage, Error)> {
        let outside = |error| (Stage::Open, error);
        let write = access == Access::Write;
        let locked = match write {
            true => Some(Locked::new(&self.guard, &self.place).map_err(outside)?),
            false => None,
        };
        self.identity.check(&self.place).map_err(outside)?;
        if write && self.assured.elapsed() >= ASSURE {
            if let Some(session) = &mut self.session {
                session.assure(&self.place, self.keeper).map_err(outside)?;
            }
            self.assured = Instant::now();
        }
        let outbox = loop {
            let begin = if write { "BEGIN IMMEDIATE" } else { "BEGIN" };
            let sql = |error| outside(explain(error, Stage::Work));
            execute(&self.db, begin).map_err(sql)?;
            let done = Desk::new(&self.db, &self.place.dir, self.keeper).and_then(|mut desk| {
                work(&mut desk)?;
                Ok(desk.outbox())
            });
            match done {
                Ok(outbox) => {
                    let committed = execute(&self.db, "COMMIT");
                    self.roll_back();
                    committed.map_err(|error| (Stage::Commit, explain(error, Stage::Commit)))?;
                    break outbox;
                }
                Err(fail) => {
                    self.roll_back();
                    match fail {
                        Fail::Ceiling(token) if write => {
                            schema::raise_ceiling(&self.db, token.get()).map_err(sql)?;
                        }
                        Fail::Ceiling(_) => return Err(outside(gone())),
                        Fail::Sql(error) => {
                            return Err((Stage::Work, explain(error, Stage::Work)));
                        }
                    }
                }
            }
        };
        drop(locked);
        self.writes += u32::from(write);
        self.postman.deliver(outbox);
        Ok(())
    }

    /// Undoes whatever is still open.
    fn roll_back(&self) {
        if !self.db.is_autocommit() {
            let _ = execute(&self.db, "ROLLBACK");
        }
    }

    /// Ends what dead keepers left, and perhaps forgets what is long idle.
    fn sweep(&mut self, forget: bool) {
        self.swept = Instant::now();
        let dead = live::dead_sessions(&self.place.dir);
        if dead.is_empty() && !forget {
            return;
        }
        let done = self.transact(Access::Write, |desk| {
            for &keeper in &dead {
                desk.end_session(keeper)?;
            }
            if forget { desk.forget_idle() } else { Ok(()) }
        });
        match done {
            Ok(()) => {
                if let Ok(_locked) = Locked::new(&self.guard, &self.place) {
                    dead.iter().for_each(|&keeper| live::bury(&self.place.dir, keeper));
                }
            }
            Err((_, error)) => tracing::debug!(%error, "not swept"),
        }
    }

    fn end(mut self) {
        let mut left = true;
        let keeper = self.keeper;
        let looked = self.transact(Access::Read, |desk| {
            left = desk.has_left(keeper)?;
            Ok(())
        });
        schema::tidy_at_end(&self.db, &self.place, LOG_AT_END);
        if let Some(session) = self.session.take() {
            session.end(looked.is_ok() && !left);
        }
    }
}

fn execute(db: &Connection, sql: &str) -> rusqlite::Result<()> {
    db.prepare_cached(sql)?.execute([]).map(|_| ())
}

/// The guard file, locked; unlocked when dropped.
struct Locked<'a>(&'a File);

impl<'a> Locked<'a> {
    fn new(guard: &'a File, place: &Place) -> Result<Self> {
        guard.lock().map_err(|error| failed("lock", &place.guard(), error))?;
        Ok(Locked(guard))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Closing the file, at latest, unlocks it as well.
        let _ = self.0.unlock();
    }
}

fn open_guard(place: &Place) -> Result<File> {
    let path = place.guard();
    let open = |new: bool| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(new)
            .mode(place.mode)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(&path)
    };
    let file = match open(true) {
        Ok(file) => file.set_permissions(Permissions::from_mode(place.mode)).map(|()| file),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open(false),
        Err(error) => Err(error),
    };
    file.map_err(|error| failed("open", &path, error))
}

/// Which files the database and its guard are.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    guard: (u64, u64),
    database: (u64, u64),
}

impl Identity {
    fn of(place: &Place) -> Result<Identity> {
        let id = |path: &Path| -> Result<(u64, u64)> {
            let meta = fs::symlink_metadata(path).map_err(|error| failed("find", path, error))?;
            Ok((meta.dev(), meta.ino()))
        };
        Ok(Identity { guard: id(&place.guard())?, database: id(&place.database())? })
    }

    /// Somebody who replaced the files has split those who lock in two camps.
    fn check(&self, place: &Place) -> Result<()> {
        if Identity::of(place)? == *self {
            return Ok(());
        }
        let text =
            format!("the files in {} were replaced by others; connect anew", place.dir.display());
        Err(Error::new(ErrorKind::Unreachable, text))
    }
}
