//! Scripts for `nft -f`, and calls of `nft` in a shell: variables, and commands that add to tables.

use std::collections::HashMap;

use super::{
    ScriptError, head,
    lexer::{Cursor, Token, split},
    unpasted,
};
use crate::{kernel::TableFamily, model::Name};

/// The variables of scripts, which `define` sets.
#[derive(Clone, Debug, Default)]
pub struct Variables(HashMap<String, Vec<Token>>);

impl Variables {
    /// Adds the variables that a text defines, for other texts, which include it.
    pub fn add(&mut self, text: &str) {
        if text.lines().any(|line| line.trim_start().starts_with("define ")) {
            self.read(split(&unpasted(text)));
        }
    }

    /// Returns words with the values of variables.
    pub(super) fn expand(&self, words: Vec<Token>) -> Vec<Token> {
        self.clone().read(words)
    }

    fn read(&mut self, words: Vec<Token>) -> Vec<Token> {
        if !words.iter().any(|word| word.text.contains('$') || DEFINITIONS.contains(&word.text.as_str())) {
            return words;
        }
        let mut cursor = Cursor::new(&words);
        let mut expanded: Vec<Token> = Vec::with_capacity(words.len());
        while let Some(word) = words.get(cursor.at) {
            let begins = expanded.last().is_none_or(|last| ["\n", ";", "{", "}"].contains(&last.text.as_str()));
            if begins && DEFINITIONS.contains(&word.text.as_str()) {
                cursor.at += 1;
                self.define(cursor.statement());
            } else {
                cursor.at += 1;
                self.push(word, &mut expanded);
            }
        }
        expanded
    }

    /// Reads `NAME = VALUE`; blanks before and after `=` are optional.
    fn define(&mut self, words: &[Token]) {
        let Some((name, rest)) = words.split_first() else { return };
        let (name, start) = name.text.split_once('=').unwrap_or((&name.text, ""));
        let first = Token { text: start.to_owned(), line: 0 };
        let mut value = Vec::new();
        for (n, word) in std::iter::once(&first).chain(rest).enumerate() {
            let text = if n == 1 { word.text.trim_start_matches('=') } else { &word.text };
            if !text.is_empty() && text != "\n" {
                self.push(&Token { text: text.to_owned(), line: word.line }, &mut value);
            }
        }
        if value.len() <= MAX_VALUE {
            self.0.insert(name.to_owned(), value);
        }
    }

    /// Adds a word, or the value of the variable that it names.
    fn push(&self, word: &Token, words: &mut Vec<Token>) {
        let line = word.line;
        if !word.text.contains('$') || word.text.starts_with('"') {
            words.push(word.clone());
            return;
        }
        if let Some(value) = word.text.strip_prefix('$').and_then(|name| self.0.get(name)) {
            let last = words.iter().map(|word| word.text.as_str()).rfind(|text| *text != "\n");
            // A list within a list is a part of it.
            let value = match value.as_slice() {
                [open, inner @ .., close]
                    if matches!(last, Some("{" | ",")) && open.text == "{" && close.text == "}" =>
                {
                    inner
                }
                value => value,
            };
            words.extend(value.iter().map(|word| Token { text: word.text.clone(), line }));
            return;
        }
        // Ports, ranges and addresses with ports: `$first-$last`, `:$port`.
        let mut parts = word.text.split('$');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(part.len());
            match self.0.get(&part[..end]).map(Vec::as_slice) {
                Some([value]) => text.push_str(&value.text),
                _ => text.extend(["$", &part[..end]]),
            }
            text.push_str(&part[end..]);
        }
        words.push(Token { text, line });
    }
}

/// The words of a table's blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The family and name of the table; no family if it sees no IP packets.
    pub(super) table: (Option<TableFamily>, Name),
    pub(super) words: Vec<Token>,
}

