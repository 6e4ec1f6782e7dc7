//! The real program, end to end: processes, signals, terminals, exit codes.
#![cfg(target_os = "linux")]

mod kit;

mod bench;
mod commands;
mod docs;
mod exits;
mod lost;
mod nested;
mod signals;
mod terminal;
mod tree;
mod waiting;
