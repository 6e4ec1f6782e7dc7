//! `run`: a command under a lock.
//!
//! The order is the point: lock, start, look after, end the whole process
//! group, release, exit. The lock is never free while anything of the group runs.

mod acquire;
mod child;
pub(crate) mod environment;
mod held;
mod lost;
mod plan;
pub(crate) mod signals;
mod supervise;
mod terminal;

use std::time::Duration;

use lockkeeper::engine::Status;
use lockkeeper::{Keeper, Released};
use serde_json::json;
use tokio::time::Instant;

use self::acquire::{Asked, acquire};
use self::child::{Exit, Group};
use self::environment::{Environment, Nesting, nesting, still_held};
use self::held::Held;
use self::lost::Watch;
use self::plan::Plan;
use self::signals::Signals;
use self::supervise::{Ended, Supervisor, Why};
use self::terminal::Terminal;
use crate::Outcome;
use crate::args::{Common, RunArgs, Unavailable};
use crate::exit::{self, Failure};
use crate::keeper;
use crate::output::{Output, millis, span};
use crate::view;

/// Runs a command under a lock and returns the code to exit with.
pub(crate) async fn run(common: &Common, args: RunArgs, output: &Output) -> Outcome {
    let plan = Plan::of(args)?;
    let mut signals = Signals::listen()?;
    keeper::warn_of_secret(common, output);
    let keeper = tokio::select! {
        keeper = keeper::open(common, output) => match keeper {
            Ok(keeper) => keeper,
            Err(failure) => return unavailable(failure, &plan, &mut signals, output).await,
        },
        signal = signals.next() => return Ok(exit::by_signal(signal)),
    };
    let run = Run { plan: &plan, keeper: &keeper, url: &common.engine, output };
    let outcome = run.under_lock(&mut signals).await;
    keeper::close(&keeper).await;
    match outcome {
        Ok(ended) => Ok(farewell(&ended)),
        Err(failure) if failure.code == exit::UNREACHABLE => {
            unavailable(failure, &plan, &mut signals, output).await
        }
        Err(failure) => Err(failure),
    }
}

/// One run: what was asked for, and with which engine.
struct Run<'a> {
    plan: &'a Plan,
    keeper: &'a Keeper,
    url: &'a str,
    output: &'a Output,
}

/// How a run is to end: with a code, or by the signal that ended its command.
struct End {
    code: u8,
    /// Die by SIGINT like the command; `true` if our group has not heard of it.
    interrupted: Option<bool>,
}

impl From<u8> for End {
    fn from(code: u8) -> Self {
        End { code, interrupted: None }
    }
}

