//! Examples, exit statuses and references of the commands, for `--help` and the manual pages.

use std::fmt::Write;

use clap::Command;

/// Content of the manual for a command besides its flags.
struct Entry {
    /// The words of the command line without the program, such as `explain service`.
    path: &'static str,
    /// Command lines, each with its purpose.
    examples: &'static [(&'static str, &'static str)],
    /// The exit statuses with their meanings; empty for 0 on success and 1 on errors.
    exit: &'static [(&'static str, &'static str)],
    /// Names of related pages.
    related: &'static [&'static str],
}

/// Adds examples to the help of a command and its subcommands, which users read in a terminal.
pub(crate) fn with_examples(command: Command, path: &str) -> Command {
    let command = match entry(path) {
        Some(entry) if !command.is_hide_set() => command.after_help(help(entry)),
        _ => command,
    };
    command.mut_subcommands(|subcommand| {
        let path = join(path, subcommand.get_name());
        with_examples(subcommand, &path)
    })
}

/// Returns the sections of the manual page `page` that clap does not generate, in roff.
pub(crate) fn sections(path: &str, page: &str) -> String {
    let mut text = String::new();
    let entry = entry(path);
    if let Some(Entry { examples, .. }) = entry {
        text += ".SH EXAMPLES\n";
        for (line, purpose) in *examples {
            let line = line_of_page(line, page);
            write!(text, ".TP\n{}\n.nf\n    {}\n.fi\n", escaped(&sentence(purpose)), escaped(&line))
                .expect(INTO_STRING);
        }
    }
    text += ".SH \"EXIT STATUS\"\n";
    let exit = entry.map_or(&[][..], |entry| entry.exit);
    for (status, meaning) in if exit.is_empty() { DEFAULT_EXIT } else { exit } {
        write!(text, ".TP\n{status}\n{}\n", escaped(&sentence(meaning))).expect(INTO_STRING);
    }
    text += ".SH FILES\n";
    if files(path).is_empty() {
        text += "None but those that the command line names.\n";
    }
    for (file, content) in files(path) {
        write!(text, ".TP\n.I {}\n{}\n", escaped(file), escaped(&sentence(content))).expect(INTO_STRING);
    }
    let related = entry.map_or(&[][..], |entry| entry.related);
    let pages: Vec<String> = related
        .iter()
        .chain(&["ferroute"])
        .filter(|name| **name != page)
        .map(|name| format!("\\fB{}\\fR(1)", escaped(name)))
        .collect();
    write!(text, ".SH \"SEE ALSO\"\n{}\n", pages.join(", ")).expect(INTO_STRING);
    text
}

/// Returns an example as its page shows it: under the name kube-proxy, the program is the command `run`.
fn line_of_page(line: &str, page: &str) -> String {
    if page == "kube-proxy" { line.replacen("ferroute run", page, 1) } else { line.to_owned() }
}

fn entry(path: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.path == path)
}

/// Returns the path of a subcommand.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path} {name}") }
}

fn help(entry: &Entry) -> String {
    let mut text = String::from("Examples:\n");
    let width = entry.examples.iter().map(|(line, _)| line.len()).max().unwrap_or_default();
    for (line, purpose) in entry.examples {
        writeln!(text, "  {line:width$}  # {purpose}").expect(INTO_STRING);
    }
    if !entry.exit.is_empty() {
        text += "\nExit status:\n";
        for (status, meaning) in entry.exit {
            writeln!(text, "  {status}  {meaning}").expect(INTO_STRING);
        }
    }
    text.truncate(text.trim_end().len());
    text
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}.", letters.as_str())
}

/// Escapes characters that roff interprets.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// Message of `expect` for writes to strings, which cannot fail.
const INTO_STRING: &str = "strings accept everything";

const DEFAULT_EXIT: &[(&str, &str)] =
    &[("0", "success"), ("1", "an error, which is printed"), ("2", "invalid arguments")];

