//! The keeper: what people call.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex as StdMutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::driver::link::{Footprint, Link, Message, Tally, Terms};
use crate::driver::{ANSWER_LIMIT, CellWatch, Driver, Parts, backoff, limited};
use crate::engine::{
    About, Cell, CellOp, Connect, Cursor, Engine, EngineInfo, Events, Found, Holder, Page, Revoke,
    Seat, Status,
};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::fence::Fence;
use crate::latch::Latch;
use crate::multi::Multi;
use crate::mutex::Mutex;
use crate::name::LockName;
use crate::options::LockOptions;
use crate::request::Request;
use crate::rwlock::RwLock;
use crate::semaphore::Semaphore;
use crate::token::KeeperId;
use crate::url;

/// How long a call that is not a lock is repeated when no answer comes; what is
/// left of the answer limit then is for the last try.
const INSIST: Duration = Duration::from_secs(4);

/// A connection to an engine, and everything that is locked through it.
///
/// A keeper owns one thread on which connections, renewals and clean-up live.
/// So it works from any async runtime, or from none (see
/// [`blocking`](crate::blocking)), and code that blocks its executor cannot
/// stop renewals. Clones share the thread; it ends when the last clone and the
/// last guard are gone.
///
/// # Examples
/// ```
/// use lockkeeper::Keeper;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let keeper = Keeper::connect("memory:").await?;
/// let guard = keeper.mutex("orders").lock().await?;
/// println!("held with token {}", guard.token());
/// guard.check()?; // before each write
/// let _ = guard.release().await?;
/// keeper.close().await?;
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Keeper(Arc<Inner>);

struct Inner {
    link: Arc<Link>,
    cells: CellWatch,
    about: About,
    /// The terms of the default options.
    terms: OnceLock<Result<Arc<Terms>>>,
    /// The thread the driver lives on; `None` if it is a task of the caller's.
    thread: Option<ThreadId>,
}

impl Keeper {
    /// Opens the engine behind a URL: `local:` (the user's own), `local:/dir` or
    /// a plain path, `memory:` (private) or `memory:NAME`; `redis://…` and its
    /// kin, and `zookeeper://…`, where those features are on.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a URL that makes no sense, and whatever the
    /// engine says within five seconds, [`ErrorKind::Unreachable`] at latest.
    ///
    /// # Cancel safety
    /// Changes nothing: a connection half made is closed.
    pub async fn connect(url: &str) -> Result<Keeper> {
        Keeper::open(url::parse(url)?).await
    }

    /// Opens an engine of your own, or one with typed settings.
    ///
    /// # Errors
    /// Whatever the engine says within five seconds, [`ErrorKind::Unreachable`] at latest.
    ///
    /// # Cancel safety
    /// Changes nothing: a connection half made is closed.
    pub async fn new(connect: impl Connect) -> Result<Keeper> {
        Keeper::open(Arc::new(connect)).await
    }

    async fn open(connect: Arc<dyn Connect>) -> Result<Keeper> {
        let (ready, opened) = oneshot::channel();
        let label = connect.label();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => {
                    let error =
                        Error::new(ErrorKind::Unexpected, "no I/O to be had").because(error);
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            runtime.block_on(async move {
                match assemble(connect, Clock::system(), Some(thread::current().id())).await {
                    Ok((driver, keeper)) => {
                        // If nobody waits for it any more, this drops the only
                        // keeper and the driver ends at once.
                        if let Err(Ok(mut unwanted)) = ready.send(Ok(keeper)) {
                            unwanted.disown();
                        }
                        // A task, not the root of this runtime: waking the root
                        // costs a system call, even from this very thread.
                        let _ = tokio::spawn(driver.run()).await;
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            });
        };
        let name = "lockkeeper".to_owned();
        let failed =
            |error| Error::new(ErrorKind::Unexpected, "no thread to be had").because(error);
        thread::Builder::new().name(name).spawn(body).map_err(failed)?;
        match opened.await {
            Ok(keeper) => keeper.map_err(|error| error.during("connect").on(&label)),
            Err(_) => {
                let error =
                    Error::new(ErrorKind::Unexpected, "the engine panicked; the log says why");
                Err(error.during("connect").on(&label))
            }
        }
    }

    /// Opens an engine with its driver as a task of the current tokio runtime.
    ///
    /// For tests that move time by hand: with [`Clock::tokio`] and a paused
    /// runtime, an hour of renewals takes milliseconds. The price is what the
    /// keeper's own thread is for: code that blocks this runtime stops renewals.
    ///
    /// # Errors
    /// As [`Keeper::new`].
    ///
    /// # Cancel safety
    /// Changes nothing: a connection half made is closed.
    pub async fn on_this_runtime(connect: impl Connect, clock: Clock) -> Result<Keeper> {
        let label = connect.label();
        let (driver, keeper) = assemble(Arc::new(connect), clock, None)
            .await
            .map_err(|error| error.during("connect").on(&label))?;
        tokio::spawn(driver.run());
        Ok(keeper)
    }

    /// Names a mutex: one holder at a time, first come, first served.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(Request::new(self, name))
    }

    /// Names a read/write lock: one writer or many readers.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(Request::new(self, name))
    }

