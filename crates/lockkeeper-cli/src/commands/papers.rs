//! `completions` and `man`: written from the one definition of the command line.

use std::io::Write;

use clap::CommandFactory;

use crate::Outcome;
use crate::args::Cli;

/// Prints completions for a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut page = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lockkeeper", &mut page);
    std::io::stdout().write_all(&page)?;
    Ok(0)
}

/// Prints the manual page, with all commands on it.
pub(crate) fn man() -> Outcome {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let man = clap_mangen::Man::new(sub.clone());
        writeln!(page, ".SH \"LOCKKEEPER {}\"", sub.get_name().to_uppercase())?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    std::io::stdout().write_all(&page)?;
    Ok(0)
}
