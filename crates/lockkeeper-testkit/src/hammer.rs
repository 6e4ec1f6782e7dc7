//! Processes that hammer a few names, undisturbed or cut off again and again.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use crate::child::Worker;
use crate::history::History;
use crate::proxy::Proxy;

/// How many processes lock which names, and how often.
#[derive(Clone, Debug)]
pub struct Hammer {
    /// The kit's `lk-worker`.
    pub program: PathBuf,
    /// What they lock, at random.
    pub names: Vec<String>,
    /// How many there are.
    pub processes: u64,
    /// How many acquisitions each makes.
    pub each: u32,
    /// How long that may take.
    pub limit: Duration,
    /// Where files are to bear witness that each was alone, if anywhere.
    pub watched: Option<PathBuf>,
}

impl Hammer {
    /// Eight processes, a hundred acquisitions each.
    pub fn new(program: impl Into<PathBuf>, names: &[impl ToString]) -> Self {
        Hammer {
            program: program.into(),
            names: names.iter().map(ToString::to_string).collect(),
            processes: 8,
            each: 100,
            limit: Duration::from_secs(400),
            watched: None,
        }
    }

    /// How many acquisitions there are in all.
    pub fn total(&self) -> usize {
        self.processes as usize * self.each as usize
    }

    /// Lets all processes hammer the names on the engine at `url`, and puts
    /// their histories together.
    pub async fn on(&self, url: &str, seed: u64) -> History {
        let workers = self.start(url).await;
        self.swing(workers, seed).await
    }

    /// Starts the processes, and waits until all are connected.
    async fn start(&self, url: &str) -> Vec<Worker> {
        let each = (0..self.processes).map(|_| {
            let (program, url) = (self.program.clone(), url.to_owned());
            tokio::task::spawn_blocking(move || Worker::start(program, &url))
        });
        let workers = futures_util::future::join_all(each).await;
        workers.into_iter().map(|worker| worker.expect("a worker")).collect()
    }

    /// Lets them hammer, and ends them.
    async fn swing(&self, workers: Vec<Worker>, seed: u64) -> History {
        let each = (seed..).zip(workers).map(|(seed, mut worker)| {
            let (order, limit) = (self.order(seed), self.limit);
            tokio::task::spawn_blocking(move || {
                worker.send(&order);
                let entries = worker.entries(limit);
                worker.finish();
                entries
            })
        });
        let entries = futures_util::future::join_all(each).await;
        History::new(entries.into_iter().flat_map(|entries| entries.expect("a worker")))
    }

    /// The same on an engine that is reached through `proxy`, which cuts all
    /// connections after pauses of so many milliseconds; returns also how
    /// often.
    pub async fn cut_off(
        &self,
        url: &str,
        seed: u64,
        proxy: &Proxy,
        pauses: Range<u64>,
    ) -> (History, u32) {
        // Workers that cannot even connect would tell us nothing.
        let workers = self.start(url).await;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut cuts = 0;
        let cutting = async {
            loop {
                tokio::time::sleep(Duration::from_millis(random.u64(pauses.clone()))).await;
                proxy.cut();
                cuts += 1;
            }
        };
        let history = tokio::select! {
            history = self.swing(workers, seed) => history,
            () = cutting => unreachable!("nobody ends it"),
        };
        (history, cuts)
    }

    fn order(&self, seed: u64) -> String {
        let (each, names) = (self.each, self.names.join(" "));
        match &self.watched {
            Some(folder) => format!("watched {each} {seed} {} {names}", folder.display()),
            None => format!("hammer {each} {seed} {names}"),
        }
    }
}
