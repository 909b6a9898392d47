//! Rules that people write by hand: commands of `iptables` in shell scripts and in files for `iptables-restore`, and the output
//! of `iptables -S`.
//!
//! They are applied in their order, and the result is text of `iptables-save`.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt::Write,
};

use ferroute_core::IpFamily;
use ferroute_iptables::{ChainName, TableName};
use ferroute_nftables::script::named_port;

use super::rule_list::RuleList;

/// Returns text in which commands of `iptables` are replaced by the output of `iptables-save` after them.
///
/// # Errors
/// If the result of a command is unknown.
pub(super) fn as_saved(text: &str) -> Result<Cow<'_, str>, String> {
    if !text.lines().map(plain).any(|line| is_edit(line) || programs(line).next().is_some()) {
        return Ok(Cow::Borrowed(text));
    }
    let mut reader = Reader::default();
    for (number, line) in joined(text) {
        reader.line(&line).map_err(|problem| format!("line {number}: {problem}"))?;
    }
    reader.finish().map(Cow::Owned)
}

/// Returns a line without indentation and marks of quotations.
pub(super) fn plain(line: &str) -> &str {
    line.trim_start_matches('\u{feff}').trim_start().trim_start_matches("> ").trim()
}

/// Reports whether a line of a table changes something else than the end of a chain, or is one of `iptables -S`.
fn is_edit(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with('['));
    let is_command = |word: &str| Command::named(word).is_some_and(|command| command != Command::Append);
    words.next().is_some_and(is_command) && words.next().is_some()
}

/// Reports whether a line is one of `iptables -S`. Those of `ipvsadm -Sn` have an option after `-A`.
fn is_listed(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next().is_some_and(|word| Command::named(word).is_some())
        && words.next().is_some_and(|word| !word.starts_with('-'))
}

/// Joins lines that end with a backslash. Returns each with its number.
fn joined(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut is_continued = false;
    for (number, line) in (1..).zip(text.lines().map(plain)) {
        let (line, continues) = line.strip_suffix('\\').map_or((line, false), |line| (line.trim_end(), true));
        match lines.last_mut() {
            Some((_, last)) if is_continued => {
                last.push(' ');
                last.push_str(line);
            }
            _ => lines.push((number, line.to_owned())),
        }
        is_continued = continues;
    }
    lines
}

/// A command of `iptables` with an effect on rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Append,
    Insert,
    Replace,
    Delete,
    NewChain,
    Policy,
    Flush,
    DeleteChain,
    Rename,
}

impl Command {
    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "-A" | "--append" => Self::Append,
            "-I" | "--insert" => Self::Insert,
            "-R" | "--replace" => Self::Replace,
            "-D" | "--delete" => Self::Delete,
            "-N" | "--new-chain" | "--new" => Self::NewChain,
            "-P" | "--policy" => Self::Policy,
            "-F" | "--flush" => Self::Flush,
            "-X" | "--delete-chain" => Self::DeleteChain,
            "-E" | "--rename-chain" => Self::Rename,
            _ => return None,
        })
    }
}

/// The chains of a table.
#[derive(Debug, Default)]
struct Chains {
    by_name: HashMap<String, EditedChain>,
    /// How many chains were created.
    created: usize,
}

#[derive(Debug, Default)]
struct EditedChain {
    /// The number of chains that were created before.
    order: usize,
    /// The rest of its declaration in `iptables-save`.
    head: Option<String>,
    rules: RuleList,
}

/// Returns the text of a rule after `-A CHAIN`, with numbers of ports in the place of names.
fn rule_text(words: &[&str]) -> String {
    let mut text = String::new();
    for (at, word) in words.iter().enumerate() {
        let is_port = at > 0 && PORT_OPTIONS.contains(&words[at - 1]);
        text += if at > 0 { " " } else { "" };
        text += &if is_port { Cow::Owned(numbered_ports(word)) } else { Cow::Borrowed(*word) };
    }
    text
}

