//! Rules in files: the output of `iptables-save`, `nft list ruleset`, `ipset save` and `ipset list`, of any host.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use anyhow::{Context, bail};
use ferroute_core::{FileFormat, IpFamily};
use ferroute_iptables::{ParseError, ParseErrorKind, RuleSet, TableName};
use ferroute_nftables::{
    kernel::{TableFamily, TableSnapshot},
    script,
};
use ferroute_trace::{Ipsets, Ruleset, Traceable};

/// The rules of one IP family in files.
#[derive(Debug, Default)]
pub struct DumpedRules {
    /// The rules of iptables, in their order.
    iptables: Vec<RuleSet>,
    /// The tables of nftables that `iptables` does not contain.
    nftables: Vec<TableSnapshot>,
    ipsets: Option<Ipsets>,
    /// The tables whose text ends before their last rule.
    truncated: Vec<ParseError>,
}

impl Traceable for DumpedRules {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        if let Some(ipsets) = &self.ipsets {
            ruleset.add_ipsets(ipsets);
        }
        self.iptables.iter().for_each(|rules| ruleset.add_iptables(rules));
        for snapshot in &self.nftables {
            ruleset.add_nftables_table(format!("{} {}", snapshot.family, snapshot.name), &snapshot.table);
        }
    }
}

impl DumpedRules {
    /// Reads the rules of an IP family in files; `-` is the standard input. A file may have the output of several commands.
    ///
    /// # Errors
    /// If a file cannot be read, or does not contain such output.
    pub fn read(files: &[impl AsRef<Path>], family: IpFamily) -> anyhow::Result<Self> {
        let mut rules = Self::default();
        for file in files {
            let file = file.as_ref();
            let text = read_text(file).with_context(|| format!("cannot read rules in {}", file.display()))?;
            rules.add(&text, family).with_context(|| format!("cannot read rules in {}", file.display()))?;
        }
        rules.remove_duplicates()?;
        Ok(rules)
    }

    /// Describes rules that the files probably lack; `None` if they may be complete.
    pub fn gap(&self, family: IpFamily) -> Option<String> {
        let mut tables = self.iptables.iter().flat_map(|rules| rules.tables.keys());
        let command = if family == IpFamily::V4 { "iptables-save" } else { "ip6tables-save" };
        match (tables.next(), tables.next(), self.nftables.is_empty()) {
            (None, _, true) => {
                Some(format!("the files have no {family} rules: add the output of {command} and of nft list ruleset"))
            }
            (Some(table), None, true) => Some(format!(
                "the files have table {table} only: if the node has other {family} rules, add the output of {command} without -t, or of \
                 nft list ruleset"
            )),
            _ => None,
        }
    }

    fn add(&mut self, text: &str, family: IpFamily) -> anyhow::Result<()> {
        let mut is_known = false;
        for part in parts(text) {
            match kind(&part) {
                Some(Kind::Iptables(of)) => {
                    is_known = true;
                    if of == family {
                        match RuleSet::parse_save(family, &part) {
                            Ok(rules) => self.iptables.push(rules),
                            Err(error) if error.kind == ParseErrorKind::NoCommit => self.truncated.push(error),
                            Err(error) => return Err(error.into()),
                        }
                    }
                }
                Some(Kind::Nftables) => {
                    is_known = true;
                    self.nftables.extend(script::parse(family, &part)?);
                }
                Some(Kind::Ipset) => {
                    is_known = true;
                    self.ipsets.get_or_insert_default().add_save(&part);
                }
                None => {}
            }
        }
        if !is_known {
            bail!("{}", why_unknown(text));
        }
        Ok(())
    }

