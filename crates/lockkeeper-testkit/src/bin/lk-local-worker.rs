//! A process that takes locks on `local:` for tests, and is told what to do in lines.
//!
//! `lk-local-worker DIR`, then on its input:
//!
//! - `lock NAME LEASE_MS DELAY_MS` says `asked`, then `held TOKEN INSTANT`;
//! - `held` says whether the guard is held, as the first thing it does;
//! - `release` says what was found, and the instant after it;
//! - `fork` makes a child that lives on for ten seconds, and says its pid;
//! - `cycle COUNT SEED NAME…` locks COUNT times one of the names at random,
//!   with a file that only one may have as a witness, and says one line each.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::time::Duration;

use lockkeeper::{Clock, Guard, Keeper, Local, LockOptions};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let dir = std::env::args().nth(1).ok_or("which directory?")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work(Path::new(&dir)))
}

async fn work(dir: &Path) -> Outcome<()> {
    let keeper = Keeper::new(Local::at(dir)).await?;
    let mut guards: Vec<Guard> = Vec::new();
    say("ready");
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["lock", name, lease, delay] => {
                let options = LockOptions::default()
                    .with_lease(Duration::from_millis(lease.parse()?))
                    .with_lock_delay(Duration::from_millis(delay.parse()?));
                let mutex = keeper.mutex(name).with_options(options);
                say("asked");
                let guard = mutex.lock().await?;
                say(&format!("held {} {}", guard.token(), now()));
                guards.push(guard);
            }
            ["held"] => {
                let held = guards.last().is_some_and(|guard| guard.is_held());
                say(&held.to_string());
            }
            ["release"] => {
                let released = guards.pop().ok_or("nothing to release")?.release().await?;
                say(&format!("{released:?} {}", now()));
            }
            ["fork"] => say(&fork().to_string()),
            ["cycle", count, seed, names @ ..] => {
                cycle(&keeper, dir, count.parse()?, seed.parse()?, names).await?;
                say("done");
            }
            _ => return Err(format!("what is {line:?}?").into()),
        }
    }
    drop(guards);
    keeper.close().await?;
    Ok(())
}

async fn cycle(keeper: &Keeper, dir: &Path, count: u32, seed: u64, names: &[&str]) -> Outcome<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut out = io::stdout().lock();
    for _ in 0..count {
        let name = names[random.usize(..names.len())];
        let asked = now();
        let guard = keeper.mutex(name).lock().await?;
        let witness = dir.with_extension(format!("witness-{name}"));
        let alone = OpenOptions::new().write(true).create_new(true).open(&witness).is_ok();
        let entered = now();
        if random.u8(..4) == 0 {
            tokio::task::yield_now().await;
        }
        let held = guard.is_held();
        let left = now();
        if alone {
            fs::remove_file(&witness)?;
        }
        let token = guard.token();
        let _ = guard.release().await?;
        writeln!(out, "{name} {token} {asked} {entered} {left} {alone} {held}")?;
    }
    Ok(())
}

/// A child without exec: it has our files, and so keeps our file lock.
fn fork() -> i32 {
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

fn now() -> u64 {
    Clock::system().now().as_nanos()
}

fn say(line: &str) {
    println!("{line}");
}
