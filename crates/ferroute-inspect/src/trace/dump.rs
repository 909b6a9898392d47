//! Rules in files: the output of `iptables-save`, `nft list ruleset`, `ipset save`, `ipset list` and `ipvsadm -Sn` of any
//! host, and the commands and scripts that people write for them.

mod commands;
mod ipvs;
mod merge;
mod rule_list;

use std::{
    fs::File,
    io::{self, Read},
    net::IpAddr,
    path::Path,
};

use anyhow::{Context, bail};
use ferroute_core::{FileFormat, IpFamily};
use ferroute_iptables::{ParseError, ParseErrorKind, RuleSet, TableName, exec::Backend};
use ferroute_nftables::{
    kernel::{TableFamily, TableSnapshot},
    model::SetKind,
    script::{self, Variables},
};
use ferroute_trace::{Hook, Ipsets, Ruleset, Traceable};

use self::{
    ipvs::{SavedServers, UnknownServers},
    merge::{Saved, iptables_name, merge},
};
use super::routes::StaticRouter;

/// The rules of one IP family in files.
#[derive(Debug, Default)]
pub struct DumpedRules {
    /// The output of `iptables-save`, without tables that `iptables` cannot express.
    iptables: Vec<Saved>,
    /// The output of `nft list ruleset`, in the order of creation. For tables that are also in `iptables`, traces use that
    /// copy.
    nftables: Vec<TableSnapshot>,
    ipsets: Option<Ipsets>,
    servers: Option<SavedServers>,
    /// Addresses of the dummy device of ipvs mode.
    service_addresses: Vec<IpAddr>,
    /// Warnings of programs about rules that they do not print.
    warnings: Vec<Warning>,
    /// Whether the elements of sets and maps are missing.
    is_terse: bool,
    /// The tables whose text ends before their last rule.
    truncated: Vec<ParseError>,
    /// The variables of scripts for `nft`, of all files.
    variables: Variables,
    /// Files that scripts for `nft` include.
    includes: Vec<String>,
}

/// A warning of `iptables-save` about rules that it does not print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Warning {
    /// The legacy backend has rules.
    Legacy,
    /// A table has rules or chains that only `nft` can print.
    Incompatible(TableName),
}

impl Traceable for DumpedRules {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        if let Some(ipsets) = &self.ipsets {
            ruleset.add_ipsets(ipsets);
        }
        if let Some(servers) = &self.servers {
            ruleset.add_virtual_servers(servers);
        }
        for hook in [Hook::Input, Hook::Output] {
            let (servers, addresses) = (self.servers.as_ref(), self.service_addresses.as_slice());
            if servers.is_some() || !addresses.is_empty() {
                ruleset.add_chain(UnknownServers { hook, servers, addresses });
            }
        }
        for saved in &self.iptables {
            let is_listed =
                |table| self.nftables.iter().any(|other| iptables_name(other) == Some(table) && saved.is_of(other));
            let tables = saved.rules.tables.keys().filter(|table| !is_listed(**table));
            tables.for_each(|table| ruleset.add_iptables_table(&saved.rules, *table));
        }
        for snapshot in &self.nftables {
            let saved = self.iptables.iter().find(|saved| saved.is_of(snapshot));
            match saved.zip(iptables_name(snapshot)) {
                Some((saved, table)) => ruleset.add_iptables_table(&saved.rules, table),
                None => {
                    ruleset.add_nftables_table(format!("{} {}", snapshot.family, snapshot.name), &snapshot.table);
                }
            }
        }
    }
}

impl DumpedRules {
    /// Reads the rules of an IP family in files; `-` is the standard input. A file may have the output of several commands.
    ///
    /// # Errors
    /// If a file cannot be read, or does not contain such output.
    pub fn read(files: &[impl AsRef<Path>], family: IpFamily) -> anyhow::Result<Self> {
        let read = |file: &Path| read_text(file).with_context(|| format!("cannot read rules in {}", file.display()));
        let texts = files.iter().map(AsRef::as_ref).map(|file| Ok((file, read(file)?)));
        Self::parse(&texts.collect::<anyhow::Result<Vec<_>>>()?, family)
    }

