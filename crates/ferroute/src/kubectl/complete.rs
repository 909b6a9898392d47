//! Completions for kubectl, which runs the program `kubectl_complete-ferroute` with the words of the command line, the
//! last of which is incomplete. The program prints lines with a word, a tab and its description, and a last line that
//! disables file names.

use std::fmt::Write;

use clap::Command;

/// Returns the lines for kubectl.
pub(super) fn completions(mut command: Command, words: &[String]) -> String {
    command.build();
    let (last, before) = words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let mut current = &command;
    for word in before {
        if let Some(subcommand) = current.find_subcommand(word) {
            current = subcommand;
        }
    }
    let mut text = String::new();
    let mut add = |word: &str, help: String| {
        if word.starts_with(last) {
            let line = help.lines().next().unwrap_or_default();
            writeln!(text, "{word}\t{line}").expect("strings accept everything");
        }
    };
    if last.starts_with('-') {
        for flag in current.get_arguments().filter(|flag| !flag.is_hide_set()) {
            if let Some(long) = flag.get_long() {
                add(&format!("--{long}"), flag.get_help().map(ToString::to_string).unwrap_or_default());
            }
        }
    } else {
        let values_of = before.last().and_then(|word| word.strip_prefix("--").or_else(|| word.strip_prefix('-')));
        let flag = values_of.and_then(|name| {
            current.get_arguments().find(|flag| {
                flag.get_long() == Some(name) || flag.get_short().is_some_and(|short| name == short.to_string())
            })
        });
        match flag.filter(|flag| flag.get_action().takes_values()) {
            Some(flag) => flag.get_possible_values().iter().for_each(|value| {
                add(value.get_name(), value.get_help().map(ToString::to_string).unwrap_or_default());
            }),
            None => current.get_subcommands().filter(|command| !command.is_hide_set()).for_each(|command| {
                add(command.get_name(), command.get_about().map(ToString::to_string).unwrap_or_default());
            }),
        }
    }
    text + NO_FILES
}

/// Cobra's directive not to offer names of files.
const NO_FILES: &str = ":4\n";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::kubectl::Plugin;

    /// Returns the completions without their descriptions.
    fn complete(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let text = completions(Plugin::command(), &words);
        let mut lines: Vec<String> =
            text.lines().map(|line| line.split('\t').next().unwrap_or(line).to_owned()).collect();
        assert_eq!(lines.pop().as_deref(), Some(":4"));
        lines
    }

    #[test]
    fn commands_flags_and_values_are_completed() {
        assert_eq!(complete(&["st"]), ["status"]);
        assert!(complete(&[""]).contains(&"wait".to_owned()));
        assert_eq!(complete(&["wait", "--ti"]), ["--timeout"]);
        assert_eq!(complete(&["status", "--kubec"]), ["--kubeconfig"]);
        assert_eq!(complete(&["status", "-o", ""]), ["text", "wide", "json"]);
        assert_eq!(complete(&["status", "--output", "w"]), ["wide"]);
        assert_eq!(complete(&["wait", "service/"]), [""; 0]);
    }
}
