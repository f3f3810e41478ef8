//! Shell completions and man pages, from the definition that parses the command line.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

/// Prints a shell's completion script.
pub(super) fn completion(shell: Shell) -> anyhow::Result<()> {
    // Into memory first: a closed pipe must end quietly, not in a panic of the generator.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sparkgate", &mut script);
    std::io::stdout()
        .write_all(&script)
        .context("standard output")
}

/// Writes `sparkgate.1` and one page a verb, `sparkgate-<verb>[-<verb>].1`, into a folder.
pub(super) fn man(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    pages(&root, "sparkgate", folder)
}

fn pages(command: &clap::Command, name: &str, folder: &Path) -> anyhow::Result<()> {
    let path = folder.join(format!("{name}.1"));
    let mut text = Vec::new();
    // A page's title and its NAME section carry the whole name, as `git-commit(1)` does. Clap keeps names for the
    // program's life.
    let titled = command
        .clone()
        .name(&*Box::leak(name.to_owned().into_boxed_str()));
    clap_mangen::Man::new(titled)
        .section("1")
        .manual("sparkgate")
        .render(&mut text)?;
    std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        pages(verb, &format!("{name}-{}", verb.get_name()), folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_and_is_completed() {
        let folder = tempfile::tempdir().unwrap();
        man(folder.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(page("sparkgate.1").contains("sparkgate\\-run(1)"));
        assert!(page("sparkgate-alarms-shelve.1").contains("How long"));
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sparkgate", &mut script);
            let script = String::from_utf8(script).unwrap();
            for verb in ["validate", "unshelve", "completion"] {
                assert!(script.contains(verb), "{shell}: {verb}");
            }
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
