//! Whether the keeper's thread stays awake for what comes next.
//!
//! To fall asleep and be woken takes a thread longer than many an answer of a
//! server nearby. Where one thing follows the other so fast, as when a task
//! locks and releases in a loop, the thread looks again and again for a moment
//! instead. It learns this from its last waits, and a single look in vain ends
//! it: at rest, or with a server far away, a keeper costs nothing.

use std::thread::available_parallelism;
use std::time::Duration;

use crate::clock::Moment;

/// How long a wait is worth staying awake for.
const SHORT: Duration = Duration::from_micros(100);
/// How many short waits in a row make the next one likely to be short.
const STREAK: u32 = 16;

#[derive(Debug, Default)]
pub(super) struct Awake {
    /// Whether there is a thread to keep awake, and a core beside its own.
    able: bool,
    since: Moment,
    streak: u32,
}

impl Awake {
    pub(super) fn new(own_thread: bool) -> Self {
        let able = own_thread && available_parallelism().is_ok_and(|cores| cores.get() > 1);
        Awake { able, ..Awake::default() }
    }

    /// A wait begins.
    pub(super) fn begin(&mut self, now: Moment) {
        self.since = now;
    }

    /// Whether to look again at once.
    pub(super) fn stays(&self, now: impl FnOnce() -> Moment) -> bool {
        self.able && self.streak >= STREAK && now().since(self.since) < SHORT
    }

    /// The wait is over.
    pub(super) fn end(&mut self, now: Moment) {
        let short = now.since(self.since) < SHORT;
        self.streak = if short { self.streak.saturating_add(1) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use crate::Keeper;

    #[test]
    fn short_waits_keep_it_awake_and_a_long_one_ends_that() {
        let at = |micros| Moment::from_nanos(1_000_000_000 + micros * 1_000);
        let mut awake = Awake { able: true, ..Awake::default() };
        let mut now = 0;
        let mut waits = |awake: &mut Awake, micros: u64| {
            awake.begin(at(now));
            let stayed = awake.stays(|| at(now + micros.min(99)));
            now += micros;
            let stays_still = awake.stays(|| at(now));
            awake.end(at(now));
            (stayed, stays_still)
        };
        for _ in 0..STREAK {
            assert_eq!(waits(&mut awake, 40), (false, false), "nothing is learned yet");
        }
        assert_eq!(waits(&mut awake, 40), (true, true));
        assert_eq!(waits(&mut awake, 5_000), (true, false), "it falls asleep in the end");
        assert_eq!(waits(&mut awake, 40), (false, false), "it was in vain");
        awake = Awake { streak: STREAK, ..Awake::default() };
        assert_eq!(waits(&mut awake, 40), (false, false), "there is but one core");
    }

    /// In hundredths of a second; the keeper's own thread says who it is.
    #[cfg(target_os = "linux")]
    async fn busy_for(keeper: &Keeper) -> u64 {
        let stat = keeper.link().call("look", |_| async {
            Ok(std::fs::read_to_string("/proc/thread-self/stat").expect("a thread"))
        });
        let stat = stat.await.unwrap();
        let after_name = stat.rsplit_once(')').expect("a name").1;
        let times = after_name.split_whitespace().skip(11).take(2);
        times.map(|time| time.parse::<u64>().expect("a time")).sum()
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_keeper_at_rest_sleeps() {
        let keeper = Keeper::connect("memory:").await.unwrap();
        let mutex = keeper.mutex("busy");
        for _ in 0..2_000 {
            let _ = mutex.lock().await.unwrap().release().await.unwrap();
        }
        let guard = mutex.lock().await.unwrap();
        let before = busy_for(&keeper).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let busy = busy_for(&keeper).await - before;
        assert!(busy <= 10, "{busy} hundredths of a second of 50");
        drop(guard);
    }
}
