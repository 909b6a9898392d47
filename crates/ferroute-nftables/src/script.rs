//! Reading the text of `nft list ruleset`, for rules that are on another host.
//!
//! ```text
//!   text ──► words ──► tables ──► chains ──► rules ──► statements
//!                            └──► sets ────► elements
//! ```
//!
//! Rules have the same types as rules read from the kernel. Unsupported constructs are kept as text. Scripts for `nft -f`, with
//! variables and commands, are read as well.

mod commands;
mod expression;
mod lexer;
mod rule;
mod set;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use ferroute_core::IpFamily;

pub use self::commands::Variables;
use self::{
    commands::Blocks,
    lexer::{Cursor, Token, split, unquoted},
    rule::RuleReader,
    set::SetReader,
};
pub use crate::model::named_port;
use crate::{
    kernel::{MemoryTable, ReadElements, TableFamily, TableSnapshot},
    model::{BaseChain, Chain, ChainType, ChainWithRules, Element, Hook, Name, Policy, Set},
};

/// An error in the text of a ruleset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ScriptError {
    /// The number of the line, from 1.
    pub line: usize,
    /// Description of the problem.
    pub problem: &'static str,
}

/// Reports whether text looks like that of `nft list ruleset`, or like a script for `nft`.
pub fn is_script(text: &str) -> bool {
    text.lines().any(is_head)
}

/// Reports whether a line begins a table, or a script.
pub fn is_head(line: &str) -> bool {
    let line = lexer::command(line);
    // After the brace, `nft` names the owner of a table: `# progname firewalld`.
    let line = line.split('#').next().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["table", _, _, ..] if line.contains('{') => true,
        ["table", family, _] => FAMILIES.contains(family),
        ["define", name, rest @ ..] => name.contains('=') || rest.first().is_some_and(|word| word.starts_with('=')),
        ["flush", "ruleset", ..] => true,
        ["include", file, ..] => file.starts_with(['"', '\'']),
        ["add" | "create" | "insert" | "delete" | "flush" | "destroy", object, ..] => {
            commands::OBJECTS.contains(object)
        }
        _ => false,
    }
}

/// Reads the tables that packets of an IP family pass, in their order.
///
/// # Errors
/// If the text is not a list of tables, or has commands whose result is unknown. Unsupported rules are not an error.
pub fn parse(family: IpFamily, text: &str, variables: &Variables) -> Result<Vec<TableSnapshot>, ScriptError> {
    let tokens = variables.expand(split(&unpasted(text)));
    let mut tables: Vec<TableSnapshot> = Vec::new();
    for Blocks { table: (table_family, name), words } in commands::tables(&tokens)? {
        let handle = u64::try_from(tables.len()).unwrap_or(u64::MAX);
        if let Some(table_family) = table_family.filter(|table| table.sees(family))
            && let Some(table) = read_table(family, table_family, &words)?
        {
            tables.push(snapshot(table_family, name, handle, table));
        }
    }
    Ok(tables)
}

