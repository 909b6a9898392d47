//! `ferroute man` and `ferroute completions`: generates manual pages and shell completions from the clap definitions.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use ferroute_config::flags::KubeProxy;

/// Arguments of `ferroute completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// Shell to generate the script for
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
    /// Complete the command kube-proxy instead of ferroute
    #[arg(long)]
    pub(crate) kube_proxy: bool,
}

/// Arguments of `ferroute man`.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Directory for all pages; by default, the main page is printed
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: Option<PathBuf>,
}

/// Prints a shell's completion script.
pub(crate) fn completions(args: &CompletionsArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let mut command = if args.kube_proxy { KubeProxy::command() } else { super::command() };
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut text);
    Ok(out.write_all(&text)?)
}

/// Prints the main page, or writes the pages of all commands.
pub(crate) fn man(args: &ManArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let Some(directory) = &args.directory else {
        return Ok(Man::new(with_hidden_flags(super::command())).render(out)?);
    };
    write_pages(directory).with_context(|| format!("cannot write man pages to {}", directory.display()))
}

fn write_pages(directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    for command in [super::command(), KubeProxy::command()] {
        clap_mangen::generate_to(with_hidden_flags(command), directory)?;
    }
    Ok(())
}

/// Shows the flags that `--help` omits: a manual documents all of them.
fn with_hidden_flags(command: Command) -> Command {
    command.mut_args(|flag| flag.hide(false)).mut_subcommands(with_hidden_flags)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::{super::Cli, *};

    /// Returns the long names of a command's flags.
    fn flags(command: &Command) -> Vec<String> {
        command.get_arguments().filter_map(|flag| flag.get_long()).map(str::to_owned).collect()
    }

    #[test]
    fn pages_document_every_command_and_flag() {
        let directory = tempfile::tempdir().expect("a directory");
        let args = ManArgs { directory: Some(directory.path().join("man1")) };
        man(&args, &mut Vec::new()).expect("pages");
        let page = |name: &str| {
            let path = directory.path().join("man1").join(format!("{name}.1"));
            // roff escapes dashes.
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}")).replace("\\-", "-")
        };
        let main = page("ferroute");
        let mut documented = 0;
        // Hidden commands are not for users.
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            assert!(main.contains(&format!("ferroute-{name}(1)")), "{name} in {main}");
            let page = page(&format!("ferroute-{name}"));
            for flag in flags(command) {
                assert!(page.contains(&format!("--{flag}")), "--{flag} in the page of {name}");
                documented += 1;
            }
        }
        let kube_proxy = page("kube-proxy");
        for flag in flags(&KubeProxy::command()) {
            assert!(kube_proxy.contains(&format!("--{flag}")), "--{flag} in {kube_proxy}");
            documented += 1;
        }
        assert!(documented > 2 * 63, "{documented}");
    }

    #[test]
    fn main_page_is_printed_without_a_directory() {
        let mut text = Vec::new();
        man(&ManArgs { directory: None }, &mut text).expect("a page");
        let text = String::from_utf8(text).expect("text");
        assert!(text.contains(".TH ferroute 1") && text.contains(".SH SUBCOMMANDS"), "{text}");
    }

    #[test]
    fn every_shell_completes_flags_of_both_programs() {
        for shell in Shell::value_variants() {
            for kube_proxy in [false, true] {
                let mut text = Vec::new();
                completions(&CompletionsArgs { shell: *shell, kube_proxy }, &mut text).expect("completions");
                let text = String::from_utf8(text).expect("text");
                let name = if kube_proxy { "kube-proxy" } else { "ferroute" };
                assert!(text.contains("masquerade-all") && text.contains(name), "{shell} {name}: {text}");
            }
        }
    }
}
