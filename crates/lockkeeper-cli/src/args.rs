//! The command line: one definition for parsing, help, man page and completions.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use lockkeeper::Token;

/// Printed under every help text and in the man page; docs/cli.md repeats it.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  the command's own code, or 128+n if signal n ended it
   64  usage error
   69  the engine cannot be reached
   75  busy: others hold the lock (-E changes it)
   76  stale token (fence)
   77  not permitted
   78  bad configuration: an engine URL that makes no sense, or an engine that cannot do this
   79  the lock was lost while the command ran, or is not held (check)
  124  the run limit (--timeout) was reached
  125  lockkeeper itself failed
  126  the command cannot be executed
  127  the command was not found";

/// Runs commands under locks, and shows who holds what.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, about, after_help = EXIT_CODES, propagate_version = true)]
#[command(max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// The engine that grants the locks.
    ///
    /// A password belongs into LOCKKEEPER_URL: other users of this host can read command lines.
    #[arg(long, value_name = "URL", global = true, env = "LOCKKEEPER_URL", hide_env_values = true)]
    #[arg(default_value = "local:", help_heading = "Everywhere")]
    pub(crate) engine: String,
    /// Speak JSON: data on stdout, the events of `run` on stderr.
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    /// Say nothing but errors.
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub(crate) quiet: bool,
    /// Log to stderr what the library does; twice for more.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Everywhere")]
    pub(crate) verbose: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock.
    #[command(after_help = EXIT_CODES)]
    Run(Box<RunArgs>),
    /// List the names in use.
    Ls {
        /// Only names that start with this.
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Show who holds a name and who waits for it, in order.
    Status {
        /// The name.
        name: String,
    },
    /// Show a name again whenever it changes, until interrupted.
    Watch {
        /// The name.
        name: String,
        /// How often to look.
        #[arg(long, value_name = "DUR", default_value = "500ms", value_parser = duration)]
        interval: Duration,
    },
    /// Take a lock away from its holder, who is told.
    Break(BreakArgs),
    /// Ask whether the lock of the surrounding `run` is still held: exit 0 or 79.
    Check {
        /// The name.
        name: String,
        /// The token it was granted; without it, what `run` left in the environment is used.
        #[arg(long, value_name = "N")]
        token: Option<Token>,
    },
    /// Show a token to a resource's fence, which refuses older ones: exit 0 or 76.
    Fence {
        /// The resource that the token protects.
        resource: String,
        /// The token, as in LOCKKEEPER_TOKEN.
        #[arg(long, value_name = "N")]
        token: Token,
    },
    /// Set, count down or wait for a latch: a count that opens at zero.
    Latch {
        /// The name.
        name: String,
        /// What to do with it.
        #[command(subcommand)]
        action: LatchAction,
    },
    /// Say what this engine promises, and what it does not.
    Info,
    /// Print the statements that make the tables of a database engine.
    Schema {
        /// The database; without it, what --engine says.
        url: Option<String>,
    },
    /// Forget the names in a database that nobody has used for long.
    Gc {
        /// The database; without it, what --engine says.
        url: Option<String>,
        /// For how long; a day at least.
        #[arg(long, value_name = "DUR", default_value = "30d", value_parser = duration)]
        idle: Duration,
    },
    /// Measure what locks cost here, beside the bare floor of the engine.
    Bench(BenchArgs),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page.
    Man,
}