impl Run<'_> {
    async fn under_lock(&self, signals: &mut Signals) -> Result<End, Failure> {
        let plan = self.plan;
        if let Some(environment) = self.covered().await? {
            let ended = start(plan, &environment, None, signals, self.output).await?;
            return Ok(self.conclude(&ended, None));
        }
        let asked_at = Instant::now();
        let wish = plan.wish.clone();
        let held = match acquire(self.keeper, wish, plan.patient, signals, self.output).await? {
            Asked::Held(held) => held,
            Asked::Busy(status) => return self.busy(status, asked_at.elapsed()).map(End::from),
            Asked::Interrupted(signal) => return Ok(exit::by_signal(signal).into()),
        };
        let granted_at = Instant::now();
        self.tell_acquired(&held, asked_at.elapsed());
        let environment = Environment::of(held.hold(), held.token(), self.keeper, self.url);
        let ended =
            start(plan, &environment, Some((self.keeper, held.hold())), signals, self.output).await;
        let released = self.release(held, signals).await;
        let end = self.conclude(&ended?, released.as_ref());
        self.stay(granted_at, signals).await;
        Ok(end)
    }

    /// The environment of a lock that this process tree holds already.
    async fn covered(&self) -> Result<Option<Environment>, Failure> {
        let wish = &self.plan.wish;
        let owner = match nesting(self.keeper, &wish.name, wish.mode) {
            Nesting::Apart => return Ok(None),
            Nesting::Covered { owner } => owner,
            Nesting::Deadlock => {
                let text = format!(
                    "run {:?}: this process tree holds it shared; to hold it alone it would wait for itself",
                    wish.name
                );
                return Err(Failure::usage(text).hint("take it with --exclusive further out"));
            }
        };
        let status =
            keeper::answer(self.keeper, self.output, self.keeper.status(&wish.name)).await?;
        Ok(still_held(&status, &owner).map(|outer| {
            let fields = json!({ "name": wish.name, "token": outer.token, "owner": outer.owner });
            self.output.event("nested", fields);
            Environment::nested(&wish.name, &outer)
        }))
    }

    fn busy(&self, status: Option<Status>, waited: Duration) -> Result<u8, Failure> {
        let (plan, holders) = (self.plan, status.map(|status| status.holders).unwrap_or_default());
        let code = if plan.skip { 0 } else { plan.busy_code };
        let fields = json!({
            "name": plan.wish.name,
            "holders": holders.iter().map(view::holder).collect::<Vec<_>>(),
            "waited_ms": millis(waited),
            "exit_code": code,
        });
        self.output.event("busy", fields);
        if plan.skip || self.output.json {
            return Ok(code);
        }
        let who = match holders.is_empty() {
            true => "is not free".to_owned(),
            false => format!("is held by {}", view::holders(&holders)),
        };
        let mut text = format!("busy: {:?} {who}", plan.wish.name);
        if plan.patient {
            text.push_str(&format!("; gave up after {}", span(waited)));
        }
        Err(Failure::new(code, "busy", text))
    }

    fn tell_acquired(&self, held: &Held, waited: Duration) {
        let (hold, token) = (held.hold(), held.token());
        let fields = json!({
            "name": hold.name(),
            "owner": hold.claim_id().to_string(),
            "token": token,
            "engine": self.keeper.info().label,
            "waited_ms": millis(waited),
        });
        self.output.event("acquired", fields);
        // Who was told that we wait is told that it is over.
        if waited >= Duration::from_secs(1) {
            let token = token.map_or(String::new(), |token| format!(", token {token}"));
            self.output.say(&format!("acquired {:?} after {}{token}", hold.name(), span(waited)));
        }
    }

    /// Gives the lock back; `None` if that could not be found out.
    async fn release(&self, held: Held, signals: &mut Signals) -> Option<Released> {
        let name = &self.plan.wish.name;
        let waiting = format!("releasing {name:?}: waiting for {}", self.keeper.info().label);
        let release = keeper::patiently(self.output, &waiting, held.release());
        let released = tokio::select! {
            released = release => released,
            // The release goes on in the background for as long as we live.
            () = ended_by(signals) => return None,
        };
        match released {
            Ok(released) => Some(released),
            Err(error) => {
                self.output.say(&format!("{error}; the lease has ended the lock by now"));
                None
            }
        }
    }

    fn conclude(&self, ended: &Ended, released: Option<&Released>) -> End {
        let Ended { exit, why, had_terminal } = ended;
        let lost = match (why, released) {
            (Some(Why::Lost), _) => true,
            (_, Some(Released::AlreadyLost(cause))) => {
                let name = &self.plan.wish.name;
                self.output.say(&format!("lost {name:?} before the command ended: {cause}"));
                true
            }
            _ => false,
        };
        let (code, outcome) = match (lost, why) {
            (true, _) => (exit::LOST, "lost"),
            (_, Some(Why::Timeout)) => (exit::TIMEOUT, "timeout"),
            _ => (exit.code(), "exited"),
        };
        let (child_code, child_signal) = match *exit {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal(signal) => (None, Some(signal)),
        };
        let fields = json!({
            "name": self.plan.wish.name, "outcome": outcome, "exit_code": code,
            "command_exit_code": child_code, "command_signal": child_signal,
        });
        self.output.event("finished", fields);
        let by_ctrl_c = *exit == Exit::Signal(libc::SIGINT) && outcome == "exited";
        End { code, interrupted: by_ctrl_c.then_some(*had_terminal) }
    }

    /// Stays until min-hold is over, where the name would be free without us.
    async fn stay(&self, granted_at: Instant, signals: &mut Signals) {
        let until = granted_at + self.plan.wish.options.min_hold;
        if self.keeper.info().lingers || until <= Instant::now() {
            return;
        }
        let left = span(until - Instant::now());
        let over = async {
            keeper::patiently(
                self.output,
                &format!(
                    "keeping {:?} closed for another {left} (--min-hold)",
                    self.plan.wish.name
                ),
                tokio::time::sleep_until(until),
            )
            .await;
        };
        tokio::select! {
            () = over => {}
            () = ended_by(signals) => {}
        }
    }
}

/// Starts the command and looks after it until its whole group is gone.
async fn start(
    plan: &Plan,
    environment: &Environment,
    held: Option<(&lockkeeper::Keeper, &lockkeeper::Hold)>,
    signals: &mut Signals,
    output: &Output,
) -> Result<Ended, Failure> {
    signals.listen_for_jobs()?;
    let terminal = Terminal::open();
    let now = Instant::now();
    let watch = held.map(|(keeper, hold)| {
        let max_end = plan.max_end(now);
        Watch::new(keeper, hold, plan.on_lost, plan.kill_after, max_end)
    });
    let handed_over = terminal.to_hand_over().is_some();
    let group = Group::start(&plan.command, environment, &terminal);
    if group.is_err() && handed_over {
        terminal.reclaim();
    }
    let supervisor = Supervisor {
        group: group?,
        signals,
        terminal: &terminal,
        output,
        watch,
        kill_after: plan.kill_after,
        timeout_at: plan.timeout.map(|limit| now + limit),
        name: &plan.wish.name,
        why: None,
        kill_at: None,
        termed: false,
        stopping: false,
    };
    Ok(supervisor.see_through().await)
}

/// What the plan says to do without an engine.
async fn unavailable(
    failure: Failure,
    plan: &Plan,
    signals: &mut Signals,
    output: &Output,
) -> Outcome {
    if failure.code != exit::UNREACHABLE || plan.if_unavailable == Unavailable::Fail {
        return Err(failure);
    }
    let skip = plan.if_unavailable == Unavailable::Skip;
    let then = if skip { "skipped" } else { "running WITHOUT the lock" };
    output.event("unavailable", json!({ "message": failure.message, "ran": !skip }));
    output.say(&format!("{}; {then} (--if-unavailable)", failure.message));
    if skip {
        return Ok(0);
    }
    let ended = start(plan, &Environment::unlocked(), None, signals, output).await?;
    let code = if ended.why == Some(Why::Timeout) { exit::TIMEOUT } else { ended.exit.code() };
    Ok(code)
}

/// Waits for a signal that asks us to end.
async fn ended_by(signals: &mut Signals) {
    loop {
        let signal = signals.next().await;
        if [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT].contains(&signal) {
            return;
        }
    }
}

/// Ends like the command did. A shell ends its loop only if we die by SIGINT too.
fn farewell(end: &End) -> u8 {
    if let Some(alone) = end.interrupted
        && Terminal::open().is_ours()
    {
        crate::sys::die_by(libc::SIGINT, alone);
    }
    end.code
}