    /// Parses the rules of an IP family in texts of files.
    ///
    /// # Errors
    /// If one of them does not contain such output.
    pub fn parse(texts: &[(&Path, String)], family: IpFamily) -> anyhow::Result<Self> {
        let mut rules = Self::default();
        texts.iter().for_each(|(_, text)| rules.variables.add(text));
        for (file, text) in texts {
            rules.add(text, family).with_context(|| format!("cannot read rules in {}", file.display()))?;
        }
        rules.combine()?;
        let is_read = |include: &String| texts.iter().any(|(file, _)| is_file(include, file));
        rules.includes.retain(|include| !is_read(include));
        Ok(rules)
    }

    /// Describes rules that the files probably lack; `None` if they may be complete.
    pub fn gap(&self, family: IpFamily) -> Option<String> {
        let mut tables = self.iptables.iter().flat_map(|saved| saved.rules.tables.keys());
        let command = if family == IpFamily::V4 { "iptables-save" } else { "ip6tables-save" };
        match (tables.next(), tables.next(), self.nftables.is_empty()) {
            (None, _, true) => Some(format!(
                "the files have no {family} rules, as of a host without any: if the node has some, add the output of {command} and of nft \
                 list ruleset"
            )),
            (Some(table), None, true) => Some(format!(
                "the files have table {table} only: if the node has other {family} rules, add the output of {command} without -t, or of \
                 nft list ruleset"
            )),
            _ => None,
        }
    }

    /// Adds the addresses of the dummy device of ipvs mode.
    pub fn with_service_addresses(self, service_addresses: Vec<IpAddr>) -> Self {
        Self { service_addresses, ..self }
    }

    /// Describes rules that exist and that the files lack.
    pub fn missing(&self, family: IpFamily) -> Vec<String> {
        let prefix = if family == IpFamily::V4 { "iptables" } else { "ip6tables" };
        let has_legacy = self.iptables.iter().any(|saved| saved.backend != Some(Backend::NfTables));
        let is_listed = |table| self.nftables.iter().any(|snapshot| iptables_name(snapshot) == Some(table));
        let mut missing = Vec::new();
        for warning in &self.warnings {
            match warning {
                Warning::Legacy if !has_legacy => missing.push(format!(
                    "the node also has rules of {prefix}-legacy: add the output of {prefix}-legacy-save"
                )),
                Warning::Incompatible(table) if !is_listed(*table) => missing.push(format!(
                    "{prefix}-save does not print all rules of table {table}: add the output of nft list ruleset"
                )),
                Warning::Legacy | Warning::Incompatible(_) => {}
            }
        }
        if self.is_terse {
            let note = "no set or map in the files has elements: use the output of nft list ruleset without -t";
            missing.push(note.to_owned());
        }
        let files = self.includes.iter();
        missing.extend(files.map(|file| format!("the rules include {file}: add it with --rules")));
        missing.dedup();
        missing
    }