/// Returns the tables after all commands, in the order of their creation.
pub(super) fn tables(words: &[Token]) -> Result<Vec<Blocks>, ScriptError> {
    let mut tables: Vec<Blocks> = Vec::new();
    let mut cursor = Cursor::new(words);
    while !cursor.is_at_end() {
        let line = cursor.line();
        let verb = cursor.peek();
        match verb {
            "\n" | ";" => cursor.at += 1,
            "table" => {
                cursor.at += 1;
                add_table(&mut cursor, line, &mut tables)?;
            }
            "add" | "create" if cursor.peek_at(1) == "table" => {
                cursor.at += 2;
                add_table(&mut cursor, line, &mut tables)?;
            }
            "add" | "create" | "insert" => add(verb, &mut Cursor::new(cursor.statement()), line, &mut tables)?,
            "flush" if cursor.peek_at(1) == "ruleset" => {
                cursor.statement();
                tables.clear();
            }
            "flush" | "delete" | "destroy" | "replace" | "rename" => {
                let mut words = Cursor::new(cursor.statement());
                words.at = 1;
                let object = words.take();
                let table = head(&mut words);
                if object == "table" {
                    tables.retain(|other| other.table != table);
                } else if OBJECTS.contains(&object) && tables.iter().any(|other| other.table == table) {
                    return Err(ScriptError { line, problem: "only commands that add to a table are supported" });
                }
            }
            _ => drop(cursor.statement()),
        }
    }
    Ok(tables)
}

/// Reads a table after its keyword. A script may name it without a block.
fn add_table(cursor: &mut Cursor<'_>, line: usize, tables: &mut Vec<Blocks>) -> Result<(), ScriptError> {
    let table = head(cursor);
    let words = match cursor.accept("{") {
        true => cursor.block().ok_or(ScriptError { line, problem: "the table has no end" })?,
        false => {
            if !["", "\n", ";"].contains(&cursor.peek()) {
                return Err(ScriptError { line, problem: "want { after the name of a table" });
            }
            &[]
        }
    };
    words_of(tables, table).extend_from_slice(words);
    Ok(())
}

/// Adds a rule, chain, set, map or elements as blocks of their table.
fn add(verb: &str, words: &mut Cursor<'_>, line: usize, tables: &mut Vec<Blocks>) -> Result<(), ScriptError> {
    words.at = 1;
    let object = words.take();
    if !OBJECTS.contains(&object) {
        return Ok(());
    }
    let table = head(words);
    let name = words.take();
    let rest = &words.tokens[words.at.min(words.tokens.len())..];
    let inner = match rest {
        [open, inner @ .., close] if open.text == "{" && close.text == "}" && object != "rule" => inner,
        rest => rest,
    };
    let (keyword, before, after): (_, &[&str], &[&str]) = match object {
        "rule" if ["position", "handle", "index"].contains(&words.peek()) => {
            return Err(ScriptError { line, problem: "rules at positions are not supported" });
        }
        "rule" if verb == "insert" => (INSERT, &[], &[]),
        "rule" => ("chain", &[], &[]),
        "element" => (ELEMENT, &["elements", "=", "{"], &["}"]),
        object => (object, &[], &[]),
    };
    let table = words_of(tables, table);
    let mut push = |text: &str| table.push(Token { text: text.to_owned(), line });
    [keyword, name, "{"].iter().chain(before).for_each(|word| push(word));
    inner.iter().for_each(|word| push(&word.text));
    after.iter().chain(&["\n", "}", "\n"]).for_each(|word| push(word));
    Ok(())
}

fn words_of(tables: &mut Vec<Blocks>, table: (Option<TableFamily>, Name)) -> &mut Vec<Token> {
    let at = tables.iter().position(|other| other.table == table).unwrap_or_else(|| {
        tables.push(Blocks { table, words: Vec::new() });
        tables.len() - 1
    });
    &mut tables[at].words
}

/// Objects of tables that commands add.
pub(super) const OBJECTS: [&str; 6] = ["table", "chain", "rule", "set", "map", "element"];
/// The keyword of a block with a rule that is inserted before those of a chain.
pub(super) const INSERT: &str = "insert chain";
/// The keyword of a block with further elements of a set or map.
pub(super) const ELEMENT: &str = "add element";
const DEFINITIONS: [&str; 2] = ["define", "redefine"];
/// The maximum number of words of a variable: values contain those of other variables.
const MAX_VALUE: usize = 1 << 16;
