//! Checks the command lines in the Markdown pages and in `deploy/`: the program accepts their arguments, targets of `make` and
//! `cargo` exist, and so do named files. So do commands and flags in sentences.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use clap::error::{ContextKind, ErrorKind};

use super::{
    command,
    pages_tests::{files, pages, read, root},
    with_kind,
};
use crate::kubectl::plugin;

/// Splits a line into the words of each of its commands, with the quotes of a shell, and without its comment.
pub(super) fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None::<String>, None);
    let mut before = ' ';
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '#' && before == ' ' => break,
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if " |&;<>()".contains(c) => {
                words.extend(word.take());
                if "|&;".contains(c) {
                    commands.push(std::mem::take(&mut words));
                } else if c == '>' {
                    words.push(REDIRECTION.to_owned());
                }
            }
            None => word.get_or_insert_default().push(c),
        }
        before = c;
    }
    words.extend(word);
    commands.push(words);
    for words in &mut commands {
        if let Some(at) = words.iter().position(|word| word == REDIRECTION) {
            words.truncate(at);
        }
    }
    commands
}

/// Stands for a redirection of the output, which ends the arguments.
const REDIRECTION: &str = ">";

/// Returns the lines of code in a page that are commands: indented blocks, and what follows `$` in fenced ones.
fn code_lines(text: &str) -> Vec<String> {
    let (mut lines, mut is_fenced) = (Vec::<String>::new(), false);
    for line in text.lines() {
        let code = line.trim_start();
        if code.starts_with("```") {
            is_fenced = !is_fenced;
            continue;
        }
        match lines.last_mut() {
            Some(continued) if continued.ends_with('\\') => {
                continued.pop();
                continued.push_str(code);
            }
            _ if is_fenced => lines.extend(code.strip_prefix("$ ").map(str::to_owned)),
            _ if line.starts_with("    ") => lines.push(code.to_owned()),
            _ => {}
        }
    }
    lines
}

/// Returns the code within the sentences of a page, without that in blocks.
pub(super) fn code_spans(text: &str) -> Vec<String> {
    let (mut paragraphs, mut is_fenced) = (vec![String::new()], false);
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        // Rows of tables and items of lists begin spans of their own.
        if is_fence || is_fenced || line.starts_with("    ") || line.trim().is_empty() || line.starts_with(['|', '-']) {
            paragraphs.push(String::new());
        }
        if !is_fence && !is_fenced && !line.starts_with("    ") {
            let paragraph = paragraphs.last_mut().expect("one at least");
            *paragraph = format!("{paragraph} {}", line.trim());
        }
    }
    paragraphs.iter().flat_map(|text| text.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// Returns the error of a command line, unless it only leaves out arguments or values, as names of commands in sentences do.
pub(super) fn misnamed(error: &clap::Error) -> Option<String> {
    let has_value = error.get(ContextKind::InvalidValue).is_some_and(|value| !value.to_string().is_empty());
    let is_incomplete = match error.kind() {
        ErrorKind::InvalidValue => !has_value,
        kind => matches!(
            kind,
            ErrorKind::MissingRequiredArgument
                | ErrorKind::MissingSubcommand
                | ErrorKind::DisplayHelp
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                | ErrorKind::DisplayVersion
        ),
    };
    (!is_incomplete).then(|| error.to_string())
}

/// Returns the error of a command line; `None` also for those of other programs.
pub(super) fn error_of(words: &[String]) -> Option<String> {
    error_with(words, &|error| Some(error.to_string()))
}

/// Returns the error of a command line, as `describe` returns it for those of the program.
pub(super) fn error_with(words: &[String], describe: &dyn Fn(&clap::Error) -> Option<String>) -> Option<String> {
    let mut words: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "...").collect();
    if words.first() == Some(&"sudo") {
        words.remove(0);
    }
    let missing = words.iter().find(|word| {
        let in_project =
            ["examples/", "deploy/", "conformance/", "e2e/", "crates/"].iter().any(|top| word.starts_with(top));
        // The administrator exports this file from the cluster.
        in_project && **word != "deploy/kubeadm/kube-proxy.yaml" && !root().join(word).exists()
    });
    if let Some(missing) = missing {
        return Some(format!("{missing} does not exist"));
    }
    match words[..] {
        // The program of the demo has a profile of its own.
        [program, ..] if program == "ferroute" || program.ends_with("/ferroute") => {
            words[0] = "ferroute";
            let arguments = with_kind(words.into_iter().map(Into::into).collect());
            command().try_get_matches_from(arguments).err().and_then(|error| describe(&error))
        }
        ["kubectl", "ferroute", ..] => {
            plugin().try_get_matches_from(&words[1..]).err().and_then(|error| describe(&error))
        }
        ["make", ..] => {
            let makefile = read(&root().join("Makefile"));
            let targets = words[1..].iter().filter(|word| !word.contains('='));
            let missing: Vec<_> = targets.filter(|target| !makefile.contains(&format!("\n{target}:"))).collect();
            (!missing.is_empty()).then(|| format!("no target {missing:?}"))
        }
        ["cargo", ..] => {
            let after = |name: &str| words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1));
            let package = after("-p").map(|name| root().join("crates").join(name));
            let kinds = [("--bench", "benches"), ("--example", "examples"), ("--test", "tests")];
            let missing = kinds.iter().find_map(|(flag, directory)| {
                let name = after(flag)?;
                let of = package.as_deref().unwrap_or(Path::new("no package")).join(directory);
                let exists = of.join(format!("{name}.rs")).exists() || of.join(name).is_dir();
                (!exists).then(|| format!("no {name} in {}", of.display()))
            });
            missing
                .or_else(|| package.filter(|path| !path.exists()).map(|path| format!("no package {}", path.display())))
        }
        _ => None,
    }
}