impl Chains {
    fn chain(&mut self, name: &str) -> &mut EditedChain {
        self.by_name.entry(name.to_owned()).or_insert_with(|| {
            self.created += 1;
            EditedChain { order: self.created, ..EditedChain::default() }
        })
    }

    /// Applies a command with its words.
    fn apply(&mut self, family: IpFamily, command: Command, words: &[&str]) -> Result<(), String> {
        let Some((name, rest)) = words.split_first() else {
            match command {
                Command::Flush => self.by_name.values_mut().for_each(|chain| chain.rules.clear()),
                Command::DeleteChain => self.by_name.retain(|name, _| is_builtin(name)),
                _ => return Err("the name of a chain is missing".to_owned()),
            }
            return Ok(());
        };
        let numbered = rest.split_first().and_then(|(number, rest)| Some((number.parse::<usize>().ok()?, rest)));
        match command {
            Command::Append => {
                let rules = &mut self.chain(name).rules;
                rules.insert(family, rules.len(), rule_text(rest));
            }
            Command::Insert => {
                let (number, rest) = numbered.unwrap_or((1, rest));
                let rules = &mut self.chain(name).rules;
                let at = number.checked_sub(1).filter(|at| *at <= rules.len());
                let at = at.ok_or_else(|| format!("{name} has no position {number}"))?;
                rules.insert(family, at, rule_text(rest));
            }
            Command::Replace => {
                let (number, rest) = numbered.ok_or("the number of a rule is missing")?;
                let rules = &mut self.chain(name).rules;
                let at = number.checked_sub(1).filter(|at| rules.remove(*at).is_some());
                rules.insert(family, at.ok_or_else(|| no_rule(name, number))?, rule_text(rest));
            }
            Command::Delete => {
                let rules = &mut self.chain(name).rules;
                match numbered {
                    Some((number, _)) => {
                        let removed = number.checked_sub(1).and_then(|at| rules.remove(at));
                        removed.ok_or_else(|| no_rule(name, number))?;
                    }
                    // Scripts delete rules that may not exist.
                    None => _ = rules.position(family, rule_text(rest)).and_then(|at| rules.remove(at)),
                }
            }
            Command::NewChain => _ = self.chain(name),
            Command::Policy => {
                let policy = rest.first().ok_or("the policy is missing")?;
                self.chain(name).head = Some(format!("{policy} [0:0]"));
            }
            Command::Flush => self.chain(name).rules.clear(),
            Command::DeleteChain => drop(self.by_name.remove(*name)),
            Command::Rename => {
                let new = rest.first().ok_or("the new name is missing")?;
                if let Some(chain) = self.by_name.remove(*name) {
                    self.by_name.insert((*new).to_owned(), chain);
                }
            }
        }
        Ok(())
    }

    fn write_into(&self, text: &mut String, table: TableName) {
        _ = writeln!(text, "*{table}");
        let mut chains: Vec<(&String, &EditedChain)> = self.by_name.iter().collect();
        chains.sort_by_key(|(_, chain)| chain.order);
        for (name, chain) in &chains {
            let head = if is_builtin(name) { "ACCEPT [0:0]" } else { "- [0:0]" };
            _ = writeln!(text, ":{name} {}", chain.head.as_deref().unwrap_or(head));
        }
        for (name, chain) in &chains {
            for rule in chain.rules.texts() {
                _ = writeln!(text, "{}", format!("-A {name} {rule}").trim_end());
            }
        }
        text.push_str("COMMIT\n");
    }
}

fn no_rule(chain: &str, number: usize) -> String {
    format!("{chain} has no rule {number}")
}

fn is_builtin(chain: &str) -> bool {
    chain.parse().is_ok_and(|chain: ChainName| chain.is_builtin())
}

