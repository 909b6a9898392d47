use ferroute_core::IpFamily;

use super::{read_rule::read_rule, words};
use crate::{BadChainName, ChainHead, ChainName, Counters, Policy, Rule, RuleSet, TableName};

/// A line of text that `iptables-save` cannot have printed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read line {line} of the rules, {text:?}")]
pub struct ParseError {
    /// Number of the line, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// What is wrong with it.
    #[source]
    pub why: ParseErrorKind,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseErrorKind {
    /// It is neither table, chain, rule, `COMMIT` nor comment.
    #[error("it is no table, chain, rule or COMMIT")]
    UnknownLine,
    /// It stands outside of a table.
    #[error("it belongs to no table")]
    OutsideTable,
    /// There is no such table.
    #[error("there is no such table")]
    UnknownTable,
    /// A chain's or rule's line has no good chain name.
    #[error("it does not name a chain")]
    ChainName(#[from] BadChainName),
    /// A chain's line names no policy that we know, or counters that are no numbers.
    #[error("its policy or counters are not understood")]
    ChainLine,
    /// A quote is opened and not closed.
    #[error("its quote is not closed")]
    OpenQuote,
    /// The text ends within a table, so that rules may be missing.
    #[error("the text ends before the table's COMMIT")]
    NoCommit,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveItem {
    /// Here a table begins.
    Table(TableName),
    /// The current table has a chain.
    Chain(ChainName, ChainHead),
    /// A chain of the current table has a rule; for what it has counted see [`SaveParser::counters`].
    Rule(ChainName, Rule),
    /// Here the table ends.
    Commit,
}

/// Reads `iptables-save` text line by line, so that rules in any number take no memory.
#[derive(Clone, Debug)]
pub struct SaveParser {
    family: IpFamily,
    table: Option<TableName>,
    line: usize,
    /// The beginning of a rule whose comment has a line break in it.
    pending: String,
    counters: Option<Counters>,
}

impl SaveParser {
    /// A parser for one family's text.
    pub fn new(family: IpFamily) -> Self {
        Self { family, table: None, line: 0, pending: String::new(), counters: None }
    }

    /// The table that the last line belonged to.
    pub fn table(&self) -> Option<TableName> {
        self.table
    }

    /// What the rule on the last line has counted; `iptables-save` tells when it is asked to (`-c`).
    pub fn counters(&self) -> Option<Counters> {
        self.counters
    }

    /// Reads the next line, with or without its end. `None`: it says nothing, or nothing yet.
    ///
    /// # Errors
    /// When the line makes no sense.
    pub fn line(&mut self, line: &str) -> Result<Option<SaveItem>, ParseError> {
        self.line += 1;
        let line = line.strip_suffix('\n').unwrap_or(line);
        if self.pending.is_empty() {
            return self.item(line).map_err(|why| self.error(line, why));
        }
        let mut text = std::mem::take(&mut self.pending);
        text.push('\n');
        text.push_str(line);
        self.item(&text).map_err(|why| self.error(&text, why))
    }

    /// Says that there are no more lines.
    ///
    /// # Errors
    /// When there should be more: text that was cut off must not be taken for all rules.
    pub fn finish(self) -> Result<(), ParseError> {
        if !self.pending.is_empty() {
            return Err(self.error(&self.pending, ParseErrorKind::OpenQuote));
        }
        match self.table {
            Some(table) => Err(self.error(&format!("*{table}"), ParseErrorKind::NoCommit)),
            None => Ok(()),
        }
    }

    fn error(&self, text: &str, why: ParseErrorKind) -> ParseError {
        ParseError { line: self.line, text: text.to_owned(), why }
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
        let Ok(all) = words::split(line) else {
            if line.len() > LONGEST_BROKEN_RULE {
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
                Ok(Some(SaveItem::Rule(chain, read_rule(self.family, line, rest))))
            }
            _ => Err(ParseErrorKind::UnknownLine),
        }
    }
}

impl RuleSet {
    /// Reads all of `iptables-save`'s (or, for IPv6, `ip6tables-save`'s) text.
    ///
    /// # Errors
    /// At the first line that makes no sense, or if the text was cut off.
    pub fn parse_save(family: IpFamily, text: &str) -> Result<Self, ParseError> {
        let mut parser = SaveParser::new(family);
        let mut collector = Collector::new(family);
        for line in text.split_terminator('\n') {
            let item = parser.line(line)?;
            if let Some((table, item)) = parser.table().zip(item) {
                collector.take(table, item);
            }
        }
        parser.finish().map(|()| collector.rules)
    }
}

/// Puts together what lines say.
#[derive(Debug)]
pub(super) struct Collector {
    pub(super) rules: RuleSet,
    /// Where the chain of the last rule is. A chain without a line of its own goes behind it, so that printing gives
    /// the rules in the order in which they came.
    last: Option<usize>,
}

impl Collector {
    /// One that knows of no rules yet.
    pub(super) fn new(family: IpFamily) -> Self {
        Self { rules: RuleSet::new(family), last: None }
    }

    /// Adds what the next line says of a table.
    pub(super) fn take(&mut self, table: TableName, item: SaveItem) {
        let chains = &mut self.rules.table_mut(table).chains;
        match item {
            SaveItem::Table(_) => self.last = None,
            SaveItem::Chain(chain, head) => chains.entry(chain).or_default().head = Some(head),
            SaveItem::Rule(chain, rule) => {
                let at = chains.get_index_of(&chain).unwrap_or_else(|| {
                    let at = self.last.map_or(0, |last| last + 1);
                    chains.shift_insert(at, chain, crate::Chain::default());
                    at
                });
                chains[at].rules.push(rule);
                self.last = Some(at);
            }
            SaveItem::Commit => {}
        }
    }
}

/// Reads a chain's line after the colon.
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

/// Reads `[packets:bytes]`.
fn counters(text: &str) -> Option<Counters> {
    let (packets, bytes) = text.strip_prefix('[')?.strip_suffix(']')?.split_once(':')?;
    Some(Counters { packets: packets.parse().ok()?, bytes: bytes.parse().ok()? })
}

/// Bytes after which a quote that is still open is an error. A comment can hold line breaks, but only 256 bytes.
const LONGEST_BROKEN_RULE: usize = 4096;