/// Returns the text with the characters that `nft` printed where word processors, chats and HTML have replaced them. Outside of
/// quotes, `nft` prints none of the replacements.
fn unpasted(text: &str) -> Cow<'_, str> {
    if PASTED.iter().all(|(pasted, _)| !text.contains(pasted)) {
        return Cow::Borrowed(text);
    }
    let (mut printed, mut rest, mut is_quoted) = (String::with_capacity(text.len()), text, false);
    while let Some(character) = rest.chars().next() {
        is_quoted = character != '\n' && is_quoted != (character == '"');
        let pasted = PASTED.iter().find(|(pasted, _)| !is_quoted && rest.starts_with(pasted));
        let length = match pasted {
            Some((pasted, original)) => {
                printed.push(*original);
                pasted.len()
            }
            None => {
                printed.push(character);
                character.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    Cow::Owned(printed)
}

/// Replacements, with the characters that `nft` printed.
const PASTED: [(&str, char); 14] = [
    ("&quot;", '"'),
    ("&#34;", '"'),
    ("\u{201c}", '"'),
    ("\u{201d}", '"'),
    ("\u{201e}", '"'),
    ("\u{201f}", '"'),
    ("\u{ab}", '"'),
    ("\u{bb}", '"'),
    ("\u{2013}", '-'),
    ("\u{2014}", '-'),
    ("\u{a0}", ' '),
    ("&lt;", '<'),
    ("&gt;", '>'),
    ("&amp;", '&'),
];

/// Reads the family and name of a table; no family if it sees no IP packets.
fn head(cursor: &mut Cursor<'_>) -> (Option<TableFamily>, Name) {
    let family = match cursor.peek() {
        "ip" => Some(TableFamily::Ip(IpFamily::V4)),
        "ip6" => Some(TableFamily::Ip(IpFamily::V6)),
        "inet" => Some(TableFamily::Inet),
        "arp" | "bridge" | "netdev" => None,
        name => {
            let name = Name::from(unquoted(name));
            cursor.at += 1;
            return (Some(TableFamily::Ip(IpFamily::V4)), name);
        }
    };
    cursor.at += 1;
    (family, Name::from(unquoted(cursor.take())))
}

const FAMILIES: [&str; 6] = ["ip", "ip6", "inet", "arp", "bridge", "netdev"];

fn snapshot(family: TableFamily, name: Name, handle: u64, table: MemoryTable) -> TableSnapshot {
    TableSnapshot {
        family,
        name,
        handle,
        table,
        counters: BTreeMap::new(),
        late_base_chains: Vec::new(),
        unsupported_base_chains: Vec::new(),
        undecoded_sets: Vec::new(),
    }
}

/// Reads the contents of a table; `None` if the kernel ignores it.
fn read_table(family: IpFamily, table: TableFamily, block: &[Token]) -> Result<Option<MemoryTable>, ScriptError> {
    let mut sets: Parts<(bool, Vec<Token>)> = Parts::default();
    let mut bodies: Parts<Vec<&[Token]>> = Parts::default();
    let mut cursor = Cursor::new(block);
    while !cursor.is_at_end() {
        let line = cursor.line();
        let no_end = ScriptError { line, problem: "a block has no end" };
        match cursor.take() {
            keyword @ ("chain" | commands::INSERT) => {
                let name = Name::from(unquoted(cursor.take()));
                cursor.accept("{");
                let (body, parts) = (cursor.block().ok_or(no_end)?, bodies.part(name));
                let at = if keyword == commands::INSERT { 0 } else { parts.len() };
                parts.insert(at, body);
            }
            keyword @ ("set" | "map" | "meter" | commands::ELEMENT) => {
                let name = Name::from(unquoted(cursor.take()));
                cursor.accept("{");
                let (is_map, words) = sets.part(name);
                *is_map |= keyword == "map";
                words.extend_from_slice(cursor.block().ok_or(no_end)?);
                words.push(Token { text: "\n".to_owned(), line });
            }
            "flags" => {
                if cursor.statement().iter().any(|token| token.text == "dormant") {
                    return Ok(None);
                }
            }
            "\n" | ";" => {}
            // Objects that rules refer to by name, and comments.
            _ => loop {
                match cursor.peek() {
                    "\n" | ";" | "" => break,
                    "{" => {
                        cursor.at += 1;
                        cursor.block().ok_or(ScriptError { line, problem: "a block has no end" })?;
                        break;
                    }
                    _ => cursor.at += 1,
                }
            },
        }
    }
    let mut sets: Vec<(Set, Vec<Element>, ReadElements)> = sets
        .list
        .into_iter()
        .map(|(name, (is_map, words))| SetReader::new(family, is_map).read(name, &words))
        .collect();
    let mut reader = RuleReader::new(family, table == TableFamily::Inet);
    let mut chains: Vec<ChainWithRules> =
        bodies.list.into_iter().map(|(name, parts)| read_chain(name, &parts, &mut reader)).collect();
    chains.append(&mut reader.chains);
    sets.append(&mut reader.sets);
    Ok(Some(MemoryTable::from_parts(chains, sets)))
}

/// The parts of the objects of a table, by name, in the order of the first ones. A script may add to an object.
#[derive(Debug)]
struct Parts<T> {
    list: Vec<(Name, T)>,
    positions: HashMap<Name, usize>,
}

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self { list: Vec::new(), positions: HashMap::new() }
    }
}

impl<T: Default> Parts<T> {
    fn part(&mut self, name: Name) -> &mut T {
        let at = *self.positions.entry(name.clone()).or_insert(self.list.len());
        if at == self.list.len() {
            self.list.push((name, T::default()));
        }
        &mut self.list[at].1
    }
}

fn read_chain(name: Name, parts: &[&[Token]], reader: &mut RuleReader) -> ChainWithRules {
    let mut chain = Chain::new(name);
    let (mut rules, mut policy) = (Vec::new(), Policy::Accept);
    for mut cursor in parts.iter().map(|part| Cursor::new(part)) {
        while !cursor.is_at_end() {
            match cursor.peek() {
                "\n" | ";" => cursor.at += 1,
                "type" => chain.base = read_hook(cursor.statement()),
                "policy" => {
                    policy = match cursor.statement().iter().any(|word| word.text == "drop") {
                        true => Policy::Drop,
                        false => Policy::Accept,
                    };
                }
                // A comment of the chain, not of a rule.
                "comment" => drop(cursor.statement()),
                _ => rules.extend(reader.read(cursor.statement())),
            }
        }
    }
    chain.base = chain.base.map(|base| BaseChain { policy, ..base });
    chain.rules(rules)
}

/// Reads `type filter hook input priority filter`; `None` for hooks that IP packets do not pass in the host.
fn read_hook(words: &[Token]) -> Option<BaseChain> {
    let word = |at: usize| words.get(at).map_or("", |token| token.text.as_str());
    let kind = [ChainType::Filter, ChainType::Nat, ChainType::Route].into_iter().find(|kind| kind.name() == word(1))?;
    let hook = match word(3) {
        "prerouting" => Hook::Prerouting,
        "input" => Hook::Input,
        "forward" => Hook::Forward,
        "output" => Hook::Output,
        "postrouting" => Hook::Postrouting,
        _ => return None,
    };
    let at = words.iter().position(|token| token.text == "priority")? + 1;
    let named = [("raw", -300), ("mangle", -150), ("dstnat", -100), ("filter", 0), ("security", 50), ("srcnat", 100)];
    let base: i32 = match named.iter().find(|(name, _)| *name == word(at)) {
        Some((_, priority)) => *priority,
        None => word(at).parse().ok()?,
    };
    let priority = match (word(at + 1), word(at + 2).parse::<i32>()) {
        ("+", Ok(offset)) => base.checked_add(offset)?,
        ("-", Ok(offset)) => base.checked_sub(offset)?,
        _ => base,
    };
    Some(BaseChain { kind, hook, priority, policy: Policy::Accept })
}

#[cfg(test)]
mod tests;
