use std::collections::HashMap;

use ferroute_core::IpFamily;

use super::parse_rule::{parse_rule, split};
use crate::{Chain, ChainHead, ChainName, Counters, InvalidChainName, Policy, Rule, RuleSet, TableName};

/// An error in `iptables-save` text, with the invalid line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot parse line {line} of the rules, {text:?}")]
pub struct ParseError {
    /// Number of the line, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// The cause.
    #[source]
    pub kind: ParseErrorKind,
}

/// The cause of a [`ParseError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseErrorKind {
    /// The line is neither a table, chain, rule, `COMMIT` nor comment.
    #[error("not a table, chain, rule or COMMIT")]
    UnknownLine,
    /// The line is outside of a table.
    #[error("line outside of a table")]
    OutsideTable,
    /// The table does not exist.
    #[error("unknown table")]
    UnknownTable,
    /// The name of the chain is invalid.
    #[error(transparent)]
    ChainName(#[from] InvalidChainName),
    /// The policy or counters of a chain are invalid.
    #[error("invalid policy or counters")]
    ChainLine,
    /// A quote is unterminated.
    #[error("unterminated quote")]
    OpenQuote,
    /// The text ends within a table, so rules may be missing.
    #[error("text ends before the COMMIT of the table")]
    NoCommit,
}

/// The content of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveItem {
    /// The start of a table.
    Table(TableName),
    /// A declaration of a chain of the current table.
    Chain(ChainName, ChainHead),
    /// A rule in a chain of the current table. For its counters see [`SaveParser::counters`].
    Rule(ChainName, Rule),
    /// The end of the table.
    Commit,
}

/// A parser of `iptables-save` text. It works line by line, so that its memory does not depend on the number of rules.
#[derive(Clone, Debug)]
pub struct SaveParser {
    family: IpFamily,
    table: Option<TableName>,
    line: usize,
    /// The beginning of a rule whose comment contains a newline.
    pending: String,
    counters: Option<Counters>,
}

impl SaveParser {
    /// Creates a parser for the text of one IP family.
    pub fn new(family: IpFamily) -> Self {
        Self { family, table: None, line: 0, pending: String::new(), counters: None }
    }

    /// Returns the table of the last line.
    pub fn table(&self) -> Option<TableName> {
        self.table
    }

    /// Returns the counters of the rule on the last line, which `iptables-save -c` prints.
    pub fn counters(&self) -> Option<Counters> {
        self.counters
    }

    /// Parses the next line, with or without a newline. Returns `None` for comments, and for a rule that continues on the
    /// next line.
    ///
    /// # Errors
    /// If the line is invalid.
    pub fn line(&mut self, line: &str) -> Result<Option<SaveItem>, ParseError> {
        self.line += 1;
        let line = line.strip_suffix('\n').unwrap_or(line);
        if self.pending.is_empty() {
            return self.item(line).map_err(|kind| self.error(line, kind));
        }
        let mut text = std::mem::take(&mut self.pending);
        text.push('\n');
        text.push_str(line);
        self.item(&text).map_err(|kind| self.error(&text, kind))
    }

    /// Ends the text.
    ///
    /// # Errors
    /// If the text is truncated.
    pub fn finish(self) -> Result<(), ParseError> {
        if !self.pending.is_empty() {
            return Err(self.error(&self.pending, ParseErrorKind::OpenQuote));
        }
        match self.table {
            Some(table) => Err(self.error(&format!("*{table}"), ParseErrorKind::NoCommit)),
            None => Ok(()),
        }
    }

    fn error(&self, text: &str, kind: ParseErrorKind) -> ParseError {
        ParseError { line: self.line, text: text.to_owned(), kind }
    }

    fn item(&mut self, line: &str) -> Result<Option<SaveItem>, ParseErrorKind> {
        self.counters = None;
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        if let Some(table) = line.strip_prefix('*') {
            let table = TableName::from_word(table.trim_end()).ok_or(ParseErrorKind::UnknownTable)?;
            self.table = Some(table);
            return Ok(Some(SaveItem::Table(table)));
        }
        if self.table.is_none() {
            return Err(ParseErrorKind::OutsideTable);
        }
        if line.trim_end() == "COMMIT" {
            self.table = None;
            Ok(Some(SaveItem::Commit))
        } else if let Some(chain) = line.strip_prefix(':') {
            let (name, head) = chain_line(chain)?;
            Ok(Some(SaveItem::Chain(name, head)))
        } else {
            self.rule(line)
        }
    }

    fn rule(&mut self, line: &str) -> Result<Option<SaveItem>, ParseErrorKind> {
        let Ok(all) = split(line) else {
            if line.len() > MAX_MULTILINE_RULE {
                return Err(ParseErrorKind::OpenQuote);
            }
            line.clone_into(&mut self.pending);
            return Ok(None);
        };
        let counted = all.first().is_some_and(|word| word.text.starts_with('[') && word.text.ends_with(']'));
        self.counters = all.first().and_then(|word| counters(&word.text));
        match &all[usize::from(counted)..] {
            [append, chain, rest @ ..] if matches!(&*append.text, "-A" | "--append") => {
                let chain = ChainName::new(&chain.text)?;
                Ok(Some(SaveItem::Rule(chain, parse_rule(self.family, line, rest))))
            }
            _ => Err(ParseErrorKind::UnknownLine),
        }
    }
}