/// The state of reading commands.
#[derive(Debug, Default)]
struct Reader {
    /// Text that is not a command, and tables of `iptables-save`.
    text: String,
    /// The tables that commands of a shell change.
    tables: BTreeMap<IpFamily, BTreeMap<TableName, Chains>>,
    /// The open table of a file for `iptables-restore`.
    table: Option<(TableName, Chains)>,
    /// Variables of a shell.
    variables: HashMap<String, String>,
    /// The family and table of the output of `iptables -S`.
    listed: Option<(IpFamily, TableName)>,
    /// Lines of `iptables -S` without a command before them.
    unnamed: Vec<String>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(name) = line.strip_prefix('*')
            && let Some(name) = TableName::from_word(name.trim_end())
        {
            self.close_list()?;
            self.table = Some((name, Chains::default()));
            return Ok(());
        }
        if self.table.is_some() {
            return self.line_of_table(line);
        }
        if is_listed(line) {
            return self.line_of_list(line);
        }
        self.close_list()?;
        if let Some((name, value)) = line.trim_start_matches("export ").split_once('=')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            let value = shell_words(value, &self.variables)?.into_iter().next().unwrap_or_default();
            self.variables.insert(name.to_owned(), value.join(" "));
        }
        let mut is_command = false;
        for (family, command) in programs(line) {
            is_command = true;
            if let Some(words) = shell_words(command, &self.variables)? {
                self.program(family, &words)?;
            }
        }
        if !is_command {
            self.text.push_str(line);
            self.text.push('\n');
        }
        Ok(())
    }

    /// Reads a line of a file for `iptables-restore`.
    fn line_of_table(&mut self, line: &str) -> Result<(), String> {
        let Some((table, chains)) = &mut self.table else { return Ok(()) };
        if line == "COMMIT" {
            chains.write_into(&mut self.text, *table);
            self.table = None;
        } else if let Some((name, head)) =
            line.strip_prefix(':').and_then(|chain| chain.split_once(char::is_whitespace))
        {
            chains.chain(name).head = Some(head.trim().to_owned());
        } else if !line.is_empty() && !line.starts_with('#') {
            let line = line.strip_prefix('[').and_then(|line| line.split_once("] ")).map_or(line, |(_, rule)| rule);
            let mut words = words_of(line).into_iter();
            let command = words.next().and_then(Command::named).ok_or_else(|| format!("unknown command {line:?}"))?;
            // The family matters only for rules that are deleted.
            chains.apply(IpFamily::V4, command, &words.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Reads a line of `iptables -S`.
    fn line_of_list(&mut self, line: &str) -> Result<(), String> {
        let Some((family, table)) = self.listed else {
            let starts = line.starts_with("-P ") && self.unnamed.last().is_some_and(|last| !last.starts_with("-P "));
            if starts {
                self.close_list()?;
            }
            self.unnamed.push(line.to_owned());
            return Ok(());
        };
        let mut words = words_of(line);
        // Counters of `iptables -S -v`.
        if let Some(at) = words.iter().position(|word| *word == "-c") {
            words.drain(at..words.len().min(at + 3));
        }
        let Some(command) = words.first().and_then(|word| Command::named(word)) else { return Ok(()) };
        self.tables.entry(family).or_default().entry(table).or_default().apply(family, command, &words[1..])
    }

    /// Ends the output of `iptables -S`. Without the command, the built-in chains tell the table.
    fn close_list(&mut self) -> Result<(), String> {
        self.listed = None;
        let lines = std::mem::take(&mut self.unnamed);
        if lines.is_empty() {
            return Ok(());
        }
        let policies = || lines.iter().filter_map(|line| line.strip_prefix("-P ")?.split(' ').next());
        let of_chains = TABLES.iter().find(|(_, chains)| policies().eq(chains.iter().copied()));
        let Some((table, _)) = of_chains else {
            self.text.extend(lines.iter().map(|line| format!("{line}\n")));
            return Ok(());
        };
        let is_v6 = |word: &str| word.matches(':').count() > 1 && word.contains('/');
        let is_v6 = lines.iter().flat_map(|line| line.split(' ')).any(is_v6);
        self.listed = Some((if is_v6 { IpFamily::V6 } else { IpFamily::V4 }, *table));
        lines.iter().try_for_each(|line| self.line_of_list(line))?;
        self.listed = None;
        Ok(())
    }

    /// Applies a command of a shell: the arguments of `iptables`.
    fn program(&mut self, family: IpFamily, words: &[String]) -> Result<(), String> {
        let mut table = TableName::Filter;
        let (mut command, mut rest) = (None, Vec::new());
        let mut words = words.iter().map(String::as_str).peekable();
        while let Some(word) = words.next() {
            match word {
                "-t" | "--table" => {
                    let name = words.next().unwrap_or_default();
                    table = TableName::from_word(name).ok_or_else(|| format!("unknown table {name:?}"))?;
                }
                "-w" | "--wait" | "-W" | "--wait-interval" => {
                    words.next_if(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
                }
                "-n" | "--numeric" | "-v" | "--verbose" => {}
                "-S" | "--list-rules" => {
                    self.listed = Some((family, table));
                    // The table may be the last word.
                    let mut rest = words.clone();
                    if rest.any(|word| word == "-t") {
                        let table = rest.next().and_then(TableName::from_word).unwrap_or(table);
                        self.listed = Some((family, table));
                    }
                    return Ok(());
                }
                word if command.is_none() && Command::named(word).is_some() => command = Command::named(word),
                word => rest.push(word),
            }
        }
        let Some(command) = command else { return Ok(()) };
        let rest: Vec<Cow<'_, str>> = rest.into_iter().map(quoted).collect();
        let rest: Vec<&str> = rest.iter().map(AsRef::as_ref).collect();
        self.tables.entry(family).or_default().entry(table).or_default().apply(family, command, &rest)
    }

    fn finish(mut self) -> Result<String, String> {
        self.close_list()?;
        if let Some((table, chains)) = self.table {
            chains.write_into(&mut self.text, table);
            // The reader of the result reports the missing end.
            self.text.truncate(self.text.len() - "COMMIT\n".len());
        }
        for (family, tables) in &self.tables {
            let program = if *family == IpFamily::V4 { "iptables" } else { "ip6tables" };
            for (table, chains) in tables {
                _ = writeln!(self.text, "# Generated by {program}-save");
                chains.write_into(&mut self.text, *table);
            }
        }
        Ok(self.text)
    }
}

/// Returns ports with numbers in the place of names, which `iptables-save` does not print.
fn numbered_ports(text: &str) -> String {
    let numbered = |part: &str| {
        let name = part.trim_end_matches([',', ':']);
        named_port(name).map_or_else(|| part.to_owned(), |port| part.replacen(name, &port.to_string(), 1))
    };
    text.split_inclusive([',', ':']).map(numbered).collect()
}

/// Returns the calls of `iptables` in a line of a shell, with the text after each name. A comment has none.
fn programs(line: &str) -> impl Iterator<Item = (IpFamily, &str)> {
    let is_comment = line.starts_with('#') && !line.contains(" -S");
    let mut rest = if is_comment { "" } else { line };
    std::iter::from_fn(move || {
        loop {
            let (at, family, length) = PROGRAMS
                .iter()
                .filter_map(|(name, family)| Some((rest.find(name)?, *family, name.len())))
                .min_by_key(|(at, _, length)| (*at, usize::MAX - length))?;
            let before = &rest[..at];
            rest = &rest[at + length..];
            let is_word = before.is_empty() || before.ends_with([' ', '/', ';', '&', '|', '(', '\t']);
            // The rest of the line may have further calls.
            if is_word && rest.starts_with(" -") {
                return Some((family, rest));
            }
        }
    })
}

/// Splits the first command of a shell's line into words; none if it is empty.
///
/// # Errors
/// If it has a variable without a value.
fn shell_words(text: &str, variables: &HashMap<String, String>) -> Result<Option<Vec<String>>, String> {
    let (mut words, mut word, mut is_word) = (Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    let mut quote = None;
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\'' | '"', None) => (quote, is_word) = (Some(c), true),
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => {
                is_word = true;
                match (chars.next(), quote) {
                    (Some(c @ ('"' | '\\' | '$' | '`')), _) | (Some(c), None) => word.push(c),
                    (Some(c), Some(_)) => word.extend(['\\', c]),
                    (None, _) => {}
                }
            }
            ('$' | '`', None | Some('"')) => {
                let is_braced = chars.next_if_eq(&'{').is_some();
                let mut name = String::new();
                while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(c);
                }
                let is_closed = !is_braced || chars.next_if_eq(&'}').is_some();
                let value = variables.get(&name).filter(|_| c == '$' && is_closed);
                let value = value.ok_or_else(|| format!("{c}{name} has no known value: write it in its place"))?;
                // Without quotes, a list is several words.
                let mut parts = value.split(' ');
                word.push_str(parts.next().unwrap_or_default());
                for part in parts {
                    match quote {
                        Some(_) => word.extend([" ", part]),
                        None => {
                            words.push(std::mem::take(&mut word));
                            word.push_str(part);
                        }
                    }
                }
                is_word = true;
            }
            (';' | '|' | '&' | ')', None) => break,
            ('>' | '<', None) => {
                // Redirections: `2>/dev/null`.
                word.clear();
                is_word = false;
                break;
            }
            ('#', None) if !is_word => break,
            (c, None) if c.is_whitespace() => {
                if std::mem::take(&mut is_word) {
                    words.push(std::mem::take(&mut word));
                }
            }
            (c, _) => {
                is_word = true;
                word.push(c);
            }
        }
    }
    if is_word {
        words.push(word);
    }
    Ok((!words.is_empty()).then_some(words))
}

