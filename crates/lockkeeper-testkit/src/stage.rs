//! An engine that is up, and the ways a case gets at it.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lockkeeper::engine::{Connect, EngineInfo, Kind, Status};
use lockkeeper::layer::faults::Faults;
use lockkeeper::{ErrorKind, Keeper, LockOptions};

/// An engine that is up for the length of a case.
#[derive(Debug)]
pub struct Stage {
    url: String,
    anchor: Keeper,
    /// Whatever keeps the engine up; ended with the stage.
    _server: Box<dyn Any + Send + Sync>,
}

impl Stage {
    /// Sets a stage on the engine at `url`, kept up by `server`.
    pub async fn new(url: impl Into<String>, server: impl Any + Send + Sync) -> Self {
        let url = url.into();
        let anchor = Keeper::connect(&url).await.expect("the engine of the stage opens");
        Stage { url, anchor, _server: Box::new(server) }
    }

    /// Where the engine is, for child processes.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What the engine says of itself.
    pub fn info(&self) -> &EngineInfo {
        self.anchor.info()
    }

    /// A keeper of its own: another client of the same engine.
    pub async fn keeper(&self) -> Keeper {
        Keeper::connect(&self.url).await.expect("a further keeper opens")
    }

    /// A keeper whose engine calls can be made to fail.
    pub async fn faulty(&self) -> (Keeper, Faults) {
        let faults = Faults::around(self.connect());
        let keeper = Keeper::new(faults.clone()).await.expect("a faulty keeper opens");
        (keeper, faults)
    }

    /// The engine, to be wrapped.
    pub fn connect(&self) -> Arc<dyn Connect> {
        lockkeeper::engine::at(&self.url).expect("the URL of the stage is good")
    }

    /// A name nobody has used.
    pub fn name(&self, label: &str) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("{label}/{}/{number}", std::process::id())
    }

    /// The shortest lease that tests can work with on this engine.
    pub fn short_lease(&self) -> Duration {
        self.info().min_lease.max(Duration::from_millis(900))
    }

    /// Options with the short lease and a wait that bounds a hanging case.
    pub fn options(&self) -> LockOptions {
        LockOptions::default()
            .with_lease(self.short_lease())
            .with_wait(self.short_lease() * 4 + Duration::from_secs(10))
    }

    /// What the engine knows of a name, asked by a bystander.
    pub async fn status(&self, name: &str) -> Status {
        self.anchor.status(name).await.expect("the bystander gets an answer")
    }

    /// Waits until nobody holds a name or waits for it.
    pub async fn deserted(&self, name: &str) {
        let deserted = async || {
            let status = self.status(name).await;
            status.holders.is_empty() && status.waiters.is_empty()
        };
        let limit = self.short_lease() + Duration::from_secs(8);
        if !eventually(limit, deserted).await {
            panic!("left behind under {name:?}: {:?}", self.status(name).await);
        }
    }

    /// Waits until this many wait for a name.
    pub async fn waiters(&self, name: &str, count: usize) {
        let waiting = async || self.status(name).await.waiters.len() == count;
        if !eventually(Duration::from_secs(10), waiting).await {
            panic!("expected {count} waiters under {name:?}: {:?}", self.status(name).await);
        }
    }

    /// Checks that the engine refuses `kind` by name, if it says so.
    ///
    /// A case that needs the kind ends here on such an engine: the refusal is
    /// then what it has shown.
    pub async fn refuses(&self, kind: Kind) -> bool {
        if self.info().kinds.contains(&kind) {
            return false;
        }
        let name = self.name("refused");
        let error = match kind {
            Kind::Mutex => self.anchor.mutex(&name).lock().await.map(drop),
            Kind::ReadWrite => self.anchor.rwlock(&name).read().await.map(drop),
            Kind::Semaphore => self.anchor.semaphore(&name, 2).acquire().await.map(drop),
            Kind::Latch => self.anchor.latch(&name).set(1).await.map(drop),
            Kind::Fence => self.anchor.fence(&name).highest().await.map(drop),
        }
        .expect_err("what the engine denies is refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        true
    }
}

/// Asks again and again until it is so; false if it is not within `limit`.
pub async fn eventually(limit: Duration, mut is_so: impl AsyncFnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if is_so().await {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The seed of a random test, said aloud; `LOCKKEEPER_SEED` gives another.
pub fn seed() -> u64 {
    let given = std::env::var("LOCKKEEPER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..1 << 40));
    println!("LOCKKEEPER_SEED={seed} repeats the choices of this run");
    seed
}

/// Polls a future once, and gives its output if that was enough.
pub fn poll_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Waits for `future`, and panics with `what` if it takes longer than `limit`.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} took longer than {limit:?}"),
    }
}