#[test]
fn documented_command_lines_are_accepted() {
    let (mut count, mut failed) = (0, Vec::new());
    for page in pages() {
        for line in code_lines(&read(&page)) {
            for words in commands(&line) {
                count += 1;
                failed.extend(error_of(&words).map(|error| format!("{}: {line}: {error}", page.display())));
            }
        }
    }
    // Comments of manifests and scripts name commands as well.
    for file in files(&["deploy", "examples"]) {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        let comments = text.lines().filter_map(|line| line.strip_prefix("#   "));
        // What follows two spaces is a remark.
        for line in comments.filter_map(|line| line.trim_start().split("  ").next()) {
            count += 1;
            let errors = commands(line).iter().filter_map(|words| error_of(words)).collect::<Vec<_>>();
            failed.extend(errors.iter().map(|error| format!("{}: {line}: {error}", file.display())));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(count > 200, "{count}");
}

#[test]
fn commands_and_flags_that_sentences_name_exist() {
    let (mut count, mut failed) = (0, Vec::new());
    for page in pages() {
        for span in code_spans(&read(&page)) {
            // A pattern of names.
            let names = commands(&span).into_iter().filter(|words| !words.iter().any(|word| word.ends_with('-')));
            for words in names.filter(|words| words.len() > 1) {
                count += 1;
                failed
                    .extend(error_with(&words, &misnamed).map(|error| format!("{}: {span}: {error}", page.display())));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(count > 200, "{count}");
}

#[test]
fn readmes_have_the_same_commands() {
    let commands_of = |name: &str| -> Vec<_> {
        code_lines(&read(&root().join(name))).iter().flat_map(|line| commands(line)).collect()
    };
    assert_eq!(commands_of("README.md"), commands_of("README.zh-CN.md"));
}

/// Returns the numbers in a text, such as `1.36` and `10,000`.
fn numbers(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_digit() || ".,".contains(c)));
    words.map(|word| word.trim_matches(['.', ','])).filter(|word| !word.is_empty()).collect()
}

#[test]
fn readmes_state_the_same_numbers() {
    let [english, chinese] = ["README.md", "README.zh-CN.md"].map(|name| read(&root().join(name)));
    assert_eq!(numbers(&english), numbers(&chinese));
}

#[test]
fn texts_of_one_picture_state_the_same_numbers() {
    let mut texts = BTreeMap::<String, Vec<String>>::new();
    for page in pages() {
        let text = read(&page);
        for rest in text.split("<img src=\"").skip(1) {
            let (source, rest) = rest.split_once('"').expect("an end");
            let text = rest.split_once("alt=\"").expect("a text").1.split('"').next().expect("an end");
            texts.entry(source.trim_start_matches("docs/").to_owned()).or_default().push(text.to_owned());
        }
    }
    assert!(texts.values().any(|texts| texts.len() > 2), "{texts:?}");
    for (picture, texts) in texts {
        assert!(texts.iter().all(|text| numbers(text) == numbers(&texts[0])), "{picture}: {texts:#?}");
    }
}
