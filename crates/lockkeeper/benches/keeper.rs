//! What a keeper costs: `cargo bench -p lockkeeper --bench keeper`.
//!
//! Everything in one run, so that the ratios mean something on a noisy machine:
//! a lock and its release through the keeper on `memory:`, beside two bare
//! request-replies between two threads over the same kind of channel, beside
//! tokio's own mutex; the allocations of a pair; the cost of keeping many
//! guards alive.
//!
//! `cargo bench -p lockkeeper --bench keeper -- keep 10000 [SECONDS]` runs the
//! last part alone, so that `valgrind --tool=callgrind` can count instructions,
//! which no neighbour disturbs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Clock, Keeper, LockOptions, Memory};
use tokio::sync::{mpsc, oneshot};

/// Counts allocations of all threads.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: passes every call on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUNDS: usize = 9;
const PAIRS: usize = 20_000;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let Some(at) = words.iter().position(|word| word == "keep") {
        let number = |offset: usize| words.get(at + offset)?.parse::<usize>().ok();
        return keep_alive(number(1).unwrap_or(1_000), number(2).unwrap_or(60) as u64);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        pairs().await;
    });
    for guards in [1_000, 10_000, 100_000] {
        keep_alive(guards, 60);
    }
}

/// Lock and release, against the floor.
async fn pairs() {
    let keeper = Keeper::new(Memory::private()).await.unwrap();
    let mutex = keeper.mutex("bench");
    let floor = Echo::start();
    let tokio_mutex = tokio::sync::Mutex::new(());
    let (mut keeper_ns, mut floor_ns, mut tokio_ns) = (Vec::new(), Vec::new(), Vec::new());
    let mut allocations = 0;
    // Rounds of each in turn, so that a noisy neighbour hits all alike.
    for _ in 0..ROUNDS {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let start = Instant::now();
        for _ in 0..PAIRS {
            let guard = mutex.lock().await.unwrap();
            let _ = black_box(guard.release().await.unwrap());
        }
        keeper_ns.push(per_pair(start));
        allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;

        let start = Instant::now();
        for _ in 0..PAIRS {
            floor.ask().await;
            floor.ask().await;
        }
        floor_ns.push(per_pair(start));

        let start = Instant::now();
        for _ in 0..PAIRS {
            drop(black_box(tokio_mutex.lock().await));
        }
        tokio_ns.push(per_pair(start));
    }
    let ratios = keeper_ns.iter().zip(&floor_ns).map(|(keeper, floor)| keeper / floor).collect();
    println!("lock + release on memory:          {:>9.0} ns", median(keeper_ns));
    println!("two bare request-replies (floor):  {:>9.0} ns", median(floor_ns));
    println!("tokio::sync::Mutex, for scale:     {:>9.0} ns", median(tokio_ns));
    println!("ratio to the floor, median of {ROUNDS}:   {:>9.2}", median(ratios));
    println!("allocations per pair:              {:>9.1}", allocations as f64 / PAIRS as f64);
}

fn per_pair(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / PAIRS as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A thread that answers, and does nothing else.
struct Echo(mpsc::UnboundedSender<oneshot::Sender<()>>);

impl Echo {
    fn start() -> Self {
        let (sender, mut inbox) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                while let Some(reply) = inbox.recv().await {
                    let _ = reply.send(());
                }
            });
        });
        Echo(sender)
    }

    async fn ask(&self) {
        let (reply, answer) = oneshot::channel();
        self.0.send(reply).unwrap();
        answer.await.unwrap();
    }
}

/// CPU time of renewals, in simulated time: nothing else runs.
fn keep_alive(guards: usize, seconds: u64) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let keeper = Keeper::on_this_runtime(Memory::private(), Clock::tokio()).await.unwrap();
        let lease = Duration::from_secs(30);
        let options = LockOptions::default().with_lease(lease);
        let mut held = Vec::with_capacity(guards);
        for number in 0..guards {
            let mutex = keeper.mutex(format!("held/{number}")).with_options(options.clone());
            held.push(mutex.lock().await.unwrap());
        }
        let start = Instant::now();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let spent = start.elapsed();
        assert!(held.iter().all(|guard| guard.is_held()));
        // A round of renewals every ten seconds.
        let rounds = (seconds / 10) as f64;
        let each = spent.as_nanos() as f64 / (guards as f64 * rounds);
        let share = spent.as_secs_f64() / seconds as f64 * 100.0;
        println!(
            "keep-alive of {guards:>7} guards, 30 s leases, {seconds} s: {:>7.1} ms CPU \
             ({share:.2} % of a core, {each:.0} ns per renewal)",
            spent.as_secs_f64() * 1000.0
        );
    });
}
