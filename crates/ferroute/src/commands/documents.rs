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

use ferroute_admin::version;
use ferroute_config::flags::{DesiredArgs, KubeProxy};
use ferroute_inspect::desired::Desired;

use super::manual;

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
    let mut text = String::from_utf8(text)?;
    if args.shell == Shell::Zsh {
        text = with_escaped_names(text, &command);
    }
    if !args.kube_proxy {
        text = with_services(args.shell, &text);
    }
    Ok(out.write_all(text.as_bytes())?)
}

/// Escapes colons in the names of values, which end them in zsh.
fn with_escaped_names(mut script: String, command: &Command) -> String {
    for name in command.get_arguments().flat_map(|argument| argument.get_value_names().unwrap_or_default()) {
        if name.contains(':') {
            script = script.replace(&format!("]:{name}:"), &format!("]:{}:", name.replace(':', "\\:")));
        }
    }
    command.get_subcommands().fold(script, with_escaped_names)
}

/// The hidden command that prints the names of Services.
pub(crate) const COMPLETE_SERVICES: &str = "complete-services";

/// Prints the names of all Services of the running proxy, the cluster or the given source. Without these, there is nothing to complete.
pub(crate) fn complete_services(args: &DesiredArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let Ok(desired) = Desired::load_again(args) else { return Ok(()) };
    for service in desired.services.keys() {
        writeln!(out, "{service}")?;
    }
    Ok(())
}

/// Lets a completion script ask for the names of Services where a command takes one.
fn with_services(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => format!("{script}{BASH}"),
        Shell::Fish => format!("{script}{FISH}"),
        Shell::Zsh => {
            let complete = |line: &str| {
                let starts = ["':service -- ", "--service=", "'--to=", "'*::ends -- "];
                let takes_service = starts.iter().any(|start| line.contains(start));
                if takes_service { line.replace(":_default'", ":_ferroute_services'") } else { line.to_owned() }
            };
            let lines: Vec<String> = script.lines().map(complete).collect();
            let (head, rest) = lines.split_first().expect("bug: an empty script");
            format!("{head}\n{ZSH}{}\n", rest.join("\n"))
        }
        _ => script.to_owned(),
    }
}

/// Extends the function of the generated script.
const BASH: &str = r#"
_ferroute_with_services() {
    _ferroute "$@"
    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in
        *" service"|*" svc"|*" --service"|*" --to"|"explain explain"|"trace "[!-]*) ;;
        *) return ;;
    esac
    local at source=()
    for ((at = 2; at < COMP_CWORD - 1; at++)); do
        case "${COMP_WORDS[at]} ${COMP_WORDS[at+1]}" in
            # An equals sign is a word of its own.
            "--manifests ="|"--kubeconfig ="|"--master ="|"--config =") source+=("${COMP_WORDS[at]}" "${COMP_WORDS[at+2]}") ;;
            --manifests\ *|--kubeconfig\ *|--master\ *|--config\ *) source+=("${COMP_WORDS[at]}" "${COMP_WORDS[at+1]}") ;;
        esac
    done
    COMPREPLY+=($(compgen -W "$(ferroute complete-services "${source[@]}" 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -F _ferroute_with_services -o bashdefault -o default ferroute
"#;

const FISH: &str = r#"
function __ferroute_services
    set -l words (commandline -opc)
    set -l source
    for at in (seq 2 (count $words))
        switch $words[$at]
            case --manifests --kubeconfig --master --config
                set -a source $words[$at] $words[(math $at + 1)]
            case '--manifests=*' '--kubeconfig=*' '--master=*' '--config=*'
                set -a source $words[$at]
        end
    end
    ferroute complete-services $source 2>/dev/null
end
complete -c ferroute -n "__fish_seen_subcommand_from explain trace" -f -a "(__ferroute_services)"
complete -c ferroute -n "__fish_seen_subcommand_from status flows" -l service -x -a "(__ferroute_services)"
complete -c ferroute -n "__fish_seen_subcommand_from trace" -l to -x -a "(__ferroute_services)"
"#;

const ZSH: &str = r#"
_ferroute_services() {
    local -a names line source
    local at
    # The array of words has not all of them here.
    line=(${(zQ)LBUFFER})
    for ((at = 2; at < $#line; at++)); do
        case $line[at] in
            --manifests|--kubeconfig|--master|--config) source+=($line[at] $line[at+1]) ;;
            --manifests=*|--kubeconfig=*|--master=*|--config=*) source+=($line[at]) ;;
        esac
    done
    names=(${(f)"$(ferroute complete-services $source 2>/dev/null)"})
    compadd -a names
}
"#;

/// Prints the main page, or writes the pages of all commands.
pub(crate) fn man(args: &ManArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let Some(directory) = &args.directory else {
        return Ok(write_page(with_hidden_flags(super::command()), "", out)?);
    };
    write_pages(directory).with_context(|| format!("cannot write man pages to {}", directory.display()))
}

fn write_pages(directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    write_pages_of(with_hidden_flags(super::command()), "", directory)?;
    write_pages_of(with_hidden_flags(KubeProxy::command()), "run", directory)
}

/// Writes the pages of a program.
fn write_pages_of(command: Command, path: &str, directory: &Path) -> std::io::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_built_pages(&command, path, directory)
}

fn write_built_pages(command: &Command, path: &str, directory: &Path) -> std::io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_built_pages(subcommand, &manual::join(path, subcommand.get_name()), directory)?;
    }
    let file = directory.join(Man::new(command.clone()).get_filename());
    let mut page = Vec::new();
    write_page(command.clone(), path, &mut page)?;
    fs::write(file, page)
}