    /// Names a semaphore of this capacity, which its users must agree on.
    pub fn semaphore(&self, name: impl AsRef<str>, capacity: u32) -> Semaphore {
        Semaphore::new(Request::new(self, name), capacity)
    }

    /// Names a latch: a count that opens at zero.
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        Latch::new(Request::new(self, name))
    }

    /// Names a fence: the highest token a resource has seen.
    pub fn fence(&self, resource: impl AsRef<str>) -> Fence {
        Fence::new(Request::new(self, resource))
    }

    /// Names several mutexes that are held together or not at all.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Multi {
        Multi::of(names.into_iter().map(|name| self.mutex(name)))
    }

    /// Says what the engine is and what it promises.
    pub fn info(&self) -> &EngineInfo {
        &self.0.link.info
    }

    /// The id that starts the claims of this keeper.
    pub fn id(&self) -> KeeperId {
        self.0.link.keeper
    }

    /// Tells who holds and who waits for a name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name; otherwise what the engine says.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn status(&self, name: impl AsRef<str>) -> Result<Status> {
        let name = LockName::new(name)?;
        let inspect = move |engine: Arc<dyn Engine>| {
            let name = name.clone();
            async move { engine.inspect(&name).await }
        };
        self.call("status", inspect).await
    }

    /// Lists the names in use that start with `prefix`, a page at a time.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a limit of zero or above 10 000; otherwise what the engine says.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn list(
        &self,
        prefix: impl Into<String>,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page> {
        if !(1..=10_000).contains(&limit) {
            return Err(invalid("a page has 1 to 10 000 entries").during("list"));
        }
        let prefix = prefix.into();
        let list = move |engine: Arc<dyn Engine>| {
            let (prefix, from) = (prefix.clone(), from.clone());
            async move { engine.list(&prefix, from, limit).await }
        };
        self.call("list", list).await
    }

    /// Takes a grant from its owner, who learns that it is lost(broken).
    ///
    /// [`Revoke::Orderly`] ends the right to renew: the name passes on when
    /// the owner lets go, or at the end of its lease. [`Revoke::Now`] frees
    /// the name at once, **while the owner may still be at work**: the one way
    /// two holders can meet on a healthy engine.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name or a reason of more than 1 KiB.
    ///
    /// # Cancel safety
    /// May have taken effect; repeat it, or look at the status.
    pub async fn revoke(
        &self,
        name: impl AsRef<str>,
        victim: &Holder,
        how: Revoke,
        reason: impl Into<String>,
    ) -> Result<Found> {
        let (name, victim, reason) = (LockName::new(name)?, victim.clone(), reason.into());
        if reason.len() > LockOptions::MAX_TEXT_BYTES {
            return Err(invalid("a reason may have 1024 bytes at most").during("revoke"));
        }
        let revoke = move |engine: Arc<dyn Engine>| {
            let (name, victim, reason) = (name.clone(), victim.clone(), reason.clone());
            async move { engine.revoke(&name, &victim, how, &reason).await }
        };
        self.call("revoke", revoke).await
    }

    /// Gives back everything this keeper holds and ends it.
    ///
    /// Guards that are still around are lost(engine gone); acquisitions under
    /// way end with [`ErrorKind::Invalid`].
    ///
    /// # Errors
    /// [`ErrorKind::Unknown`] when something could not be given back within
    /// five seconds; its lease ends it.
    ///
    /// # Cancel safety
    /// May have taken effect: once asked for, closing goes on in the background.
    pub async fn close(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        if self.0.link.post(Message::Close { reply }).is_err() {
            return Ok(());
        }
        answer.await.unwrap_or(Ok(()))
    }

    /// Says how much the driver has in hand.
    ///
    /// # Cancel safety
    /// Changes nothing.
    #[doc(hidden)]
    pub async fn footprint(&self) -> Result<Footprint> {
        let (reply, answer) = oneshot::channel();
        self.0.link.post(Message::Measure(reply))?;
        answer.await.map_err(|_| invalid("the keeper is closed"))
    }

    /// Says what this keeper has asked of its engine so far.
    ///
    /// # Cancel safety
    /// Changes nothing.
    #[doc(hidden)]
    pub async fn tally(&self) -> Result<Tally> {
        let (reply, answer) = oneshot::channel();
        self.0.link.post(Message::Count(reply))?;
        answer.await.map_err(|_| invalid("the keeper is closed"))
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.0.link
    }

    pub(crate) fn cells(&self) -> &CellWatch {
        &self.0.cells
    }

    /// Works on a number of the engine.
    pub(crate) async fn cell(
        &self,
        operation: &'static str,
        name: LockName,
        op: CellOp,
    ) -> Result<Cell> {
        let cell = move |engine: Arc<dyn Engine>| {
            let (name, op) = (name.clone(), op.clone());
            async move { engine.cell(&name, op).await }
        };
        self.call(operation, cell).await
    }

    /// Asks the engine on the keeper's thread, again and again within the
    /// answer limit: everything asked this way may be asked twice.
    async fn call<T, W, F>(&self, operation: &'static str, ask: W) -> Result<T>
    where
        T: Send + 'static,
        W: Fn(Arc<dyn Engine>) -> F + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let insist = move |engine: Arc<dyn Engine>| async move {
            let start = tokio::time::Instant::now();
            let (mut tries, mut unknown) = (0, None);
            loop {
                let limit = ANSWER_LIMIT.saturating_sub(start.elapsed());
                let error = match limited(limit, ask(engine.clone())).await {
                    Err(error) if error.is_silence() => error,
                    answer => return answer,
                };
                // What may have been done stays unknown, whatever comes after.
                if error.kind() == ErrorKind::Unknown {
                    unknown = Some(error.clone());
                }
                tries += 1;
                let pause = backoff(tries);
                if start.elapsed() + pause > INSIST {
                    return Err(unknown.unwrap_or(error));
                }
                tokio::time::sleep(pause).await;
            }
        };
        self.0.link.call(operation, insist).await
    }

    /// The terms of these options, if they are in range.
    pub(crate) fn terms(&self, options: &LockOptions) -> Result<Arc<Terms>> {
        options.validate()?;
        let least = self.info().min_lease;
        if options.lease < least {
            let text = format!("this engine needs a lease of {least:?} at least");
            return Err(invalid(text).on(&self.info().label));
        }
        let mut about = self.0.about.clone();
        about.note.clone_from(&options.note);
        if !options.who.is_empty() {
            about.who.clone_from(&options.who);
        }
        Ok(Arc::new(Terms {
            lease: options.lease,
            margin: options.effective_margin(),
            lock_delay: options.lock_delay,
            min_hold: options.min_hold,
            max_hold: options.max_hold,
            max_waiters: options.max_waiters,
            about: Arc::new(about),
        }))
    }

    pub(crate) fn default_terms(&self) -> Result<Arc<Terms>> {
        self.0.terms.get_or_init(|| self.terms(&LockOptions::default())).clone()
    }

    /// Forgets the thread, so that the drop does not wait for itself.
    fn disown(&mut self) {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.thread = None;
        }
    }
}

