//! From YAML to values. The parser gives events; here they become mappings and lists, with aliases and merge keys
//! (`<<`) put in place. How large aliases may make a document is limited, because a few lines of them can stand for
//! more values than there is memory.

use std::{borrow::Cow, collections::HashMap};

use granit_parser::{Event, Parser, ScalarStyle, ScanError, StrInput, Tag};

use super::{
    error::Cause,
    scalar,
    value::{Entry, Node, Root, Sink, SyntaxError, Value, duplicate_key},
};

/// Parses one document and gives its parts to `sink`; nothing for an empty one.
pub(super) fn parse<'t>(text: &'t str, sink: &mut dyn Sink<'t>) -> Result<(), SyntaxError> {
    let options = granit_parser::options! { emit_comments: false };
    let parser = Parser::new_from_str_with_options(text, options);
    let mut composer = Composer { parser, anchors: HashMap::new(), copies: 0 };
    loop {
        match composer.next()? {
            (Event::StreamStart | Event::DocumentStart(..), _) => {}
            (Event::StreamEnd, _) => return Ok(()),
            (event, line) => {
                composer.root(event, line, sink)?;
                return composer.end();
            }
        }
    }
}

struct Composer<'t> {
    parser: Parser<'t, StrInput<'t>>,
    /// What has been given a name with `&`, by the parser's number for it.
    anchors: HashMap<usize, Node<'t>>,
    /// How many values have been copied for anchors and aliases.
    copies: usize,
}

impl<'t> Composer<'t> {
    fn next(&mut self) -> Result<(Event<'t>, u32), SyntaxError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, line(span.start.line()))),
            Some(Err(error)) => Err(syntax_error(&error)),
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    /// Nothing may follow the document, since the text was split into documents before.
    fn end(&mut self) -> Result<(), SyntaxError> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentEnd, _) => {}
                (_, line) => return Err(SyntaxError { line, cause: Cause::Yaml("a second document".to_owned()) }),
            }
        }
    }

    fn root(&mut self, event: Event<'t>, line: u32, sink: &mut dyn Sink<'t>) -> Result<(), SyntaxError> {
        if !matches!(event, Event::MappingStart(..)) {
            let node = self.node(event, line, 0)?;
            sink.root(Root { node, is_list: false });
            return Ok(());
        }
        let mut map = Mapping::new(line);
        let mut is_list = false;
        while let Some((key, key_line)) = self.key()? {
            let (event, line) = self.next()?;
            match (&*key.0, event) {
                ("items", Event::SequenceStart(_, 0, _)) if !is_list => {
                    is_list = true;
                    self.list(1, &mut |index, node| sink.item(index, node))?;
                }
                ("items", _) if is_list => return Err(duplicate(&key.0, key_line)),
                (_, event) => map.add(key, key_line, self.node(event, line, 1)?)?,
            }
        }
        let mut node = map.finish()?;
        // A list that came by an alias or a merge.
        if !is_list && let Value::Map(entries) = &mut node.value {
            let listed = entries.iter().position(|(key, node)| key == "items" && matches!(node.value, Value::List(_)));
            if let Some((_, Node { value: Value::List(items), .. })) = listed.map(|index| entries.swap_remove(index)) {
                is_list = true;
                items.into_iter().enumerate().for_each(|(index, item)| sink.item(index, item));
            }
        }
        sink.root(Root { node, is_list });
        Ok(())
    }

    /// The node that begins with `event`. `depth` is the number of lists and mappings around it.
    fn node(&mut self, event: Event<'t>, line: u32, depth: usize) -> Result<Node<'t>, SyntaxError> {
        if depth > MAX_DEPTH {
            return Err(SyntaxError { line, cause: Cause::TooDeep(MAX_DEPTH) });
        }
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => (scalar_value(text, style, tag.as_deref()), anchor),
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                self.list(depth + 1, &mut |_, node| items.push(node))?;
                (Value::List(items), anchor)
            }
            Event::MappingStart(_, anchor, _) => {
                let mut map = Mapping::new(line);
                while let Some((key, key_line)) = self.key()? {
                    let (event, line) = self.next()?;
                    map.add(key, key_line, self.node(event, line, depth + 1)?)?;
                }
                (map.finish()?.value, anchor)
            }
            Event::Alias(anchor) => return self.alias(anchor, line),
            _ => return Err(SyntaxError { line, cause: Cause::Yaml("a value is missing".to_owned()) }),
        };
        let node = Node { line, value };
        if anchor != NO_ANCHOR {
            let copy = self.copy(&node, line)?;
            self.anchors.insert(anchor, copy);
        }
        Ok(node)
    }

    /// The items of a list whose beginning has been read.
    fn list(&mut self, depth: usize, each: &mut dyn FnMut(usize, Node<'t>)) -> Result<(), SyntaxError> {
        for index in 0.. {
            match self.next()? {
                (Event::SequenceEnd, _) => break,
                (event, line) => each(index, self.node(event, line, depth)?),
            }
        }
        Ok(())
    }

    /// The next key of a mapping with its line, or nothing at its end.
    fn key(&mut self) -> Result<Option<(Key<'t>, u32)>, SyntaxError> {
        let (event, line) = self.next()?;
        let key = match event {
            Event::MappingEnd => return Ok(None),
            Event::Scalar(text, style, NO_ANCHOR, _) => Key(text, style == ScalarStyle::Plain),
            Event::Scalar(text, style, anchor, tag) => {
                let node = Node { line, value: scalar_value(text.clone(), style, tag.as_deref()) };
                self.anchors.insert(anchor, node);
                Key(text, false)
            }
            Event::Alias(anchor) => match self.alias(anchor, line)?.value {
                Value::Text(text) | Value::Number(text) | Value::Bool(_, text) => Key(text, false),
                _ => return Err(SyntaxError { line, cause: Cause::KeyNotText }),
            },
            _ => return Err(SyntaxError { line, cause: Cause::KeyNotText }),
        };
        Ok(Some((key, line)))
    }

    /// What an alias stands for, on the alias's own line.
    fn alias(&mut self, anchor: usize, line: u32) -> Result<Node<'t>, SyntaxError> {
        // The parser knows the name, so if there is no value yet, we are still within it.
        let Some(node) = self.anchors.remove(&anchor) else {
            return Err(SyntaxError { line, cause: Cause::EndlessAlias });
        };
        let copy = self.copy(&node, line);
        self.anchors.insert(anchor, node);
        copy
    }

    fn copy(&mut self, node: &Node<'t>, line: u32) -> Result<Node<'t>, SyntaxError> {
        self.copies = self.copies.saturating_add(count(node));
        if self.copies > MAX_COPIES {
            return Err(SyntaxError { line, cause: Cause::TooManyAliases(MAX_COPIES) });
        }
        Ok(Node { line, ..node.clone() })
    }
}