/// Writes a page with the sections that clap does not generate.
fn write_page(command: Command, path: &str, out: &mut impl Write) -> std::io::Result<()> {
    // By default, the bottom of a page has the last word of its command's name, and no version.
    let page = Man::new(command).source(format!("ferroute {}", version::LONG));
    page.render(out)?;
    let file = page.get_filename();
    out.write_all(manual::sections(path, file.trim_end_matches(".1")).as_bytes())
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
            for section in ["EXAMPLES", "\"EXIT STATUS\"", "FILES", "\"SEE ALSO\""] {
                assert_eq!(page.matches(&format!(".SH {section}\n")).count(), 1, "{section} in the page of {name}");
            }
            let title = format!(".TH ferroute-{name} 1  \"ferroute {}\"", version::LONG);
            assert!(page.contains(&title), "{title} in {page}");
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
    fn bash_completes_names_of_services() {
        let mut script = Vec::new();
        completions(&CompletionsArgs { shell: Shell::Bash, kube_proxy: false }, &mut script).expect("completions");
        let script = String::from_utf8(script).expect("text");
        let complete = |line: &str| {
            let count = line.split(' ').count() - 1;
            let program = format!(
                "{script}\nferroute() {{ case \"$*\" in {COMPLETE_SERVICES}) printf 'shop/web\\nshop/cart\\n' ;; \"{COMPLETE_SERVICES} --manifests a.yaml\") \
                 echo shop/file ;; esac; }}\nCOMP_WORDS=({line})\n\
                 [ {count} -lt ${{#COMP_WORDS[@]}} ] || COMP_WORDS+=('')\nCOMP_CWORD={count}\n_ferroute_with_services ferroute \
                 \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
            );
            // The script is longer than an argument may be.
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), program).expect("a file");
            let output = std::process::Command::new("bash").arg(file.path()).output().expect("bash");
            let text = String::from_utf8(output.stdout).expect("text");
            text.lines().filter(|word| word.starts_with("shop/")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(complete("ferroute explain service "), ["shop/web", "shop/cart"]);
        assert_eq!(complete("ferroute explain service shop/c"), ["shop/cart"]);
        assert_eq!(complete("ferroute status --service shop/w"), ["shop/web"]);
        assert_eq!(complete("ferroute explain shop/c"), ["shop/cart"]);
        assert_eq!(complete("ferroute trace pod shop/w"), ["shop/web"]);
        assert_eq!(complete("ferroute explain --manifests a.yaml svc "), ["shop/file"]);
        assert_eq!(complete("ferroute explain --manifests = a.yaml svc "), ["shop/file"]);
        assert!(complete("ferroute doctor ").is_empty() && complete("ferroute trace --in ").is_empty());
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
