//! `lockkeeper`: runs commands under locks, and shows who holds what.
//!
//! The program has no lock logic of its own: it parses words, asks a
//! [`lockkeeper::Keeper`], and looks after processes and terminals.
#![deny(unsafe_code)]

mod args;
mod bench;
mod commands;
mod exit;
mod keeper;
mod output;
mod procs;
mod run;
mod sys;
mod view;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind as ClapKind;

use crate::args::{Cli, Command};
use crate::exit::Failure;
use crate::output::Output;

/// What a command comes to: an exit code, or a failure to tell.
type Outcome = Result<u8, Failure>;

fn main() -> ExitCode {
    // Processes that `bench` starts are no part of the command line.
    if std::env::args_os().nth(1).is_some_and(|word| word == bench::WORKER) {
        return bench::worker();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let output = Output::new(&cli.common);
    start_log(cli.common.verbose);
    match dispatch(cli, &output) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// Runs a command on a runtime that never leaves the main thread: children
/// die with the thread that made them, so that thread has to be the last one.
fn dispatch(cli: Cli, output: &Output) -> Outcome {
    match cli.command {
        Command::Completions { shell } => return commands::completions(shell),
        Command::Man => return commands::man(),
        Command::Schema { url } => {
            let url = url.as_ref().unwrap_or(&cli.common.engine);
            return commands::schema(url, output);
        }
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let common = &cli.common;
        match cli.command {
            Command::Run(args) => run::run(common, *args, output).await,
            Command::Gc { url, idle } => {
                commands::gc(url.as_ref().unwrap_or(&common.engine), idle, output).await
            }
            Command::Bench(args) => bench::bench(common, args, output).await,
            other => commands::dispatch(common, other, output).await,
        }
    })
}

/// Help and version are answers; everything else is a usage error.
fn refuse(error: &clap::Error) -> ExitCode {
    // A closed pipe behind `--help | head` is nobody's problem.
    let _ = error.print();
    match error.kind() {
        ClapKind::DisplayHelp | ClapKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(exit::USAGE),
    }
}

fn start_log(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => "lockkeeper=debug",
        _ => "lockkeeper=trace",
    };
    tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr).init();
}