/// The key of a mapping, and whether it stands without quotes, as `<<` must.
struct Key<'t>(Cow<'t, str>, bool);

/// A mapping while it is read.
struct Mapping<'t> {
    line: u32,
    entries: Vec<Entry<'t>>,
    /// What is to be merged into it.
    merged: Vec<Node<'t>>,
}

impl<'t> Mapping<'t> {
    fn new(line: u32) -> Self {
        Self { line, entries: Vec::new(), merged: Vec::new() }
    }

    fn add(&mut self, Key(key, plain): Key<'t>, line: u32, node: Node<'t>) -> Result<(), SyntaxError> {
        match node.value {
            _ if !plain || key != "<<" => self.entries.push((key, node)),
            Value::Map(_) => self.merged.push(node),
            Value::List(nodes) if nodes.iter().all(|node| matches!(node.value, Value::Map(_))) => {
                self.merged.extend(nodes);
            }
            _ => return Err(SyntaxError { line, cause: Cause::BadMerge }),
        }
        Ok(())
    }

    /// The mapping's own keys go before merged ones, and earlier merged ones before later ones.
    fn finish(mut self) -> Result<Node<'t>, SyntaxError> {
        if let Some(key) = duplicate_key(&self.entries) {
            let last = self.entries.iter().rev().find(|(name, _)| name == key);
            return Err(duplicate(key, last.map_or(self.line, |(_, node)| node.line)));
        }
        for node in self.merged {
            let Value::Map(entries) = node.value else { continue };
            for (key, node) in entries {
                if !self.entries.iter().any(|(own, _)| *own == key) {
                    self.entries.push((key, node));
                }
            }
        }
        Ok(Node { line: self.line, value: Value::Map(self.entries) })
    }
}

fn scalar_value<'t>(text: Cow<'t, str>, style: ScalarStyle, tag: Option<&Tag>) -> Value<'t> {
    match tag {
        // `!` and `!!str` say «text»; the other tags of YAML itself say «not just text».
        Some(tag) if tag.is_yaml_core_schema_tag("str") || tag.parts() == ("", "!") => Value::Text(text),
        Some(tag) if tag.is_yaml_core_schema() => scalar::resolve(text),
        _ if style == ScalarStyle::Plain => scalar::resolve(text),
        _ => Value::Text(text),
    }
}

fn count(node: &Node<'_>) -> usize {
    1 + match &node.value {
        Value::List(items) => items.iter().map(count).sum(),
        Value::Map(entries) => entries.iter().map(|(_, node)| count(node)).sum(),
        _ => 0,
    }
}

fn syntax_error(error: &ScanError) -> SyntaxError {
    SyntaxError { line: line(error.marker().line()), cause: Cause::Yaml(error.info()) }
}

fn duplicate(key: &str, line: u32) -> SyntaxError {
    SyntaxError { line, cause: Cause::DuplicateKey(key.to_owned()) }
}

fn line(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The parser's number for «has no name».
const NO_ANCHOR: usize = 0;

/// Lists and mappings within each other; objects of Kubernetes stay far below, and so does the stack.
const MAX_DEPTH: usize = 64;

/// Values that aliases may add to a document; about 10 MB.
const MAX_COPIES: usize = 100_000;