    fn add(&mut self, text: &str, family: IpFamily) -> anyhow::Result<()> {
        let (mut is_known, mut backend) = (false, None);
        self.warnings.extend(text.lines().filter_map(|line| warning(line, family)));
        let text = &*commands::as_saved(text).map_err(anyhow::Error::msg)?;
        self.includes.extend(text.lines().filter_map(include));
        for part in parts(text) {
            match kind(&part) {
                Some(Kind::Iptables(of)) => {
                    is_known = true;
                    // Later tables may have no header.
                    if part.lines().any(|line| header(line).is_some()) {
                        backend = Saved::backend(&part);
                    }
                    if of == family {
                        match RuleSet::parse_save(family, &part) {
                            Ok(rules) => self.iptables.push(Saved { rules, backend }),
                            Err(error) if error.kind == ParseErrorKind::NoCommit => self.truncated.push(error),
                            Err(error) => return Err(error.into()),
                        }
                    }
                }
                Some(Kind::Nftables) => {
                    is_known = true;
                    self.nftables.extend(script::parse(family, &part, &self.variables)?);
                }
                Some(Kind::Ipset) => {
                    is_known = true;
                    self.ipsets.get_or_insert_default().add_save(&part);
                }
                Some(Kind::Ipvs) => {
                    is_known = true;
                    self.servers.get_or_insert_default().add_save(&part);
                }
                None => {}
            }
        }
        match why_unknown(text) {
            Some(reason) if !is_known => bail!("{reason}"),
            _ => Ok(()),
        }
    }

    /// Combines the tables that both `iptables-save` and `nft list ruleset` have printed.
    ///
    /// # Errors
    /// If a table is truncated: `iptables-save` ends at the first rule of `nft` that it cannot print. The table must
    /// then be in the output of `nft list ruleset`.
    fn combine(&mut self) -> Result<(), ParseError> {
        let is_listed = |error: &ParseError| {
            let name = error.text.trim_start_matches('*').trim_end();
            self.nftables.iter().any(|table| matches!(table.family, TableFamily::Ip(_)) && table.name.as_str() == name)
        };
        if let Some(error) = self.truncated.iter().find(|error| !is_listed(error)) {
            return Err(error.clone());
        }
        merge(&mut self.iptables, &mut self.nftables);
        self.is_terse = self.is_terse();
        if self.is_terse {
            self.nftables.iter_mut().for_each(|snapshot| snapshot.table.forget_elements());
        }
        Ok(())
    }

    /// Reports whether all sets and maps that have a name and that rules look up are empty, as `nft -t` prints them.
    fn is_terse(&self) -> bool {
        let tables = self.nftables.iter().map(|snapshot| &snapshot.table);
        let mut sets = tables
            .flat_map(|table| table.sets().map(move |set| (table, set)))
            .filter(|(_, set)| !set.name.is_anonymous() && !matches!(set.kind, SetKind::Dynamic { .. }));
        let mut is_used = false;
        let are_empty = sets.all(|(table, set)| {
            is_used |= table.looks_up(&set.name);
            table.elements(&set.name).next().is_none() && table.undecoded(&set.name) == 0
        });
        are_empty && is_used
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
    Ipvs,
}

/// Returns why a text is not output of a supported command; `None` if it may be that of a host without rules: then `nft list
/// ruleset` and `ipset save` print nothing and `iptables-save` at most comments, also after the host's routes.
fn why_unknown(text: &str) -> Option<&'static str> {
    let mut lines = text.lines().map(commands::plain);
    let begins = |starts: &[&str]| lines.clone().any(|line| starts.iter().any(|start| line.starts_with(start)));
    if begins(&["{\"nftables\"", "\"nftables\":"]) {
        Some("it is JSON: use the output of nft list ruleset without -j")
    } else if begins(&["IP Virtual Server version", "-A -t ", "-A -u ", "-a -t ", "-a -u "]) {
        Some("it has virtual servers in another form: use the output of ipvsadm -Sn")
    } else if begins(&["-P ", "-N ", "-A ", "Chain "]) {
        Some("these lines of iptables do not name the table: use the output of iptables-save")
    } else if lines.all(|line| line.is_empty() || line.starts_with('#')) || StaticRouter::has_routes(text) {
        None
    } else {
        Some("neither output of iptables-save, of nft list ruleset nor of ipset save")
    }
}

