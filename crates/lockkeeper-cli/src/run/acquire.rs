//! Getting the lock, with a word about whom we wait for.

use std::time::Duration;

use lockkeeper::engine::{Kind, Mode, Status};
use lockkeeper::{ErrorKind, Keeper, Waiting};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::held::{Held, Wish, ask};
use super::signals::Signals;
use crate::exit::Failure;
use crate::output::{Output, millis, span};
use crate::view;

/// After this long, people are told whom they wait for.
const FIRST_WORD: Duration = Duration::from_secs(1);
/// Where a line cannot be redrawn, an unchanged wait is mentioned this often.
const REMINDER: Duration = Duration::from_secs(60);

/// How asking for the lock ended.
#[derive(Debug)]
pub(super) enum Asked {
    /// We have it.
    Held(Held),
    /// Others have it, as far as could be found out who.
    Busy(Option<Status>),
    /// A signal came while we waited.
    Interrupted(i32),
}

/// Asks for the lock and waits as long as the wish says.
pub(super) async fn acquire(
    keeper: &Keeper,
    mut wish: Wish,
    patient: bool,
    signals: &mut Signals,
    output: &Output,
) -> Result<Asked, Failure> {
    loop {
        match wait(keeper, &wish, patient, signals, output).await {
            Err(error) if wish.mode == Mode::Exclusive && error.kind() == ErrorKind::Invalid => {
                // Where others run with --shared, alone means writing.
                let status = keeper.status(&wish.name).await;
                if status.is_ok_and(|status| status.kind == Some(Kind::ReadWrite)) {
                    wish.mode = Mode::Write;
                    continue;
                }
                return Err(Failure::from(error));
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                return Ok(Asked::Busy(keeper.status(&wish.name).await.ok()));
            }
            Err(error) => return Err(explain(error, wish.mode)),
            Ok(Asked::Busy(_)) => {
                return Ok(Asked::Busy(keeper.status(&wish.name).await.ok()));
            }
            Ok(other) => return Ok(other),
        }
    }
}

async fn wait(
    keeper: &Keeper,
    wish: &Wish,
    patient: bool,
    signals: &mut Signals,
    output: &Output,
) -> lockkeeper::Result<Asked> {
    let (tell, told) = watch::channel(None::<Waiting>);
    let tell = move |waiting: &Waiting| {
        tell.send_replace(Some(waiting.clone()));
    };
    let mut asking = std::pin::pin!(ask(keeper, wish, patient, tell));
    let mut notice = Notice::new(wish, keeper, output);
    let mut ticks = interval_at(Instant::now() + FIRST_WORD, Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            answer = &mut asking => {
                return Ok(answer?.map_or(Asked::Busy(None), Asked::Held));
            }
            // Dropping the question gives up our place.
            signal = signals.next() => return Ok(Asked::Interrupted(signal)),
            _ = ticks.tick() => notice.tell(told.borrow().as_ref()),
        }
    }
}

fn explain(error: lockkeeper::Error, mode: Mode) -> Failure {
    let kind = error.kind();
    let failure = Failure::from(error);
    match (kind, mode) {
        (ErrorKind::Invalid, Mode::Read | Mode::Write) => failure.hint(
            "a name is a read/write lock from its first use on: use --exclusive where others use --shared",
        ),
        _ => failure,
    }
}

/// What people are told while they wait.
struct Notice<'a> {
    wish: &'a Wish,
    engine: &'a str,
    output: &'a Output,
    started: Instant,
    /// What was said last, and when.
    last: Option<(String, Instant)>,
}

impl<'a> Notice<'a> {
    fn new(wish: &'a Wish, keeper: &'a Keeper, output: &'a Output) -> Self {
        let (engine, started) = (&keeper.info().label, Instant::now());
        Notice { wish, engine, output, started, last: None }
    }

    /// Says whom we wait for: always on a terminal, elsewhere when it is news.
    fn tell(&mut self, waiting: Option<&Waiting>) {
        let whom = match waiting {
            Some(waiting) => {
                let claims = waiting.holders.iter().map(|holder| holder.claim.to_string());
                claims.collect::<Vec<_>>().join(" ")
            }
            None => "nobody known".to_owned(),
        };
        let is_news = match &self.last {
            None => true,
            Some((last, said)) => *last != whom || said.elapsed() >= REMINDER,
        };
        if is_news {
            self.last = Some((whom, Instant::now()));
            self.output.event("waiting", self.fields(waiting));
        }
        if is_news || self.output.lively {
            self.output.progress(&self.sentence(waiting));
        }
    }

    fn sentence(&self, waiting: Option<&Waiting>) -> String {
        let name = &self.wish.name;
        let Some(waiting) = waiting else {
            return format!("waiting for {name:?}: no word from {} yet", self.engine);
        };
        let mut text = format!("waiting for {name:?}: held by {}", view::holders(&waiting.holders));
        if waiting.holders.is_empty() {
            text = format!("waiting for {name:?}: nobody holds it, but it is not free yet");
        }
        if let Some(ahead @ 1..) = waiting.ahead {
            text.push_str(&format!("; {ahead} ahead of us"));
        }
        if self.output.lively {
            text.push_str(&format!(" ({} already, Ctrl-C gives up)", span(self.started.elapsed())));
        }
        text
    }

    fn fields(&self, waiting: Option<&Waiting>) -> serde_json::Value {
        let holders =
            waiting.map(|waiting| waiting.holders.iter().map(view::holder).collect::<Vec<_>>());
        json!({
            "name": self.wish.name,
            "holders": holders.unwrap_or_default(),
            "ahead": waiting.and_then(|waiting| waiting.ahead),
            "waited_ms": millis(self.started.elapsed()),
        })
    }
}
