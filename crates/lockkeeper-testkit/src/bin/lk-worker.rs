//! A process that takes locks as it is told, one command a line.
//!
//! - `lock NAME LEASE_MS [DELAY_MS]`: waits, and says `granted TOKEN INSTANT`;
//! - `state`, `release`, `exit`: what the guard says, how its release ended;
//! - `watch`: says what the first look after a stop of the process saw;
//! - `fork`: makes a child, and says whether it has the locks of its parent;
//! - `leave`: makes a child that lives on for ten seconds, and says its pid;
//! - `hammer COUNT SEED NAME…`: locks COUNT times one of the names at random,
//!   then says one line a stay, and `done`;
//! - `watched COUNT SEED FOLDER NAME…`: the same, with files in FOLDER that
//!   only one at a time may have;
//! - `witness KIND NAME COUNT FOLDER`: the same on one name of any kind, with
//!   a witness that several programs share.

use std::fs::{self, File};
use std::io::BufRead;
use std::path::Path;
use std::time::Duration;

use lockkeeper::blocking::{Guard, Keeper};
use lockkeeper::{Clock, ErrorKind, LockOptions, State};
use lockkeeper_testkit::history::Recorder;
use lockkeeper_testkit::witness;

fn main() {
    let url = std::env::var("LOCKKEEPER_URL").expect("LOCKKEEPER_URL says which engine");
    let keeper = Keeper::connect(&url).expect("the engine opens");
    let mut held: Option<Guard> = None;
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["lock", name, ref times @ ..] => {
                let options = options(times);
                match keeper.mutex(name).with_options(options).lock() {
                    Ok(guard) => {
                        let now = Clock::system().now().as_nanos();
                        println!("granted {} {now}", guard.token());
                        held = Some(guard);
                    }
                    Err(error) => println!("error {}", error.kind().as_str()),
                }
            }
            ["state"] => println!("{}", held.as_ref().map_or("none".to_owned(), describe)),
            ["release"] => match held.take().map(Guard::release) {
                Some(Ok(outcome)) => println!("{outcome:?}"),
                other => println!("{other:?}"),
            },
            ["watch"] => watch(held.as_ref().expect("a guard to watch")),
            ["fork"] => fork(&keeper, held.as_ref().expect("a guard to inherit")),
            ["leave"] => println!("{}", leave()),
            ["hammer", count, seed, ref names @ ..] => {
                hammer(&keeper, number(count) as u32, number(seed), None, names);
            }
            ["watched", count, seed, folder, ref names @ ..] => {
                let folder = Some(Path::new(folder));
                hammer(&keeper, number(count) as u32, number(seed), folder, names);
            }
            ["witness", kind, name, count, folder] => {
                witness::visit(&keeper, kind, name, number(count) as u32, folder.as_ref());
                println!("done");
            }
            ["exit"] => return,
            _ => println!("error unknown command {line:?}"),
        }
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

/// The lease, and perhaps the lock-delay, in milliseconds.
fn options(times: &[&str]) -> LockOptions {
    let mut times = times.iter().map(|word| Duration::from_millis(number(word)));
    let lease = times.next().expect("a lease");
    let delay = times.next().unwrap_or_default();
    LockOptions::default().with_lease(lease).with_lock_delay(delay)
}

fn describe(guard: &Guard) -> String {
    match guard.state() {
        State::Held => "held".to_owned(),
        State::AtRisk => "at_risk".to_owned(),
        State::Lost(cause) => format!("lost {}", cause.as_str()),
    }
}

/// Looks at the guard without pause; after a gap in time (the process was
/// stopped) says what the very first look saw.
fn watch(guard: &Guard) {
    let clock = Clock::system();
    // Read before we say that we watch: the stop may follow at once.
    let mut last = clock.now();
    println!("watching");
    loop {
        let now = clock.now();
        // A look from before the gap says nothing about the time after it.
        let held = guard.is_held();
        if now.since(last) > Duration::from_millis(400) {
            println!("first look after {:?}: held {held}", now.since(last));
            return;
        }
        last = now;
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Forks: the child has the memory, but not the locks, and releases nothing.
fn fork(keeper: &Keeper, guard: &Guard) {
    // SAFETY: the child only looks at memory, posts to a channel whose lock no
    // other thread of the child can hold for long, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let lost = !guard.is_held();
            let refused = keeper.mutex("other").try_lock();
            let refused = refused.is_err_and(|error| error.kind() == ErrorKind::Invalid);
            let released = guard.verify().is_err();
            let code = if lost && refused && released { 0 } else { 1 };
            // What the parent owns is dropped here too, and must not reach
            // the engine.
            drop(keeper.clone());
            // SAFETY: ends the child without running the parent's clean-up.
            unsafe { libc::_exit(code) };
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child just made, with a valid pointer.
            unsafe { libc::waitpid(child, &mut status, 0) };
            println!("child said {status}, parent {}", describe(guard));
        }
    }
}

/// Forks: the child has our files, and whatever the kernel proves by them.
fn leave() -> i32 {
    // SAFETY: the child calls nothing but async-signal-safe functions.
    unsafe {
        match libc::fork() {
            0 => {
                libc::sleep(10);
                libc::_exit(0)
            }
            pid => pid,
        }
    }
}

/// Locks again and again, and takes down every stay.
fn hammer(keeper: &Keeper, count: u32, seed: u64, folder: Option<&Path>, names: &[&str]) {
    let mut random = fastrand::Rng::with_seed(seed);
    let recorder = Recorder::new();
    for _ in 0..count {
        let name = names[random.usize(..names.len())];
        let (arrival, guard) = loop {
            let arrival = recorder.now();
            match keeper.mutex(name).lock() {
                Ok(guard) => break (arrival, guard),
                // Cut off for so long that the keeper gave up: a new arrival.
                Err(error) if error.is_transient() => eprintln!("hammer: {error}"),
                Err(error) => panic!("no lock: {error}"),
            }
        };
        let entry = recorder.enter(name, arrival, guard.token());
        let file = folder.map(|folder| folder.join(format!("inside-{name}")));
        if let Some(file) = &file {
            File::create_new(file).unwrap_or_else(|error| panic!("two are in {name}: {error}"));
        }
        if random.u8(..) < 8 {
            std::thread::sleep(Duration::from_micros(random.u64(..500)));
        }
        if guard.is_held() {
            recorder.leave(entry);
        }
        if let Some(file) = &file {
            fs::remove_file(file).expect("the file was ours");
        }
        let _ = guard.release();
    }
    for entry in recorder.entries() {
        println!("{entry}");
    }
    println!("done");
}
