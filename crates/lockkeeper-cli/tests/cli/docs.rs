//! The reference page says everything that `--help` says.

use std::collections::BTreeSet;

use crate::kit::{lockkeeper, run};

const COMMANDS: [&[&str]; 17] = [
    &[],
    &["run"],
    &["ls"],
    &["status"],
    &["watch"],
    &["break"],
    &["check"],
    &["fence"],
    &["latch"],
    &["latch", "x", "set"],
    &["latch", "x", "down"],
    &["latch", "x", "wait"],
    &["info"],
    &["schema"],
    &["gc"],
    &["bench"],
    &["completions"],
];

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_flag_is_in_the_reference() {
    let page = page();
    let mut flags = BTreeSet::new();
    for command in COMMANDS {
        let help = run(lockkeeper(&[command, &["--help"]].concat())).stdout;
        let words = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        flags.extend(
            words.filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_owned),
        );
    }
    assert!(flags.len() > 20, "{flags:?}");
    for flag in flags {
        assert!(
            page.contains(&format!("`{flag}")) || page.contains(&format!(" {flag}")),
            "{flag} is not in docs/cli.md"
        );
    }
}

#[test]
fn every_command_and_exit_code_is_in_the_reference() {
    let page = page();
    let help = run(lockkeeper(&["--help"])).stdout;
    let codes = help.split("Exit codes:").nth(1).unwrap();
    let number =
        |line: &str| line.split_whitespace().next().and_then(|word| word.parse::<u8>().ok());
    let codes: Vec<u8> = codes.lines().filter_map(number).collect();
    assert_eq!(codes, [64, 69, 75, 76, 77, 78, 79, 124, 125, 126, 127]);
    for code in codes {
        assert!(page.contains(&format!("| {code} |")), "{code} is not in docs/cli.md");
    }
    for command in COMMANDS.iter().filter_map(|words| words.first()) {
        assert!(page.contains(&format!("lockkeeper {command}")), "{command} is not in docs/cli.md");
    }
}

#[test]
fn every_variable_is_in_the_reference() {
    for variable in ["LOCK", "TOKEN", "OWNER", "HELD", "ENGINE", "URL"] {
        assert!(page().contains(&format!("`LOCKKEEPER_{variable}`")), "{variable}");
    }
}
