//! How long a busy machine kept this process from running.
//!
//! A promise about time is one about a process that runs. On a machine with
//! more work than processors, threads that are ready wait for their turn, and
//! that is no fault of whoever is judged. The kernel counts it per thread; so
//! a bound stays as sharp as the promise on a quiet machine, and gives on a
//! busy one exactly what the machine took.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use lockkeeper::{Clock, Moment};

/// How often the count begins anew before something is due.
const LOOK: Duration = Duration::from_millis(20);

/// Waits for `signal`, and says how late it came after `due`, less the time
/// that threads of this process were kept from running just before and since.
pub async fn lateness<T>(due: Moment, signal: impl Future<Output = T>) -> (T, Duration) {
    let (clock, mut starved) = (Clock::system(), Starved::from_now());
    let mut signal = pin!(signal);
    let output = loop {
        tokio::select! {
            biased;
            output = &mut signal => break output,
            () = tokio::time::sleep(LOOK) => {
                // What was counted after it was due is what we are after.
                let anew = Starved::from_now();
                if clock.now() < due {
                    starved = anew;
                }
            }
        }
    };
    let late = clock.now().since(due);
    (output, late.saturating_sub(starved.so_far()))
}

/// The time that threads of this process have spent waiting for a processor,
/// from a moment on.
#[derive(Debug)]
struct Starved(HashMap<String, u64>);

impl Starved {
    /// Counts from now on.
    fn from_now() -> Self {
        Starved(delays())
    }

    /// How long threads have waited since, all of them together.
    fn so_far(&self) -> Duration {
        let since = |(thread, nanos): (String, u64)| {
            nanos.saturating_sub(self.0.get(&thread).copied().unwrap_or(0))
        };
        Duration::from_nanos(delays().into_iter().map(since).sum())
    }
}

/// Per thread, the nanoseconds it was ready to run and did not; nothing where
/// the kernel does not tell.
fn delays() -> HashMap<String, u64> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return HashMap::new() };
    let delay = |thread: std::fs::DirEntry| {
        // A thread may end while we look.
        let stat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let waited = stat.split_whitespace().nth(1)?.parse().ok()?;
        Some((thread.file_name().into_string().ok()?, waited))
    };
    threads.flatten().filter_map(delay).collect()
}