    /// Removes the tables of `nft list ruleset` that `iptables-save` has printed as well.
    ///
    /// # Errors
    /// If a table is truncated: `iptables-save` ends at the first rule of `nft` that it cannot print. The table must
    /// then be in the output of `nft list ruleset`.
    fn remove_duplicates(&mut self) -> Result<(), ParseError> {
        let is_listed = |error: &ParseError| {
            let name = error.text.trim_start_matches('*').trim_end();
            self.nftables.iter().any(|table| matches!(table.family, TableFamily::Ip(_)) && table.name.as_str() == name)
        };
        if let Some(error) = self.truncated.iter().find(|error| !is_listed(error)) {
            return Err(error.clone());
        }
        let is_printed = |name: &str| {
            let table = TableName::from_word(name);
            table.is_some_and(|table| self.iptables.iter().any(|rules| rules.tables.contains_key(&table)))
        };
        self.nftables.retain(|snapshot| match snapshot.family {
            TableFamily::Ip(_) => !is_printed(snapshot.name.as_str()),
            TableFamily::Inet => true,
        });
        Ok(())
    }
}

/// Maximum size of a file in bytes: rules of 100,000 Services take 200 MB.
const MAX_FILE: u64 = 512 << 20;

/// Returns the text of a file; `-` is the standard input.
pub(super) fn read_text(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let input: Box<dyn Read> = match file == Path::new("-") {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(file)?),
    };
    input.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {} MiB", MAX_FILE >> 20)));
    }
    if let Some(format) = FileFormat::of(&bytes) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format.to_string()));
    }
    // Comments may be in any encoding.
    Ok(without_colors(&String::from_utf8_lossy(&bytes)))
}

/// Removes the escape sequences by which `ip -color` colors its output.
fn without_colors(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        plain.push_str(&part[end..]);
    }
    plain
}

/// The command that printed a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Iptables(IpFamily),
    Nftables,
    Ipset,
}

/// Returns why a text is not output of a supported command.
fn why_unknown(text: &str) -> &'static str {
    let begins =
        |starts: &[&str]| text.lines().any(|line| starts.iter().any(|start| line.trim_start().starts_with(start)));
    match text {
        _ if text.trim().is_empty() => "it is empty",
        _ if begins(&["{\"nftables\"", "\"nftables\":"]) => "it is JSON: use the output of nft list ruleset without -j",
        _ if begins(&["-P ", "-N ", "-A ", "Chain "]) => {
            "iptables -S and iptables -L do not print the table: use the output of iptables-save"
        }
        _ => "neither output of iptables-save, of nft list ruleset nor of ipset save",
    }
}

/// Splits text at the beginnings of outputs of other commands. They may be indented or quoted, with commands between
/// them.
fn parts(text: &str) -> Vec<String> {
    let mut parts: Vec<(Option<Kind>, String)> = vec![(None, String::new())];
    let plain = |line| str::trim_start_matches(line, '\u{feff}').trim_start().trim_start_matches("> ").trim();
    let mut lines = text.lines().map(plain).peekable();
    while let Some(line) = lines.next() {
        let begins = if let Some(kind) = header(line) {
            Some(kind)
        } else if script::is_table_head(line) {
            Some(Kind::Nftables)
        } else if line.starts_with("create ") || lines.peek().is_some_and(|next| is_set_head(line, next)) {
            Some(Kind::Ipset)
        } else {
            None
        };
        let Some((current, text)) = parts.last() else { continue };
        // The first table of rules without a header follows the output of other commands.
        let is_first_table =
            !matches!(current, Some(Kind::Iptables(_))) && is_table(line) && !text.lines().any(is_table);
        // Each table has a separate header.
        if is_first_table || begins.is_some() && begins != *current {
            parts.push((begins, String::new()));
        }
        if let Some((kind, part)) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
            if line == "COMMIT" && matches!(kind, Some(Kind::Iptables(_))) {
                parts.push((None, String::new()));
            }
        }
    }
    parts.into_iter().map(|(_, part)| part).collect()
}

/// Returns the kind of output that a header of `iptables-save` announces.
fn header(line: &str) -> Option<Kind> {
    let program = line.strip_prefix("# Generated by ")?;
    Some(Kind::Iptables(if program.starts_with("ip6tables") { IpFamily::V6 } else { IpFamily::V4 }))
}