/// `run`: everything after NAME belongs to the command.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// How long to wait for the lock; without it, as long as it takes.
    #[arg(short, long, value_name = "DUR", value_parser = duration, help_heading = "Waiting")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: exit 75 at once if the lock is not free.
    #[arg(short, long, conflicts_with = "wait", help_heading = "Waiting")]
    pub(crate) no_wait: bool,
    /// If others hold the lock, exit 0 quietly; does not wait unless --wait is given.
    #[arg(long, conflicts_with = "no_wait", help_heading = "Waiting")]
    pub(crate) skip: bool,
    /// The exit code for busy.
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::BUSY)]
    #[arg(help_heading = "Waiting")]
    pub(crate) busy_exit_code: u8,
    /// What to do if the engine cannot be reached; `run` goes without any lock.
    #[arg(long, value_name = "WHAT", default_value = "fail", help_heading = "Waiting")]
    pub(crate) if_unavailable: Unavailable,

    /// Hold it beside others that run with --shared (a read lock).
    #[arg(short, long, help_heading = "Mode")]
    pub(crate) shared: bool,
    /// Hold it alone where others run with --shared (a write lock).
    #[arg(short = 'x', long, conflicts_with = "shared", help_heading = "Mode")]
    pub(crate) exclusive: bool,
    /// Hold this many permits of a semaphore; needs --capacity.
    #[arg(long, value_name = "N", requires = "capacity", conflicts_with_all = ["shared", "exclusive"])]
    #[arg(help_heading = "Mode")]
    pub(crate) permits: Option<u32>,
    /// The capacity of the semaphore, which all its users must agree on.
    #[arg(long, value_name = "M", conflicts_with_all = ["shared", "exclusive"], help_heading = "Mode")]
    pub(crate) capacity: Option<u32>,

    /// How long the lock outlives us if we fall silent; renewed every third of it.
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = duration)]
    #[arg(help_heading = "Holding")]
    pub(crate) lease: Duration,
    /// The lock is lost after this long, however well it is renewed.
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = "Holding")]
    pub(crate) max_hold: Option<Duration>,
    /// The name stays closed at least this long, even if the command ends sooner.
    #[arg(long, value_name = "DUR", default_value = "0s", value_parser = duration)]
    #[arg(help_heading = "Holding")]
    pub(crate) min_hold: Duration,
    /// End the command after this long and exit 124.
    #[arg(short, long, value_name = "DUR", value_parser = duration, help_heading = "Holding")]
    pub(crate) timeout: Option<Duration>,
    /// What the command gets when its lock is being lost: TERM then KILL, only KILL, or nothing.
    #[arg(long, value_name = "WHAT", default_value = "term", help_heading = "Holding")]
    pub(crate) on_lost: OnLost,
    /// From TERM to KILL. TERM goes out this long before the lock's end, so it must not be
    /// more than half the lease [default: 10s; less if the lease or --max-hold is short].
    #[arg(short, long, value_name = "DUR", value_parser = duration, help_heading = "Holding")]
    pub(crate) kill_after: Option<Duration>,

    /// A text shown to whoever looks at the lock or waits for it.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    #[arg(help_heading = "Shown to others")]
    pub(crate) note: String,
    /// Who holds it [default: the user's name].
    #[arg(long, value_name = "WHO", default_value = "", hide_default_value = true)]
    #[arg(help_heading = "Shown to others")]
    pub(crate) owner: String,

    /// The lock's name, then the command and its own arguments; `--` between them is optional.
    // One list, so that the first word ends our own options for good.
    #[arg(value_names = ["NAME", "CMD"], num_args = 2.., required = true, trailing_var_arg = true)]
    pub(crate) words: Vec<OsString>,
}

/// `break`: looks, asks, then takes.
#[derive(Args, Debug)]
pub(crate) struct BreakArgs {
    /// The name.
    pub(crate) name: String,
    /// Why; the holder is told.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Only the holder with this owner id, as `status` shows it.
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Free the name at once, while its holder may still be at work: two can meet.
    #[arg(long)]
    pub(crate) now: bool,
}

/// `bench`: lockkeeper and the bare floor, in turn.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// What to measure; without it, everything.
    pub(crate) scenario: Vec<Scenario>,
    /// How long each side is measured in each round.
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// How often the sides take turns; figures are medians of rounds.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: u32,
    /// How many tasks `many` has, each with a name of its own [default: 256].
    #[arg(long, value_name = "N")]
    pub(crate) tasks: Option<u32>,
    /// How many processes wait in `handover`; several numbers are measured
    /// one after the other [default: 2,10,100].
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub(crate) waiters: Vec<u32>,
}

/// What `bench` can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Scenario {
    /// One task locks and releases one name.
    Solo,
    /// Many tasks of one keeper, each with a name of its own.
    Many,
    /// Processes that wait for one name, handed from one to the next.
    Handover,
}

/// What to do with a latch.
#[derive(Debug, Subcommand)]
pub(crate) enum LatchAction {
    /// Set it, unless a closed one is there.
    Set {
        /// How many count-downs open it.
        count: u32,
        /// How long it is kept after its last change.
        #[arg(long, value_name = "DUR", default_value = "24h", value_parser = duration)]
        keep: Duration,
    },
    /// Count down once.
    Down {
        /// Counts once per id; without it, every call counts.
        #[arg(long, value_name = "ID")]
        id: Option<String>,
    },
    /// Wait until it is open: exit 0, 75 if it takes too long, 79 if it is removed.
    Wait {
        /// How long to wait; without it, as long as it takes.
        #[arg(short, long, value_name = "DUR", value_parser = duration)]
        wait: Option<Duration>,
    },
    /// Remove it; those who wait learn that it is gone.
    Remove,
}

/// What a command gets when its lock is being lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, and KILL at the lock's end.
    Term,
    /// KILL at the lock's end.
    Kill,
    /// Nothing: it goes on without the lock.
    Ignore,
}

/// What happens without an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unavailable {
    /// Exit 69.
    Fail,
    /// Exit 0 without running.
    Skip,
    /// Run without a lock.
    Run,
}

/// Reads `30s`, `1h 30min`, `250ms`, or a plain number of seconds as `flock` does.
fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it as 30s or 1h30m"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_after_the_name_is_the_commands() {
        for tail in ["-c -d -v --version --wait 3 --help", "-- sh -c x", "sh -c x -- y", "--json x"]
        {
            let words: Vec<&str> = tail.split(' ').collect();
            let line = ["lockkeeper", "run", "-w", "5", "name"].iter().chain(&words);
            let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!() };
            assert_eq!(run.words[0], "name");
            assert_eq!(run.words[1..], words, "{tail}");
        }
    }

    #[test]
    fn durations_read_as_people_write_them() {
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        for bad in ["", "x", "-1", "5 parsecs", "inf", "NaN"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
