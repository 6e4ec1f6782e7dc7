//! *solo* and *many*: lock and release, again and again, with a name per task.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::Keeper;
use tokio::task::JoinSet;

use super::floor::{Floor, Side};
use super::meter::{Cost, Meter, Sample};
use crate::exit::{self, Failure};

/// Both sides of a scenario, on the same names.
pub(super) struct Pairs {
    pub(super) keeper: Keeper,
    pub(super) floor: Arc<dyn Floor>,
    pub(super) names: Vec<String>,
}

impl Pairs {
    /// Measures one side once.
    pub(super) async fn sample(
        &self,
        side: Side,
        warm_up: Duration,
        span: Duration,
    ) -> Result<Sample, Failure> {
        self.run(side, warm_up).await?;
        // Between two idle moments, so that the count is exact.
        let before = self.floor.counters(side).await?;
        let (spans, took) = self.run(side, span).await?;
        let after = self.floor.counters(side).await?;
        let cost = before.zip(after).map(|(before, after)| {
            let (commands, cpu) = after.since(before);
            Cost { operations: spans.len() as u64, commands, cpu, ..Cost::default() }
        });
        Ok(Sample { spans, took, cost })
    }

    async fn run(&self, side: Side, span: Duration) -> Result<(Vec<u64>, Duration), Failure> {
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for name in &self.names {
            let (name, keeper, floor) = (name.clone(), self.keeper.clone(), self.floor.clone());
            let mut meter = Meter::start(start + span, self.names.len());
            tasks.spawn(async move {
                match side {
                    Side::Lockkeeper => lock_and_release(&keeper, &name, &mut meter).await?,
                    Side::Floor => floor.pairs(&name, &mut meter).await?,
                }
                Ok::<_, Failure>(meter.spans)
            });
        }
        let mut spans = Vec::new();
        while let Some(done) = tasks.join_next().await {
            let broke = |_| Failure::new(exit::FAILED, "bench", "bench: a task broke off");
            spans.append(&mut done.map_err(broke)??);
        }
        Ok((spans, start.elapsed()))
    }
}

async fn lock_and_release(keeper: &Keeper, name: &str, meter: &mut Meter) -> Result<(), Failure> {
    let mutex = keeper.mutex(name);
    while meter.runs() {
        let _ = mutex.lock().await?.release().await?;
        meter.tick();
    }
    Ok(())
}