const YES_OR_NO: &[(&str, &str)] = &[
    ("0", "nothing was found"),
    ("1", "something was found"),
    ("2", "the answer is unknown, the arguments are invalid, or an error occurred"),
];

const SOCKET: (&str, &str) =
    ("@ferroute", "the socket of the running proxy, in the abstract namespace of this network namespace");

const TOKEN: (&str, &str) =
    ("/var/run/secrets/kubernetes.io/serviceaccount/token", "the token of a pod, for the API server of its cluster");

const XTABLES_LOCK: (&str, &str) =
    ("/run/xtables.lock", "the lock of the iptables programs, which no two of them may hold at once");

const KUBECONFIG: (&str, &str) = (
    "~/.kube/config",
    "the cluster and the credentials, unless --kubeconfig or the variable KUBECONFIG names other files",
);

const SYSTEM_BUS: (&str, &str) = ("/run/dbus/system_bus_socket", "signals of firewalld, if it is there");

const DEMO: (&str, &str) =
    ("/run/ferroute-demo", "the manifests, configurations, logs and state of the running cluster");

/// Returns the files that a command uses and its command line does not name, with their contents.
fn files(path: &str) -> &'static [(&'static str, &'static str)] {
    match path {
        "run" => &[SOCKET, TOKEN, XTABLES_LOCK, SYSTEM_BUS],
        "" | "render" | "explain service" | "doctor" | "preflight" | "diff" | "flows" | "trace" | "ui" => {
            &[SOCKET, TOKEN]
        }
        "status" | "bundle" | "top" => &[SOCKET],
        _ if path.starts_with("kubectl") => &[KUBECONFIG],
        _ if path.starts_with("demo") => &[DEMO],
        _ => &[],
    }
}

macro_rules! entries {
    ($($path:literal: [$($line:literal => $purpose:literal),+ $(,)?] $exit:expr, [$($related:literal),*];)+) => {
        &[$(Entry { path: $path, examples: &[$(($line, $purpose)),+], exit: $exit, related: &[$($related),*] }),+]
    };
}

