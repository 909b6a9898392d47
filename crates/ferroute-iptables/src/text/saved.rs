use std::collections::HashMap;

use ferroute_core::IpFamily;

use super::save::{Collector, ParseError, ParseErrorKind, SaveItem, SaveParser};
use crate::{ChainName, Counters, RuleSet, TableName};

/// All rules that were there, whoever wrote them.
///
/// Where our own text is read, a line that makes no sense is an error. Here it is not: other programs write what we do
/// not know, and whoever follows a packet needs only those rules that it meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The rules.
    pub rules: RuleSet,
    /// What they have counted.
    pub counters: RuleCounters,
    /// Lines that could not be read. They are about chains with names that `iptables` itself would not take, which
    /// `nft` can make; a jump to such a chain is a rule with an unknown target.
    pub unread: Vec<ParseError>,
    /// Tables that `iptables-save` says it cannot show, or not all of: other programs have put rules of nf_tables into
    /// them.
    pub partial: Vec<TableName>,
}

/// Packets and bytes that each rule of a rule set has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleCounters(HashMap<(TableName, ChainName), Vec<Counters>>);

/// Reads `iptables-save` text of any origin line by line.
#[derive(Debug)]
pub struct SavedReader {
    parser: SaveParser,
    collector: Collector,
    counters: RuleCounters,
    unread: Vec<ParseError>,
    partial: Vec<TableName>,
}

impl RuleCounters {
    /// What a rule has counted, by its position in its chain, from 0; `None` if that was not told.
    pub fn of(&self, table: TableName, chain: ChainName, position: usize) -> Option<Counters> {
        self.0.get(&(table, chain))?.get(position).copied()
    }
}

impl SavedReader {
    /// A reader for one family's text.
    pub fn new(family: IpFamily) -> Self {
        Self {
            parser: SaveParser::new(family),
            collector: Collector::new(family),
            counters: RuleCounters::default(),
            unread: Vec::new(),
            partial: Vec::new(),
        }
    }

    /// Reads the next line, with or without its end.
    pub fn line(&mut self, line: &str) {
        if let Some(table) = incompatible(line) {
            self.partial.push(table);
            return;
        }
        let item = match self.parser.line(line) {
            Ok(item) => item,
            // `iptables-nft-save` 1.8.2 says on its standard output that there is no such table yet.
            Err(ParseError { why: ParseErrorKind::OutsideTable, .. }) => return,
            Err(error) => return self.unread.push(error),
        };
        let Some((table, item)) = self.parser.table().zip(item) else { return };
        if let (SaveItem::Rule(chain, _), Some(counters)) = (&item, self.parser.counters()) {
            self.counters.0.entry((table, *chain)).or_default().push(counters);
        }
        self.collector.take(table, item);
    }

    /// Says that there are no more lines.
    ///
    /// # Errors
    /// When there should be more: text that was cut off must not be taken for all rules.
    pub fn finish(self) -> Result<Saved, ParseError> {
        let Self { parser, collector, counters, unread, partial } = self;
        parser.finish().map(|()| Saved { rules: collector.rules, counters, unread, partial })
    }
}

/// Reads ``# Table `filter' is incompatible, use 'nft' tool.`` and its like.
fn incompatible(line: &str) -> Option<TableName> {
    let (table, rest) = line.strip_prefix("# Table `")?.split_once('\'')?;
    TableName::from_word(table).filter(|_| rest.contains("incompatible"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

    fn read(text: &str) -> Saved {
        let mut reader = SavedReader::new(IpFamily::V4);
        text.lines().for_each(|line| reader.line(line));
        reader.finish().unwrap()
    }

    fn chain(name: &str) -> ChainName {
        name.parse().unwrap()
    }

    #[test]
    fn what_is_read_without_trouble_is_what_the_strict_reader_reads() {
        let text = "*nat\n:PREROUTING ACCEPT [1:2]\n:A - [0:0]\n-A PREROUTING -j A\n-A B -j RETURN\nCOMMIT\n";
        assert_eq!(read(text).rules, RuleSet::parse_save(IpFamily::V4, text).unwrap());
    }

    #[test]
    fn each_rule_has_its_own_counters() {
        let saved = read(
            "*filter\n:INPUT DROP [0:0]\n:A - [0:0]\n[7:420] -A INPUT -j A\n[3:90] -A A -j DROP\n\
             [1:60] -A INPUT -j ACCEPT\nCOMMIT\n",
        );
        let of = |name: &str, position| saved.counters.of(TableName::Filter, chain(name), position);
        assert_eq!(of("INPUT", 0), Some(Counters { packets: 7, bytes: 420 }));
        assert_eq!(of("INPUT", 1), Some(Counters { packets: 1, bytes: 60 }));
        assert_eq!(of("A", 0), Some(Counters { packets: 3, bytes: 90 }));
        assert_eq!(of("A", 1), None);
    }

    #[test]
    fn chains_that_iptables_could_not_name_do_not_hide_the_others() {
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
    fn tables_that_iptables_cannot_show_are_told() {
        let saved = read(
            "# Table `nat' is incompatible, use 'nft' tool.\n\
             # Table `mangle' contains incompatible base-chains, use 'nft' tool to list them.\n\
             # Table `odd' is incompatible, use 'nft' tool.\n*mangle\nCOMMIT\n",
        );
        assert_eq!(saved.partial, [TableName::Nat, TableName::Mangle]);
    }

    #[test]
    fn an_unknown_table_is_left_out_and_told() {
        let saved = read("*broute\n:X ACCEPT [0:0]\n-A X -j DROP\nCOMMIT\n*nat\n:A - [0:0]\nCOMMIT\n");
        assert_eq!(saved.rules.tables.len(), 1);
        assert_eq!(saved.unread.iter().map(|error| error.line).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn text_that_ends_too_early_is_an_error() {
        let mut reader = SavedReader::new(IpFamily::V4);
        ["*nat", ":A - [0:0]"].iter().for_each(|line| reader.line(line));
        assert_eq!(reader.finish().unwrap_err().why, ParseErrorKind::NoCommit);
    }
}