impl RuleSet {
    /// Parses the text of `iptables-save` or, for IPv6, `ip6tables-save`.
    ///
    /// # Errors
    /// If a line is invalid or the text is truncated.
    pub fn parse_save(family: IpFamily, text: &str) -> Result<Self, ParseError> {
        let mut parser = SaveParser::new(family);
        let mut collector = Collector::new(family);
        for line in text.split_terminator('\n') {
            let item = parser.line(line)?;
            if let Some((table, item)) = parser.table().zip(item) {
                collector.add(table, item);
            }
        }
        parser.finish().map(|()| collector.rules)
    }
}

/// Collects parsed lines into a [`RuleSet`].
#[derive(Debug)]
struct Collector {
    rules: RuleSet,
    /// Index of the chain of the last rule. A chain without a declaration is inserted after it, so that printing keeps
    /// the order of the rules.
    last: Option<usize>,
}

impl Collector {
    /// Creates a collector without rules.
    fn new(family: IpFamily) -> Self {
        Self { rules: RuleSet::new(family), last: None }
    }

    /// Adds the next line of a table.
    fn add(&mut self, table: TableName, item: SaveItem) {
        let chains = &mut self.rules.table_mut(table).chains;
        match item {
            SaveItem::Table(_) => self.last = None,
            SaveItem::Chain(chain, head) => chains.entry(chain).or_default().head = Some(head),
            SaveItem::Rule(chain, rule) => {
                let at = chains.get_index_of(&chain).unwrap_or_else(|| {
                    let at = self.last.map_or(0, |last| last + 1);
                    chains.shift_insert(at, chain, Chain::default());
                    at
                });
                chains[at].rules.push(rule);
                self.last = Some(at);
            }
            SaveItem::Commit => {}
        }
    }
}

/// The rules of all programs, as `iptables-save` prints them.
///
/// Unlike [`RuleSet::parse_save`], reading tolerates invalid lines: other programs may create chains that `iptables`
/// cannot name, and following a packet needs only the rules that it traverses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRules {
    /// The rules.
    pub rules: RuleSet,
    /// Counters of the rules.
    pub counters: RuleCounters,
    /// Invalid lines. They concern chains whose names `iptables` would reject but `nft` accepts; a jump to such a chain
    /// is a rule with an unsupported target.
    pub unread: Vec<ParseError>,
    /// Tables that `iptables` cannot express completely, because other programs added nf_tables rules, chains or hooks
    /// to them. `iptables-save` reports such tables as incompatible.
    pub partial: Vec<TableName>,
}

/// The packet and byte counters of the rules of a rule set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleCounters(HashMap<(TableName, ChainName), Vec<Counters>>);

/// A line-by-line reader of [`SavedRules`].
#[derive(Debug)]
pub struct SavedRulesReader {
    parser: SaveParser,
    collector: Collector,
    counters: RuleCounters,
    unread: Vec<ParseError>,
    partial: Vec<TableName>,
}

impl RuleCounters {
    /// Returns the counters of a rule by its position in the chain, from 0; `None` if they were not printed.
    pub fn get(&self, table: TableName, chain: ChainName, position: usize) -> Option<Counters> {
        self.0.get(&(table, chain))?.get(position).copied()
    }
}

impl SavedRulesReader {
    /// Creates a reader for the text of one IP family.
    pub fn new(family: IpFamily) -> Self {
        Self {
            parser: SaveParser::new(family),
            collector: Collector::new(family),
            counters: RuleCounters::default(),
            unread: Vec::new(),
            partial: Vec::new(),
        }
    }

    /// Reads the next line, with or without a newline.
    pub fn line(&mut self, line: &str) {
        if let Some(table) = incompatible(line) {
            self.partial.push(table);
            return;
        }
        let item = match self.parser.line(line) {
            Ok(item) => item,
            // `iptables-nft-save` 1.8.2 reports on standard output that a table does not exist yet.
            Err(ParseError { kind: ParseErrorKind::OutsideTable, .. }) => return,
            Err(error) => return self.unread.push(error),
        };
        if let Some((table, item)) = self.parser.table().zip(item) {
            self.add(table, item, self.parser.counters());
        }
    }

    /// Adds a table that `iptables` cannot express completely.
    pub(crate) fn add_partial(&mut self, table: TableName) {
        self.partial.push(table);
    }

    /// Adds a chain or rule of a table, with its counters.
    pub(crate) fn add(&mut self, table: TableName, item: SaveItem, counters: Option<Counters>) {
        if let (SaveItem::Rule(chain, _), Some(counters)) = (&item, counters) {
            self.counters.0.entry((table, *chain)).or_default().push(counters);
        }
        self.collector.add(table, item);
    }

    /// Ends the text.
    ///
    /// # Errors
    /// If the text is truncated.
    pub fn finish(self) -> Result<SavedRules, ParseError> {
        self.parser.clone().finish().map(|()| self.into_rules())
    }