/// Returns the command that printed a text; `None` for other text.
fn kind(text: &str) -> Option<Kind> {
    if let Some(kind) = text.lines().find_map(header) {
        return Some(kind);
    }
    if script::is_script(text) {
        return Some(Kind::Nftables);
    }
    let is_listed = || text.lines().zip(text.lines().skip(1)).any(|(line, next)| is_set_head(line, next));
    if text.lines().any(|line| line.starts_with("create ")) || is_listed() {
        return Some(Kind::Ipset);
    }
    let is_v6 = |line: &str| {
        let mut words = line.split(' ');
        words.any(|word| word.matches(':').count() > 1 && !word.starts_with('[') && !word.starts_with('"'))
            || line.contains("icmp6-")
            || line.contains("ipv6-icmp")
    };
    let rules = || text.lines().filter(|line| line.contains("-A "));
    text.lines().any(is_table).then(|| Kind::Iptables(if rules().any(is_v6) { IpFamily::V6 } else { IpFamily::V4 }))
}

/// Reports whether two lines are the first ones of a set of `ipset list`.
fn is_set_head(line: &str, next: &str) -> bool {
    let kind = next.strip_prefix("Type: ").unwrap_or_default();
    line.starts_with("Name: ") && ["hash:", "bitmap:", "list:"].iter().any(|start| kind.starts_with(start))
}