/// Splits text at the beginnings of outputs of other commands. They may be indented or quoted, with commands between
/// them.
fn parts(text: &str) -> Vec<String> {
    let mut parts: Vec<(Option<Kind>, String)> = vec![(None, String::new())];
    let mut lines = text.lines().map(commands::plain).peekable();
    while let Some(line) = lines.next() {
        let begins = if let Some(kind) = header(line) {
            Some(kind)
        } else if script::is_head(line) {
            Some(Kind::Nftables)
        } else if line.starts_with("create ") || lines.peek().is_some_and(|next| is_set_head(line, next)) {
            Some(Kind::Ipset)
        } else if ipvs::is_server(line) {
            Some(Kind::Ipvs)
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

/// Returns the warning in a line of `iptables-save`, or of `ip6tables-save`.
fn warning(line: &str, family: IpFamily) -> Option<Warning> {
    let line = line.trim_start().trim_start_matches("> ");
    if let Some(rest) = line.strip_prefix("# Warning: ") {
        let program = if family == IpFamily::V4 { "iptables-legacy" } else { "ip6tables-legacy" };
        let is_legacy = rest.starts_with(program) && rest.contains("tables present");
        return is_legacy.then_some(Warning::Legacy);
    }
    // The line is the same for both IP families.
    let (table, rest) = line.strip_prefix("# Table `")?.split_once('\'')?;
    TableName::from_word(table).filter(|_| rest.contains("incompatible")).map(Warning::Incompatible)
}

/// Returns the file that a line of a script for `nft` includes.
fn include(line: &str) -> Option<String> {
    let file = commands::plain(line).strip_prefix("include ")?.trim().trim_end_matches(';').trim_end();
    let file = ['"', '\''].iter().find_map(|quote| file.strip_prefix(*quote)?.strip_suffix(*quote))?;
    Some(file.to_owned())
}

/// Reports whether a script includes a file, as far as their names tell: files may be copies. `*` in a name matches any text.
fn is_file(include: &str, file: &Path) -> bool {
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let (include, file) = (name(include), name(&file.to_string_lossy()));
    match include.split_once('*') {
        Some((start, end)) => file.len() >= start.len() + end.len() && file.starts_with(start) && file.ends_with(end),
        None => file == include,
    }
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
    if text.lines().any(ipvs::is_server) {
        return Some(Kind::Ipvs);
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
        rules.combine().unwrap();
        let tables: Vec<TableName> =
            rules.iptables.iter().flat_map(|saved| saved.rules.tables.keys().copied()).collect();
        assert_eq!(tables, [TableName::Nat, TableName::Filter]);
        let is_saved = |table: &&TableSnapshot| rules.iptables.iter().any(|saved| saved.is_of(table));
        assert_eq!(rules.nftables.iter().filter(is_saved).count(), 1, "of nat and own");
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
            rules.combine().map(|()| (rules.iptables.len(), rules.nftables.len()))
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

    fn read(text: &str) -> DumpedRules {
        let mut rules = DumpedRules::default();
        rules.add(text, IpFamily::V4).unwrap();
        rules.combine().unwrap();
        rules
    }

    #[test]
    fn tables_of_the_other_backend_remain() {
        let table = |header: &str| {
            format!(
                "# Generated by {header} on Mon\n*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -s 10.0.0.0/8 -j DROP\nCOMMIT\n\
                 table ip filter {{\n\tchain FORWARD {{\n\t\ttype filter hook forward priority filter;\n\t\tip saddr 10.0.0.0/8 drop\n\t}}\n}}\n"
            )
        };
        for (header, is_same) in [
            ("iptables-save v1.8.9 (nf_tables)", true),
            ("iptables-nft-save v1.8.7", true),
            ("iptables-save v1.8.7", true),
            ("iptables-legacy-save v1.8.7", false),
            ("iptables-save v1.8.9 (legacy)", false),
        ] {
            let rules = read(&table(header));
            assert_eq!(rules.iptables[0].is_of(&rules.nftables[0]), is_same, "{header}");
        }
        // Other rules have another number.
        let rules = read(&table("iptables-save v1.8.7").replace("\t\tip saddr 10.0.0.0/8 drop\n", ""));
        assert!(!rules.iptables[0].is_of(&rules.nftables[0]));
    }

    #[test]
    fn words_of_iptables_replace_only_modules_that_nft_does_not_print() {
        let saved = "# Generated by iptables-save v1.8.9 (nf_tables) on Mon\n*filter\n:FORWARD ACCEPT [0:0]\n:own - [0:0]\n\
                     -A FORWARD -s 10.0.0.0/8 -p tcp -m set --match-set pods dst -m comment --comment \"a b\" -j own\n\
                     -A FORWARD -p tcp -m mark ! --mark 0x7 -j DROP\n-A own -j LOG --log-prefix x\nCOMMIT\n";
        let listed = "table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy accept;\n\
                      \t\tmeta l4proto tcp ip saddr 10.0.0.0/8 xt match \"set\" xt match \"comment\" counter packets 0 bytes 0 jump own\n\
                      \t\ttcp dport { 9090, 9091 } meta mark != 0x00000007 drop\n\t}\n\
                      \tchain own {\n\t\tcounter packets 0 bytes 0 xt target \"LOG\"\n\t}\n}\n";
        let rules = read(&format!("{saved}{listed}"));
        assert!(rules.iptables[0].rules.tables.is_empty());
        let table = &rules.nftables[0].table;
        let chains = table.chains().flat_map(|chain| &chain.rules);
        let texts: Vec<String> = chains.map(|rule| table.rule_text(rule, IpFamily::V4)).collect();
        assert_eq!(
            texts,
            [
                "-s 10.0.0.0/8 -p tcp -m set --match-set pods dst -m comment --comment \"a b\" jump own",
                "meta l4proto tcp th dport { 9090, 9091 } meta mark != 0x00000007 drop",
                "-j LOG --log-prefix x",
            ]
        );
        // Another number of rules: those of another time.
        let rules = read(&format!("{}{listed}", saved.replace("-A own -j LOG --log-prefix x\n", "")));
        let own = rules.nftables[0].table.chains().last().unwrap();
        assert_eq!(
            rules.nftables[0].table.rule_text(&own.rules[0], IpFamily::V4),
            "counter packets 0 bytes 0 -j LOG …"
        );
    }

    #[test]
    fn facts_about_missing_rules_are_noted() {
        let saved = "*filter\n-A FORWARD -j ACCEPT\nCOMMIT\n";
        let nft = format!("# Generated by iptables-save v1.8.9 (nf_tables) on Mon\n{saved}");
        let legacy = "# Warning: iptables-legacy tables present, use iptables-legacy-save to see them\n";
        let table = "# Table `nat' is incompatible, use 'nft' tool.\n";
        let set = "table ip t {\n\tset s {\n\t\ttype ipv4_addr\n\t}\n\tchain c {\n\t\tip saddr @s drop\n\t}\n}\n";
        for (text, command) in [
            (format!("{nft}{legacy}"), Some("iptables-legacy-save")),
            (format!("> {legacy}{nft}"), Some("iptables-legacy-save")),
            (format!("{nft}{legacy}# Generated by iptables-save v1.8.9 on Mon\n{saved}"), None),
            (format!("{nft}{}", legacy.replace("iptables", "ip6tables")), None),
            (format!("{nft}{table}"), Some("nft list ruleset")),
            (format!("{nft}{table}table ip nat {{\n}}\n"), None),
            (set.to_owned(), Some("without -t")),
            (set.replace("type ipv4_addr\n", "type ipv4_addr\n\t\telements = { 10.0.0.1 }\n"), None),
            (set.replace("type ipv4_addr\n", "type ipv4_addr\n\t\tsize 9\n\t\tflags dynamic\n"), None),
            (set.replace("ip saddr @s ", ""), None),
        ] {
            let missing = read(&text).missing(IpFamily::V4);
            assert_eq!(missing.is_empty(), command.is_none(), "{missing:?}: {text}");
            assert!(command.is_none_or(|command| missing[0].contains(command)), "{missing:?}");
        }
    }

    #[test]
    fn scripts_are_read_with_the_files_that_they_include() {
        let main = "define PORTS = { 22, 80 }\ninclude \"/etc/nft/sets-*.nft\"\ntable ip t { chain c { tcp dport $PORTS ip saddr $OWN drop } }\n";
        let rules = read(main);
        assert_eq!(rules.nftables.len(), 1);
        assert!(rules.missing(IpFamily::V4)[0].contains("add it with --rules"));
        for (file, is_included) in [("/tmp/sets-a.nft", true), ("sets-.nft", true), ("/etc/sets.nft", false)] {
            assert_eq!(is_file("/etc/nft/sets-*.nft", Path::new(file)), is_included, "{file}");
        }
        let script = "iptables -t nat -A POSTROUTING -j MASQUERADE\nnft add table ip own\nnft add chain ip own c '{ type filter hook input priority 0; }'\n";
        let rules = read(script);
        assert_eq!((rules.iptables.len(), rules.nftables.len()), (1, 1));
    }

    #[test]
    fn virtual_servers_are_read() {
        let text = "-A -t 10.96.0.1:443 -s rr\n-a -t 10.96.0.1:443 -r 192.168.6.121:6443 -m -w 1\n\
                    -A -u 10.96.0.10:53 -s rr -p 10800\n-A -t 192.0.2.1:80 -s wlc\n-a -t 192.0.2.1:80 -r 10.0.0.9:80 -g -w 3\n";
        let saved = "*filter\n-A FORWARD -j ACCEPT\nCOMMIT\n";
        for text in [text.to_owned(), format!("{text}{saved}"), format!("{saved}{text}")] {
            let mut rules = DumpedRules::default();
            rules.add(&text, IpFamily::V4).unwrap();
            assert_eq!(rules.iptables.len(), text.matches("*filter").count());
            let servers = format!("{:?}", rules.servers);
            for part in ["10.96.0.1", "6443", "10.96.0.10", "direct: {ServerKey { address: 192.0.2.1, port: 80"] {
                assert!(servers.contains(part), "{part}: {servers}");
            }
        }
    }

    #[test]
    fn text_without_rules_is_an_error_that_says_what_to_use() {
        for (text, remedy) in [
            ("hello\n", "neither"),
            ("{\"nftables\": []}\n", "without -j"),
            ("-P INPUT ACCEPT\n-A INPUT -j DROP\n", "iptables-save"),
            ("iptables -A INPUT -i $WAN -j DROP\n", "$WAN has no known value"),
            ("Chain INPUT (policy ACCEPT)\n", "iptables-save"),
            ("IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n", "ipvsadm -Sn"),
            ("-A -t kubernetes.default:https -s rr\n", "ipvsadm -Sn"),
        ] {
            let error = DumpedRules::default().add(text, IpFamily::V4).unwrap_err().to_string();
            assert!(error.contains(remedy), "{error}");
        }
    }

    #[test]
    fn text_of_a_host_without_rules_is_noted() {
        let routes = "2: eth0: <UP>\n    inet 192.168.6.121/24 scope global eth0\ndefault via 192.168.6.1 dev eth0\n";
        let legacy = "# Warning: iptables-legacy tables present, use iptables-legacy-save to see them\n";
        for text in ["", "\n", "# Generated by iptables-save v1\n# Completed\n", "# no rules\n", routes, legacy] {
            let rules = DumpedRules::parse(&[(Path::new("node.txt"), text.to_owned())], IpFamily::V4).unwrap();
            assert!(rules.gap(IpFamily::V4).unwrap().contains("no IPv4 rules"), "{text}");
            assert_eq!(rules.missing(IpFamily::V4).len(), usize::from(text == legacy), "{text}");
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
        assert_eq!(rules.iptables.iter().map(|saved| saved.rules.tables.len()).sum::<usize>(), 2);
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