/// Splits a line of `iptables-save` at blanks outside of quotes; words keep their quotes.
fn words_of(line: &str) -> Vec<&str> {
    let (mut words, mut start) = (Vec::new(), None);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, c) in line.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            c if c.is_whitespace() && !is_quoted => {
                words.extend(start.take().map(|start| &line[start..at]));
                continue;
            }
            _ => {}
        }
        start.get_or_insert(at);
    }
    words.extend(start.map(|start| &line[start..]));
    words
}

/// Returns a word in the quotes of `iptables-save`, if it requires them.
fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| !c.is_whitespace() && !matches!(c, '"' | '\\');
    match !word.is_empty() && word.chars().all(is_plain) {
        true => Cow::Borrowed(word),
        false => Cow::Owned(format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))),
    }
}

/// Options with ports, which may have names.
const PORT_OPTIONS: [&str; 11] = [
    "--dport",
    "--sport",
    "--destination-port",
    "--source-port",
    "--dports",
    "--sports",
    "--destination-ports",
    "--source-ports",
    "--port",
    "--ports",
    "--to-ports",
];

/// Names of the programs; a path may precede them.
const PROGRAMS: [(&str, IpFamily); 6] = [
    ("ip6tables", IpFamily::V6),
    ("ip6tables-nft", IpFamily::V6),
    ("ip6tables-legacy", IpFamily::V6),
    ("iptables", IpFamily::V4),
    ("iptables-nft", IpFamily::V4),
    ("iptables-legacy", IpFamily::V4),
];
/// The built-in chains of tables, as `iptables -S` prints them.
const TABLES: [(TableName, &[&str]); 4] = [
    (TableName::Filter, &["INPUT", "FORWARD", "OUTPUT"]),
    (TableName::Nat, &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
    (TableName::Mangle, &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]),
    (TableName::Raw, &["PREROUTING", "OUTPUT"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_lead_to_the_rules_that_iptables_save_prints() {
        for (text, expected) in [
            (
                "*filter\n:INPUT DROP [5:6]\n:own - [0:0]\n-A INPUT -j own\n[1:2] -I INPUT -s 10.0.0.9 -j DROP\n\
                 -I INPUT 2 -m comment --comment \"a \\\"b\\\" c\" \\\n  -j ACCEPT\n-D INPUT -j own\nCOMMIT\n",
                "*filter\n:INPUT DROP [5:6]\n:own - [0:0]\n-A INPUT -s 10.0.0.9 -j DROP\n\
                 -A INPUT -m comment --comment \"a \\\"b\\\" c\" -j ACCEPT\nCOMMIT\n",
            ),
            (
                "#!/bin/sh\nWAN=eth0\nNETS=\"10.0.0.0/8\"\n# iptables -A INPUT -j DROP\niptables -P FORWARD DROP\n\
                 sudo iptables -w 5 -N LOGDROP 2>/dev/null || true\niptables -A LOGDROP -j LOG --log-prefix 'it is: '\n\
                 iptables -A FORWARD -i $WAN -s ${NETS} -j LOGDROP\n/sbin/iptables -I FORWARD -j ACCEPT\n\
                 iptables -C FORWARD -j own || iptables -A FORWARD -j own\niptables -R FORWARD 3 -j DROP\n",
                "#!/bin/sh\nWAN=eth0\nNETS=\"10.0.0.0/8\"\n# iptables -A INPUT -j DROP\n# Generated by iptables-save\n*filter\n\
                 :FORWARD DROP [0:0]\n:LOGDROP - [0:0]\n-A FORWARD -j ACCEPT\n-A FORWARD -i eth0 -s 10.0.0.0/8 -j LOGDROP\n\
                 -A FORWARD -j DROP\n-A LOGDROP -j LOG --log-prefix \"it is: \"\nCOMMIT\n",
            ),
            (
                "iptables -t nat -A POSTROUTING -j MASQUERADE\nip6tables -F\niptables -A POSTROUTING -t nat -j ACCEPT\n",
                "# Generated by iptables-save\n*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -j MASQUERADE\n\
                 -A POSTROUTING -j ACCEPT\nCOMMIT\n# Generated by ip6tables-save\n*filter\nCOMMIT\n",
            ),
            (
                "root@n:~# iptables -t nat -S\n-P OUTPUT ACCEPT\n-N own\n-A OUTPUT -c 1 2 -j own\nroot@n:~# exit\n",
                "root@n:~# exit\n# Generated by iptables-save\n*nat\n:OUTPUT ACCEPT [0:0]\n:own - [0:0]\n-A OUTPUT -j own\nCOMMIT\n",
            ),
            (
                "-P INPUT DROP\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT\n-A INPUT -j ACCEPT\n-P PREROUTING ACCEPT\n-P OUTPUT ACCEPT\n",
                "# Generated by iptables-save\n*filter\n:INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
                 -A INPUT -j ACCEPT\nCOMMIT\n# Generated by iptables-save\n*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n",
            ),
        ] {
            let saved = as_saved(text).unwrap();
            let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(lines(&saved), lines(expected), "{text}");
        }
    }

    #[test]
    fn other_text_is_kept() {
        for text in
            ["*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j DROP\nCOMMIT\n", "table ip t {\n}\n", "# iptables-save -c\n"]
        {
            assert!(matches!(as_saved(text).unwrap(), Cow::Borrowed(_)), "{text}");
        }
    }

    #[test]
    fn unknown_results_are_errors() {
        for (text, problem) in [
            ("iptables -A INPUT -i $WAN -j DROP\n", "$WAN"),
            ("iptables -A INPUT -s `own` -j DROP\n", "`own"),
            ("iptables -D INPUT 1\n", "no rule 1"),
            ("\niptables -t odd -F\n", "line 2: unknown table"),
        ] {
            let error = as_saved(text).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