/// Reports whether a line is the first one of a table of `iptables-save`.
fn is_table(line: &str) -> bool {
    line.strip_prefix('*').is_some_and(|name| TableName::from_word(name.trim_end()).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_several_commands_in_one_file_are_told_apart() {
        let text = "# Generated by iptables-save v1.8.9 on Mon\n*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n# Completed on Mon\n\
                    # Generated by iptables-save v1.8.9 on Mon\n*filter\n:FORWARD DROP [1:2]\n\
                    [5:6] -A FORWARD -s 10.0.0.0/8 -j ACCEPT\nCOMMIT\n\
                    # Generated by ip6tables-save v1.8.9 on Mon\n*filter\n-A FORWARD -s fd00::/8 -j DROP\nCOMMIT\n\
                    table ip nat {\n\tchain PREROUTING {\n\t}\n}\ntable inet own {\n\tchain c {\n\t}\n}\n\
                    create s hash:ip family inet hashsize 1024 maxelem 65536\nadd s 10.0.0.1\n";
        let mut rules = DumpedRules::default();
        rules.add(text, IpFamily::V4).unwrap();
        rules.remove_duplicates().unwrap();
        let tables: Vec<TableName> = rules.iptables.iter().flat_map(|rules| rules.tables.keys().copied()).collect();
        assert_eq!(tables, [TableName::Nat, TableName::Filter]);
        assert_eq!(rules.nftables.iter().map(|table| table.name.to_string()).collect::<Vec<_>>(), ["own"]);
        assert!(rules.ipsets.is_some());
        let mut rules = DumpedRules::default();
        rules.add(text, IpFamily::V6).unwrap();
        assert_eq!((rules.iptables.len(), rules.nftables.len()), (1, 1));
    }

    #[test]
    fn table_that_iptables_save_could_not_print_is_that_of_nft() {
        let saved = "# Generated by iptables-save v1.8.9 (nf_tables) on Mon\n*filter\n:FORWARD DROP [0:0]\n:ts - [0:0]\n-A FORWARD -j ts\n";
        let read = |text: &str| {
            let mut rules = DumpedRules::default();
            rules.add(text, IpFamily::V4).unwrap();
            rules.remove_duplicates().map(|()| (rules.iptables.len(), rules.nftables.len()))
        };
        let listed = "table ip filter {\n\tchain ts {\n\t}\n}\n";
        assert_eq!(read(&format!("{listed}{saved}")).unwrap(), (0, 1));
        assert_eq!(read(&format!("{saved}{listed}")).unwrap(), (0, 1));
        assert_eq!(read(&format!("{saved}table ip nat {{\n}}\n")).unwrap_err().kind, ParseErrorKind::NoCommit);
    }

    #[test]
    fn rules_of_one_table_or_of_the_other_family_are_incomplete() {
        let table =
            |name: &str| format!("# Generated by iptables-save v1\n*{name}\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n");
        let both = table("nat") + &table("mangle");
        let nft = "table inet own {\n\tchain c {\n\t}\n}\n";
        for (text, family, is_complete) in [
            (&table("nat"), IpFamily::V4, false),
            (&both, IpFamily::V4, true),
            (&both, IpFamily::V6, false),
            (&(table("nat") + nft), IpFamily::V4, true),
            (&nft.to_owned(), IpFamily::V6, true),
            (&"table ip own {\n}\n".to_owned(), IpFamily::V6, false),
        ] {
            let mut rules = DumpedRules::default();
            rules.add(text, family).unwrap();
            assert_eq!(rules.gap(family).is_none(), is_complete, "{family}: {text}");
        }
    }

    #[test]
    fn text_without_rules_is_an_error_that_says_what_to_use() {
        for (text, remedy) in [
            ("hello\n", "neither"),
            ("\n", "empty"),
            ("{\"nftables\": []}\n", "without -j"),
            ("-P INPUT ACCEPT\n-A INPUT -j DROP\n", "iptables-save"),
            ("Chain INPUT (policy ACCEPT)\n", "iptables-save"),
        ] {
            let error = DumpedRules::default().add(text, IpFamily::V4).unwrap_err().to_string();
            assert!(error.contains(remedy), "{error}");
        }
    }

    #[test]
    fn colors_are_removed() {
        let text = "default via \u{1b}[35m192.168.6.1\u{1b}[0m dev \u{1b}[1;36meth0 \u{1b}[0m\n";
        assert_eq!(without_colors(text), "default via 192.168.6.1 dev eth0 \n");
        assert_eq!(without_colors("plain\u{1b}["), "plain");
    }

    #[test]
    fn pasted_outputs_are_read() {
        let saved = "# Generated by iptables-save v1\r\n*nat\r\n:PREROUTING ACCEPT [0:0]\r\n-A PREROUTING -j ACCEPT\r\nCOMMIT\r\n";
        let listed = "table ip filter {\n\tchain c {\n\t\tdrop\n\t}\n}\n";
        let text = format!("{saved}root@node:~# nft list ruleset\n{listed}root@node:~# exit\n");
        let prefixed = |prefix: &str| text.lines().map(|line| format!("{prefix}{line}\n")).collect::<String>();
        for text in [format!("\u{feff}{text}"), prefixed("    "), prefixed("> ")] {
            let mut rules = DumpedRules::default();
            rules.add(&text, IpFamily::V4).unwrap();
            assert_eq!((rules.iptables.len(), rules.nftables.len()), (1, 1), "{text}");
        }
    }

    #[test]
    fn rules_without_a_header_follow_other_outputs() {
        let text = "2: eth0: <UP>\n    inet 192.168.6.121/24 scope global eth0\ndefault via 192.168.6.1 dev eth0\n\
                    *nat\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n*filter\n-A FORWARD -j DROP\nCOMMIT\n\
                    create s hash:ip family inet\n";
        let mut rules = DumpedRules::default();
        rules.add(text, IpFamily::V4).unwrap();
        assert_eq!(rules.iptables.iter().map(|rules| rules.tables.len()).sum::<usize>(), 2);
        assert!(rules.ipsets.is_some());
        let listed = "Name: s\nType: hash:ip\nHeader: family inet\nMembers:\n10.0.0.1\n\n";
        for text in [format!("{listed}*filter\n-A FORWARD -j DROP\nCOMMIT\n"), listed.to_owned()] {
            let mut of_list = DumpedRules::default();
            of_list.add(&text, IpFamily::V4).unwrap();
            let mut saved = Ipsets::default();
            saved.add_save("create s hash:ip family inet\nadd s 10.0.0.1\n");
            assert_eq!(of_list.ipsets, Some(saved), "{text}");
            assert_eq!(of_list.iptables.len(), text.matches("*filter").count());
        }
    }

    #[test]
    fn family_of_rules_without_a_header_follows_from_their_addresses() {
        assert_eq!(kind("*filter\n-A FORWARD -d fd00::1/128 -j DROP\nCOMMIT\n"), Some(Kind::Iptables(IpFamily::V6)));
        assert_eq!(kind("*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"), Some(Kind::Iptables(IpFamily::V4)));
    }
}