/// All commands that users see.
const ENTRIES: &[Entry] = entries! {
    "": [
        "ferroute run --kubeconfig /etc/kubernetes/proxy.conf" => "run the proxy on this node",
        "ferroute explain service shop/web" => "how the running proxy handles a Service",
        "ferroute doctor" => "what is wrong with this host",
    ] &[], ["ferroute-run", "ferroute-explain", "ferroute-doctor", "kube-proxy"];
    "run": [
        "ferroute run --config /var/lib/kube-proxy/config.conf" => "with kube-proxy's configuration file",
        "ferroute run --manifests services/ --proxy-mode nftables" => "without a cluster",
        "ferroute run --cleanup" => "remove all rules",
    ] &[], ["kube-proxy", "ferroute-status"];
    "render": [
        "ferroute render --manifests shop.yaml --proxy-mode iptables" => "the rules in the syntax of iptables-restore",
        "ferroute render" => "those that the running proxy writes",
    ] &[], ["ferroute-diff", "ferroute-trace"];
    "check": [
        "ferroute check shop.yaml" => "what run --manifests would skip, ignore or reject",
        "ferroute check -o json deploy/" => "all files of a directory, for a program",
    ] YES_OR_NO, ["ferroute-explain"];
    "explain": [
        "ferroute explain service shop/web" => "each frontend and endpoint of a Service",
    ] &[], ["ferroute-explain-service"];
    "explain service": [
        "ferroute explain service web -n shop" => "with the running proxy's objects",
        "ferroute explain service svc/shop/web --manifests shop.yaml" => "with those of files",
        "ferroute explain service shop/web -o json" => "for a program",
    ] &[], ["ferroute-check", "ferroute-trace", "ferroute-diff"];
    "status": [
        "ferroute status" => "whether the proxy is ready",
        "ferroute status --service shop/web" => "the applied versions of a Service",
    ] &[
        ("0", "the proxy is ready, or has applied the versions"),
        ("1", "it is not, or has not"),
        ("2", "it gives no answer"),
    ], ["ferroute-doctor"];
    "doctor": [
        "ferroute doctor" => "the host, and the Services of the running proxy",
        "ferroute doctor --no-connect -o json" => "without connections to endpoints, for a program",
    ] &[
        ("0", "no problem, or notes only"),
        ("1", "problems or warnings"),
        ("2", "no problem was found, but a check was impossible"),
    ], ["ferroute-explain", "ferroute-diff"];
    "preflight": [
        "ferroute preflight --proxy-mode nftables" => "before a switch of the running proxy's mode",
        "ferroute preflight --from iptables --proxy-mode ipvs --manifests services/" => "for objects in files",
    ] &[], ["ferroute-doctor"];
    "diff": [
        "ferroute diff" => "the kernel's rules and the running proxy's",
        "ferroute diff --kubeconfig ~/.kube/config --all" => "all differences from the objects of a cluster",
    ] YES_OR_NO, ["ferroute-render", "ferroute-trace"];
    "flows": [
        "ferroute flows" => "connections as they happen, until Ctrl-C",
        "ferroute flows --service shop/web --failed" => "those of a Service that fail",
        "ferroute flows --last 20 --client pod/shop/client" => "the last ones of a pod",
        "ferroute flows --summary --for 30s" => "who connects to what, and failures, after half a minute",
    ] &[], ["ferroute-top", "ferroute-explain"];
    "top": [
        "ferroute top" => "once a second",
        "ferroute top --once --interval 10s" => "one measurement of ten seconds",
    ] &[], ["ferroute-explain", "ferroute-flows"];
    "bundle": [
        "ferroute bundle night.json" => "save the recent syncs",
    ] &[], ["ferroute-replay"];
    "replay": [
        "ferroute replay night.json" => "repeat the syncs and compare the rules",
        "ferroute replay night.json --until 3 --rules" => "the rules after the third sync",
    ] YES_OR_NO, ["ferroute-bundle"];
    "trace": [
        "ferroute trace pod/client svc/web:80 -n shop" => "by the running proxy's rules",
        "ferroute trace --kernel --from 10.244.1.7 --to 10.96.0.1:443" => "by all rules in the kernel",
        "ferroute trace --manifests shop.yaml --from web-1 --to web:80 -n shop" => "without a cluster",
        "ferroute trace --rules node.txt --routes node.txt --from 10.42.7.4 --to 10.43.0.77:80" => "by rules in a file",
    ] &[
        ("0", "an endpoint receives the packet in all cases"),
        ("1", "the packet is or may be rejected, dropped, unroutable or not addressed to a Service"),
        ("2", "that is unknown"),
    ], ["ferroute-explain", "ferroute-diff"];
    "ui": [
        "ferroute ui" => "the running proxy in a browser",
        "ferroute ui --bundle night.json" => "a recording",
    ] &[], ["ferroute-trace", "ferroute-explain"];
    "kubectl": [
        "kubectl ferroute status" => "all nodes",
        "kubectl ferroute trace pod/client svc/web:80 -n shop" => "from node to node",
    ] &[], ["ferroute-kubectl-status", "ferroute-kubectl-wait", "ferroute-kubectl-trace"];
    "kubectl status": [
        "kubectl ferroute status" => "each node, with the worst finding of doctor",
        "kubectl ferroute status --node node-1 -o wide" => "one node, with more columns",
    ] &[
        ("0", "all nodes answer, are ready and have no drift, and kube-proxy is not beside Ferroute"),
        ("1", "that is not so; findings of the doctor do not count"),
        ("2", "the arguments are invalid, or the cluster does not answer"),
    ], ["ferroute-status", "ferroute-doctor"];
    "kubectl wait": [
        "kubectl ferroute wait svc/shop/web" => "until all nodes have applied this version",
    ] KUBECTL, ["ferroute-kubectl-status"];
    "kubectl trace": [
        "kubectl ferroute trace pod/client svc/web:80 -n shop" => "a packet of a pod to a Service",
        "kubectl ferroute trace --from shop/client --to 10.96.0.1:443" => "the same with flags, to an address",
    ] KUBECTL, ["ferroute-trace"];
    "kubectl explain": [
        "kubectl ferroute explain svc/shop/web" => "how the nodes handle a Service",
    ] KUBECTL, ["ferroute-explain"];
    "kubectl doctor": [
        "kubectl ferroute doctor --no-connect" => "all nodes, without connections to endpoints",
    ] KUBECTL, ["ferroute-doctor"];
    "kubectl top": [
        "kubectl ferroute top --interval 10s" => "the busiest Services of all nodes",
    ] &[], ["ferroute-top"];
    "kubectl flows": [
        "kubectl ferroute flows --service svc/web -n shop" => "connections to a Service on all nodes, until Ctrl-C",
        "kubectl ferroute flows --summary" => "who connects to what in the cluster, and failures",
    ] KUBECTL, ["ferroute-flows"];
    "kubectl ui": [
        "kubectl ferroute ui" => "a page in the browser, until Ctrl-C",
        "kubectl ferroute ui -l pool=edge" => "of some nodes",
    ] KUBECTL, ["ferroute-ui"];
    "kubectl bundle": [
        "kubectl ferroute bundle cluster.tar" => "the recordings of all nodes",
    ] KUBECTL, ["ferroute-bundle"];
    "demo": [
        "ferroute demo" => "a tour of a small cluster on this machine, which it removes at the end",
        "ferroute demo --ui" => "such a cluster with a page in the browser, until Ctrl-C",
    ] &[
        ("0", "success"),
        ("1", "a connection did not end as expected, or an error occurred"),
        ("2", "invalid arguments"),
    ], ["ferroute-ui"];
    "demo up": [
        "ferroute demo up examples/nginx.yaml" => "keep a cluster with these objects, and apply changes of the file",
    ] &[], ["ferroute-demo-exec", "ferroute-demo-ui", "ferroute-demo-down"];
    "demo exec": [
        "ferroute demo exec web-server -- curl -s http://nginx-service" => "a connection from a pod",
    ] &[
        ("N", "that of the command, if it could start"),
        ("1", "an error before that, which is printed"),
        ("2", "invalid arguments"),
    ], ["ferroute-demo-up", "ferroute-demo-status"];
    "demo ui": [
        "ferroute demo ui" => "the running cluster in a browser",
    ] &[], ["ferroute-demo-up", "ferroute-ui"];
    "demo status": [
        "ferroute demo status" => "pods, addresses, Services and health",
    ] &[], ["ferroute-demo-up", "ferroute-demo-exec"];
    "demo down": [
        "ferroute demo down" => "remove the running cluster",
    ] &[], ["ferroute-demo-up"];
    "completions": [
        "ferroute completions bash" => "to be sourced, or stored for the shell",
    ] &[], [];
    "man": [
        "ferroute man /usr/local/share/man/man1" => "write all pages",
    ] &[], [];
};