/// Opens an engine and puts a driver on it, in the current runtime.
async fn assemble(
    connect: Arc<dyn Connect>,
    clock: Clock,
    thread: Option<ThreadId>,
) -> Result<(Driver, Keeper)> {
    let (events, pushed) = Events::channel();
    let seat = Seat { keeper: KeeperId::random()?, clock, events };
    let engine = limited(ANSWER_LIMIT, connect.open(seat.clone())).await.map_err(|error| {
        match error.kind() {
            // Nothing was locked yet, so nothing is unknown.
            ErrorKind::Unknown => {
                Error::new(ErrorKind::Unreachable, "no answer in time").because(error)
            }
            _ => error,
        }
    })?;
    let cells: CellWatch = Arc::new(StdMutex::new(HashMap::new()));
    let parts =
        Parts { engine, seat, events: pushed, cells: cells.clone(), own_thread: thread.is_some() };
    let (driver, link) = Driver::new(parts)?;
    let inner = Inner { link, cells, about: about_us(), terms: OnceLock::new(), thread };
    Ok((driver, Keeper(Arc::new(inner))))
}

/// Who we are, for people who look at our locks.
fn about_us() -> About {
    let named = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    About {
        who: named("USER").or_else(|| named("LOGNAME")).unwrap_or_else(user_name),
        host: host_name(),
        pid: std::process::id(),
        note: String::new(),
    }
}

/// The user's name where the environment does not tell: cron jobs, services.
#[cfg(unix)]
fn user_name() -> String {
    let user = rustix::process::getuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        (fields.nth(1)? == user).then_some(name)
    };
    users.lines().find_map(entry).unwrap_or_else(|| format!("uid {user}"))
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn user_name() -> String {
    "somebody".to_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "somewhere".to_owned())
}

impl Drop for Inner {
    /// Waits up to a second for releases that are posted already, so that a
    /// program which ends right after dropping its guards leaves nothing.
    fn drop(&mut self) {
        let elsewhere = self.thread.is_some_and(|io| io != thread::current().id());
        if !elsewhere || !self.link.is_at_home() {
            return;
        }
        let (done, flushed) = sync_channel(1);
        if self.link.post(Message::Flush(done)).is_ok() {
            let _ = flushed.recv_timeout(Duration::from_secs(1));
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper")
            .field("id", &self.id())
            .field("engine", &self.info().label)
            .finish_non_exhaustive()
    }
}
