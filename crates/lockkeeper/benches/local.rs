//! Acquire and release on `local:`, beside plain `flock` on an open file.
//!
//! `cargo bench -p lockkeeper --bench local` starts one and four processes per
//! row for two seconds each. "own" is a name of its own per process; "one" is
//! one name for all, so that every release hands over.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::{Keeper, Local};

type Outcome<T> = Result<T, Box<dyn Error>>;

const SPAN: Duration = Duration::from_secs(2);

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [_, "child", what, dir, name] => child(what, Path::new(dir), name),
        _ => parent(),
    }
}

fn parent() -> Outcome<()> {
    println!(
        "{:<8} {:>9} {:>5}  {:>10}  {:>9} {:>9} {:>9}",
        "what", "processes", "name", "per second", "p50 us", "p99 us", "max us"
    );
    for (what, count, shared) in [
        ("flock", 1, false),
        ("local", 1, false),
        ("flock", 4, false),
        ("local", 4, false),
        ("flock", 2, true),
        ("local", 2, true),
        ("flock", 4, true),
        ("local", 4, true),
        ("open", 1, false),
    ] {
        row(what, count, shared)?;
    }
    Ok(())
}

fn row(what: &str, count: usize, shared: bool) -> Outcome<()> {
    let temp = tempfile::tempdir()?;
    let start = |index: usize| {
        let name = if shared { "one".to_owned() } else { format!("own-{index}") };
        Command::new(std::env::current_exe()?)
            .args(["child", what])
            .arg(temp.path())
            .arg(name)
            .stdout(Stdio::piped())
            .spawn()
    };
    let children: Vec<_> = (0..count).map(start).collect::<Result<_, _>>()?;
    let mut spans: Vec<u64> = Vec::new();
    for mut child in children {
        let mut text = String::new();
        if let Some(output) = &mut child.stdout {
            output.read_to_string(&mut text)?;
        }
        spans.extend(text.lines().filter_map(|line| line.parse::<u64>().ok()));
        if !child.wait()?.success() {
            return Err("a child failed".into());
        }
    }
    spans.sort_unstable();
    let at = |part: f64| spans[((spans.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
    let rate = spans.len() as f64 / SPAN.as_secs_f64();
    let name = if shared { "one" } else { "own" };
    println!(
        "{what:<8} {count:>9} {name:>5}  {rate:>10.0}  {:>9.1} {:>9.1} {:>9.1}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    Ok(())
}

fn child(what: &str, dir: &Path, name: &str) -> Outcome<()> {
    let spans = match what {
        "flock" => {
            let file = File::create(dir.join(name))?;
            cycles(|| {
                file.lock()?;
                Ok(file.unlock()?)
            })?
        }
        "local" => {
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            let keeper = runtime.block_on(Keeper::new(Local::at(dir)))?;
            let mutex = keeper.mutex(name);
            let spans = cycles(|| {
                runtime.block_on(async {
                    let _ = mutex.lock().await?.release().await?;
                    Ok(())
                })
            })?;
            runtime.block_on(keeper.close())?;
            spans
        }
        _ => {
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            cycles(|| {
                runtime.block_on(async {
                    let keeper = Keeper::new(Local::at(dir)).await?;
                    let _ = keeper.mutex(name).lock().await?.release().await?;
                    Ok(keeper.close().await?)
                })
            })?
        }
    };
    let text: Vec<String> = spans.iter().map(u64::to_string).collect();
    println!("{}", text.join("\n"));
    Ok(())
}

/// Nanoseconds of every cycle that fits into the span.
fn cycles(mut cycle: impl FnMut() -> Outcome<()>) -> Outcome<Vec<u64>> {
    let start = Instant::now();
    let mut spans = Vec::with_capacity(1 << 20);
    let mut before = start;
    while before.duration_since(start) < SPAN {
        cycle()?;
        let after = Instant::now();
        spans.push(u64::try_from(after.duration_since(before).as_nanos())?);
        before = after;
    }
    Ok(spans)
}
