//! What people and machines read: stdout is data, stderr is talk.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::args::Common;
use crate::exit::Failure;

/// The program's voice.
#[derive(Debug)]
pub(crate) struct Output {
    /// Whether to speak JSON.
    pub(crate) json: bool,
    /// Whether to say nothing but errors.
    pub(crate) quiet: bool,
    /// Whether a person watches stderr, on something that can redraw a line.
    pub(crate) lively: bool,
    colour: bool,
    /// Whether an unfinished line stands on the terminal.
    line_open: Cell<bool>,
}

impl Output {
    pub(crate) fn new(common: &Common) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let lively = io::stderr().is_terminal() && !dumb;
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Output {
            json: common.json,
            quiet: common.quiet,
            lively,
            colour: lively && !no_colour,
            line_open: Cell::new(false),
        }
    }

    /// Tells people something, unless they asked for quiet or for JSON.
    pub(crate) fn say(&self, text: &str) {
        if !self.quiet && !self.json {
            self.write_line(text);
        }
    }

    /// Tells people something that the next line may replace.
    pub(crate) fn progress(&self, text: &str) {
        if self.quiet || self.json {
            return;
        }
        if !self.lively {
            return self.write_line(text);
        }
        // Nobody to tell is nothing to fail for.
        let _ = write!(io::stderr(), "\r\x1b[Klockkeeper: {text}");
        self.line_open.set(true);
    }

    /// Takes back what [`progress`](Self::progress) said last, where it can.
    pub(crate) fn erase(&self) {
        if self.line_open.replace(false) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Tells machines something, one JSON object per line on stderr.
    pub(crate) fn event(&self, event: &str, mut fields: Value) {
        if self.json {
            fields["event"] = json!(event);
            let _ = writeln!(io::stderr(), "{fields}");
        }
    }

    /// Tells why the program ends; the one thing that quiet does not silence.
    pub(crate) fn failure(&self, failure: &Failure) {
        if failure.message.is_empty() {
            return;
        }
        let Failure { code, kind, message, hint } = failure;
        let fields = json!({
            "kind": kind, "message": message, "hint": hint, "exit_code": code,
        });
        self.event("failed", fields);
        if self.json {
            return;
        }
        self.write_line(&self.paint("1;31", message));
        if let Some(hint) = hint {
            let _ = writeln!(io::stderr(), "hint: {hint}");
        }
    }

    /// Writes data to stdout. A reader that went away ends the program quietly.
    pub(crate) fn data(&self, text: &str) -> Result<(), Failure> {
        match writeln!(io::stdout(), "{text}").and_then(|()| io::stdout().flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent(0)),
            result => Ok(result?),
        }
    }

    fn write_line(&self, text: &str) {
        let clear = if self.line_open.replace(false) { "\r\x1b[K" } else { "" };
        let _ = writeln!(io::stderr(), "{clear}lockkeeper: {text}");
    }

    fn paint(&self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A table in aligned columns, the last one ragged; no trailing blanks.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    let all = || std::iter::once(&head).chain(rows);
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut out = String::new();
    for row in all() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

/// Text of others on one line: control characters could redraw the terminal.
pub(crate) fn tame(text: &str) -> String {
    let dress = |c: char| {
        if c.is_control() { c.escape_default().to_string() } else { c.into() }
    };
    text.chars().map(dress).collect()
}

/// A time span for people: two units at most.
pub(crate) fn span(span: Duration) -> String {
    let (millis, seconds) = (span.as_millis(), span.as_secs());
    match seconds {
        0 => format!("{millis}ms"),
        1..10 => format!("{}.{}s", seconds, millis % 1000 / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A time span for machines.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        let show = |millis| span(Duration::from_millis(millis));
        assert_eq!(show(0), "0ms");
        assert_eq!(show(2_340), "2.3s");
        assert_eq!(show(41_200), "41s");
        assert_eq!(show(192_000), "3m12s");
        assert_eq!(show(7_800_000), "2h10m");
        assert_eq!(show(90_000_000), "1d01h");
    }

    #[test]
    fn a_table_is_aligned_and_has_no_trailing_blanks() {
        let rows = vec![vec!["a".into(), "1".into()], vec!["long".into(), String::new()]];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME  N\na     1\nlong");
    }

    #[test]
    fn text_of_others_cannot_redraw_the_terminal() {
        assert_eq!(tame("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
    }
}