    /// Returns the rules that were added.
    pub(crate) fn into_rules(self) -> SavedRules {
        let Self { parser: _, collector, counters, unread, partial } = self;
        SavedRules { rules: collector.rules, counters, unread, partial }
    }
}

/// Parses a chain declaration after the colon.
fn chain_line(line: &str) -> Result<(ChainName, ChainHead), ParseErrorKind> {
    let mut words = line.split_whitespace();
    let name = ChainName::new(words.next().unwrap_or_default())?;
    let policy = match words.next() {
        Some("-") => None,
        Some("ACCEPT") => Some(Policy::Accept),
        Some("DROP") => Some(Policy::Drop),
        _ => return Err(ParseErrorKind::ChainLine),
    };
    let counters = words.next().map_or(Some(Counters::default()), counters).ok_or(ParseErrorKind::ChainLine)?;
    match words.next() {
        None => Ok((name, ChainHead { policy, counters })),
        Some(_) => Err(ParseErrorKind::ChainLine),
    }
}

/// Parses `[packets:bytes]`.
fn counters(text: &str) -> Option<Counters> {
    let (packets, bytes) = text.strip_prefix('[')?.strip_suffix(']')?.split_once(':')?;
    Some(Counters { packets: packets.parse().ok()?, bytes: bytes.parse().ok()? })
}

/// Bytes after which an unterminated quote is an error. A comment can contain newlines, but only 256 bytes.
const MAX_MULTILINE_RULE: usize = 4096;

/// Parses comments such as ``# Table `filter' is incompatible, use 'nft' tool.``
fn incompatible(line: &str) -> Option<TableName> {
    let (table, rest) = line.strip_prefix("# Table `")?.split_once('\'')?;
    TableName::from_word(table).filter(|_| rest.contains("incompatible"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

    fn read(text: &str) -> SavedRules {
        let mut reader = SavedRulesReader::new(IpFamily::V4);
        text.lines().for_each(|line| reader.line(line));
        reader.finish().unwrap()
    }

    fn chain(name: &str) -> ChainName {
        name.parse().unwrap()
    }

    #[test]
    fn valid_text_reads_as_the_strict_parser_parses_it() {
        let text = "*nat\n:PREROUTING ACCEPT [1:2]\n:A - [0:0]\n-A PREROUTING -j A\n-A B -j RETURN\nCOMMIT\n";
        assert_eq!(read(text).rules, RuleSet::parse_save(IpFamily::V4, text).unwrap());
    }

    #[test]
    fn each_rule_has_its_own_counters() {
        let saved = read(
            "*filter\n:INPUT DROP [0:0]\n:A - [0:0]\n[7:420] -A INPUT -j A\n[3:90] -A A -j DROP\n\
             [1:60] -A INPUT -j ACCEPT\nCOMMIT\n",
        );
        let counters = |name: &str, position| saved.counters.get(TableName::Filter, chain(name), position);
        assert_eq!(counters("INPUT", 0), Some(Counters { packets: 7, bytes: 420 }));
        assert_eq!(counters("INPUT", 1), Some(Counters { packets: 1, bytes: 60 }));
        assert_eq!(counters("A", 0), Some(Counters { packets: 3, bytes: 90 }));
        assert_eq!(counters("A", 1), None);
    }

    #[test]
    fn chains_with_names_invalid_in_iptables_do_not_hide_the_others() {
        let long = "a-chain-that-nft-has-made-and-iptables-would-not";
        let saved = read(&format!(
            "*filter\n:INPUT ACCEPT [0:0]\n:{long} - [0:0]\n-A INPUT -j {long}\n-A {long} -j DROP\n\
             -A INPUT -s 10.0.0.1/32 -j DROP\nCOMMIT\n"
        ));
        let rules = saved.rules.rules(TableName::Filter, ChainName::INPUT);
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[0].target, Some(Target::Other(long.into())));
        let unread: Vec<usize> = saved.unread.iter().map(|error| error.line).collect();
        assert_eq!(unread, [3, 5]);
    }

    #[test]
    fn incompatible_tables_are_reported() {
        let saved = read(
            "# Table `nat' is incompatible, use 'nft' tool.\n\
             # Table `mangle' contains incompatible base-chains, use 'nft' tool to list them.\n\
             # Table `odd' is incompatible, use 'nft' tool.\n*mangle\nCOMMIT\n",
        );
        assert_eq!(saved.partial, [TableName::Nat, TableName::Mangle]);
    }

    #[test]
    fn an_unknown_table_is_skipped_and_reported() {
        let saved = read("*broute\n:X ACCEPT [0:0]\n-A X -j DROP\nCOMMIT\n*nat\n:A - [0:0]\nCOMMIT\n");
        assert_eq!(saved.rules.tables.len(), 1);
        assert_eq!(saved.unread.iter().map(|error| error.line).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn truncated_text_is_an_error() {
        let mut reader = SavedRulesReader::new(IpFamily::V4);
        ["*nat", ":A - [0:0]"].iter().for_each(|line| reader.line(line));
        assert_eq!(reader.finish().unwrap_err().kind, ParseErrorKind::NoCommit);
    }
}