/// The exit statuses of the plugin.
const KUBECTL: &[(&str, &str)] = &[
    ("0", "all nodes answer, and none has a problem that the command reports"),
    ("1", "a node has such a problem, or does not answer"),
    ("2", "the arguments are invalid, or the cluster does not answer"),
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use ferroute_config::flags::KubeProxy;

    use super::*;
    use crate::{commands::command, kubectl::plugin};

    fn visible<'a>(command: &'a Command, path: &str, found: &mut Vec<(String, &'a Command)>) {
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            let path = join(path, subcommand.get_name());
            visible(subcommand, &path, found);
            found.push((path, subcommand));
        }
    }

    #[test]
    fn every_command_has_examples() {
        let command = command();
        let mut commands = Vec::new();
        visible(&command, "", &mut commands);
        for (path, _) in &commands {
            assert!(entry(path).is_some(), "no example of {path}");
        }
        for entry in ENTRIES {
            let exists = entry.path.is_empty() || commands.iter().any(|(path, _)| path == entry.path);
            assert!(exists, "no command {}", entry.path);
        }
    }

    #[test]
    fn examples_are_valid_command_lines_of_their_commands() {
        for Entry { path, examples, .. } in ENTRIES {
            for (line, _) in *examples {
                let words: Vec<&str> = line.split(' ').collect();
                let (command, start) = match line.strip_prefix("kubectl ferroute ") {
                    Some(_) => (plugin(), 1),
                    None => (command(), 0),
                };
                let parsed = command.try_get_matches_from(&words[start..]);
                parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
                let of_path = path
                    .strip_prefix("kubectl")
                    .map_or(format!("ferroute {path}"), |rest| format!("kubectl ferroute{rest}"));
                assert!(line.starts_with(of_path.trim()), "{line} is no example of {path}");
            }
        }
    }

    #[test]
    fn examples_of_kube_proxy_are_valid_command_lines_of_it() {
        let page = sections("run", "kube-proxy");
        let (examples, _) = page.split_once(".SH \"EXIT STATUS\"").expect("sections");
        let mut count = 0;
        for line in examples.lines().filter_map(|line| line.strip_prefix("    ")) {
            let line = line.replace("\\-", "-");
            assert!(line.starts_with("kube-proxy "), "{line}");
            KubeProxy::command()
                .try_get_matches_from(line.split(' '))
                .unwrap_or_else(|error| panic!("{line}: {error}"));
            count += 1;
        }
        assert!(count > 1, "{page}");
    }

    #[test]
    fn no_page_refers_to_itself_or_twice_to_another() {
        let pages = ENTRIES.iter().map(|entry| match entry.path {
            "" => ("", "ferroute".to_owned()),
            path => (path, format!("ferroute-{}", path.replace(' ', "-"))),
        });
        for (path, page) in pages.chain([("run", "kube-proxy".to_owned())]) {
            let text = sections(path, &page);
            let (_, references) = text.rsplit_once("SEE ALSO\"\n").expect("references");
            let mut names: Vec<&str> = references.trim().split(", ").collect();
            assert!(!names.contains(&&*format!("\\fB{}\\fR(1)", escaped(&page))), "{page}: {references}");
            names.sort_unstable();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{page}: {references}");
        }
    }

    #[test]
    fn pages_name_where_the_command_finds_a_cluster() {
        let command = command();
        let mut commands = Vec::new();
        visible(&command, "", &mut commands);
        for (path, command) in &commands {
            let takes_kubeconfig = command.get_arguments().any(|argument| argument.get_long() == Some("kubeconfig"));
            // The plugin runs outside of the cluster, with the user's rights.
            let is_plugin = path.starts_with("kubectl");
            assert_eq!(files(path).contains(&TOKEN), takes_kubeconfig && !is_plugin, "{path}");
            assert_eq!(files(path).contains(&KUBECONFIG), is_plugin, "{path}");
        }
    }

    #[test]
    fn related_pages_exist() {
        let command = command();
        let mut commands = Vec::new();
        visible(&command, "", &mut commands);
        let mut pages: Vec<String> =
            commands.iter().map(|(path, _)| format!("ferroute-{}", path.replace(' ', "-"))).collect();
        pages.extend(["ferroute".to_owned(), "kube-proxy".to_owned()]);
        for name in ENTRIES.iter().flat_map(|entry| entry.related) {
            assert!(pages.iter().any(|page| page == name), "{name}");
        }
    }
}
