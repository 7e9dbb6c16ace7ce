//! `faser completions` and `faser man`: the command line's own definition as completions for shells and as man pages.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use faser_terminal::SystemError;

use crate::cli::{Cli, CompletionsArgs, ManArgs};

/// The completions, as the shell reads them.
pub fn completions(args: &CompletionsArgs) -> String {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "faser", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Writes the pages; returns how many.
///
/// # Errors
/// A file cannot be written.
pub fn man(args: &ManArgs) -> Result<usize> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let written = fs::create_dir_all(&args.folder).and_then(|()| pages(&command, &args.folder));
    Ok(written.map_err(|source| SystemError::Call { what: "write man pages", source })?)
}

/// The page of a command, and those of its subcommands.
fn pages(command: &Command, folder: &Path) -> io::Result<usize> {
    let man =
        Man::new(command.clone()).source(format!("faser {}", env!("CARGO_PKG_VERSION"))).manual("faser");
    let mut text = Vec::new();
    page(&man, command, &mut text)?;
    fs::write(folder.join(man.get_filename()), text)?;
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    subcommands.map(|subcommand| pages(subcommand, folder)).try_fold(1, |sum, count| Ok(sum + count?))
}

fn page(man: &Man, command: &Command, text: &mut Vec<u8>) -> io::Result<()> {
    man.render_title(text)?;
    man.render_name_section(text)?;
    man.render_synopsis_section(text)?;
    man.render_description_section(text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(text)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(text)?;
    }
    let closing = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (notes, examples) = halves(&closing);
    verbatim("NOTES", notes, text)?;
    verbatim("EXAMPLES", examples, text)?;
    if command.get_name() != "faser" {
        verbatim("SEE ALSO", "faser(1)", text)?;
    }
    Ok(())
}

/// What stands before and under `Examples:` in the text after a command's help.
fn halves(closing: &str) -> (&str, &str) {
    let heading = ["Examples:\n", "Example:\n"].iter().find_map(|heading| closing.split_once(heading));
    let (notes, examples) = heading.unwrap_or((closing, ""));
    (notes.trim_end(), examples.trim_end())
}

/// A section whose lines stay as they are.
fn verbatim(heading: &str, lines: &str, text: &mut Vec<u8>) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(text, ".SH \"{heading}\"\n.nf")?;
    for line in lines.lines() {
        // A line that begins with one of these would be a request.
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        writeln!(text, "{guard}{}", line.replace('\\', "\\e").replace('-', "\\-"))?;
    }
    writeln!(text, ".fi")
}

#[cfg(test)]
mod tests {
    use clap_complete::Shell;

    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_examples() {
        let folder = std::env::temp_dir().join(format!("faser-man-{}", std::process::id()));
        let count = man(&ManArgs { folder: folder.clone() }).unwrap();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        fn all(command: &Command) -> usize {
            1 + command.get_subcommands().map(all).sum::<usize>()
        }
        let found = all(&Cli::command());
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let text = read(&format!("faser-{name}.1"));
            let (_, examples) = text.split_once(".SH \"EXAMPLES\"\n.nf\n").expect(name);
            assert!(examples.contains(&format!("faser {}", name.replace('-', "\\-"))), "{name}: {examples}");
            assert!(text.contains(".SH NAME\n") && !text.contains("EXTRA"), "{name}");
        }
        assert_eq!((count, fs::read_dir(&folder).unwrap().count()), (found, found));
        assert!(read("faser.1").contains("faser\\-serve(1)"));
        assert!(read("faser-serve.1").contains("\n  faser serve \\-\\-policy off "));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn lines_stay_as_they_are() {
        let mut text = Vec::new();
        verbatim("X", ".a \\n -b\n'c", &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), ".SH \"X\"\n.nf\n\\&.a \\en \\-b\n\\&'c\n.fi\n");
        assert_eq!(halves("a\n\nExamples:\n  b\n"), ("a", "  b"));
        assert_eq!(halves("a"), ("a", ""));
    }

    #[test]
    fn shells_learn_commands_and_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let text = completions(&CompletionsArgs { shell });
            assert!(text.contains("gpu-check") && text.contains("listen"), "{shell}");
        }
    }
}
