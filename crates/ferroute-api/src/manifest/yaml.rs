//! The YAML parser: composes the parser's events to values, and resolves aliases and merge keys (`<<`). The expansion of
//! aliases is limited, because a few lines of them can stand for more values than fit in memory.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    rc::Rc,
};

use granit_parser::{Event, Parser, ScalarStyle, ScanError, StrInput, Tag};

use super::{
    error::Cause,
    value::{Budget, Entry, Node, Part, Sink, SyntaxError, Value, duplicate_key},
};

/// Parses one document and passes its parts to `sink`; none if the document is empty.
pub(super) fn parse<'t>(text: &'t str, sink: &mut Sink<'_, 't>) -> Result<(), SyntaxError> {
    let options = granit_parser::options! { emit_comments: false };
    let parser = Parser::new_from_str_with_options(text, options);
    let mut composer = Composer { parser, anchors: HashMap::new(), copies: 0, budget: Rc::default() };
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
    /// Anchored nodes, by the parser's anchor ID.
    anchors: HashMap<usize, Node<'t>>,
    /// Values copied for anchors and aliases, by [`weight`].
    copies: usize,
    budget: Rc<Budget>,
}

impl<'t> Composer<'t> {
    fn next(&mut self) -> Result<(Event<'t>, u32), SyntaxError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, line(span.start.line()))),
            Some(Err(error)) => Err(syntax_error(&error)),
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    /// Checks that nothing follows the document, since documents were split before.
    fn end(&mut self) -> Result<(), SyntaxError> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentEnd, _) => {}
                (_, line) => return Err(yaml_error(line, "unexpected second document")),
            }
        }
    }

    fn root(&mut self, event: Event<'t>, line: u32, sink: &mut Sink<'_, 't>) -> Result<(), SyntaxError> {
        if !matches!(event, Event::MappingStart(..)) {
            let node = self.node(event, line, 0)?;
            sink(Part::Root { node, is_list: false });
            return Ok(());
        }
        let mut map = Mapping::new(line);
        let mut is_list = false;
        while let Some((key, key_line)) = self.key()? {
            let (event, line) = self.next()?;
            match (&*key.text, event) {
                ("items", Event::SequenceStart(_, NO_ANCHOR, _)) if !is_list => {
                    is_list = true;
                    let budget = Rc::clone(&self.budget);
                    self.list(1, &mut |index, node| {
                        budget.reset();
                        sink(Part::Item(index, node));
                    })?;
                }
                ("items", _) if is_list => return Err(duplicate(&key.text, key_line)),
                (_, event) => map.add(key, key_line, self.node(event, line, 1)?)?,
            }
        }
        let mut node = map.finish()?;
        // The list may also come from an alias or a merge.
        if !is_list && let Some(items) = node.take_items() {
            is_list = true;
            items.into_iter().enumerate().for_each(|(index, item)| sink(Part::Item(index, item)));
        }
        sink(Part::Root { node, is_list });
        Ok(())
    }

    /// Composes the node that starts with `event`. `depth` is the number of enclosing lists and mappings.
    fn node(&mut self, event: Event<'t>, line: u32, depth: usize) -> Result<Node<'t>, SyntaxError> {
        if depth > MAX_DEPTH {
            return Err(SyntaxError { line, cause: Cause::TooDeep(MAX_DEPTH) });
        }
        self.budget.take().map_err(|cause| SyntaxError { line, cause })?;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => (scalar(text, style, tag.as_deref()), anchor),
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
            _ => return Err(yaml_error(line, "missing value")),
        };
        let node = Node { line, value };
        if anchor != NO_ANCHOR {
            let copy = self.copy(&node, line)?;
            self.anchors.insert(anchor, copy);
        }
        Ok(node)
    }

    /// Composes the items of a list whose start event has been consumed.
    fn list(&mut self, depth: usize, each: &mut dyn FnMut(usize, Node<'t>)) -> Result<(), SyntaxError> {
        for index in 0.. {
            match self.next()? {
                (Event::SequenceEnd, _) => break,
                (event, line) => each(index, self.node(event, line, depth)?),
            }
        }
        Ok(())
    }

    /// Returns the next key of a mapping and its line, or `None` at the end of the mapping.
    fn key(&mut self) -> Result<Option<(Key<'t>, u32)>, SyntaxError> {
        let (event, line) = self.next()?;
        let key = match event {
            Event::MappingEnd => return Ok(None),
            Event::Scalar(text, style, NO_ANCHOR, _) => Key { text, is_plain: style == ScalarStyle::Plain },
            Event::Scalar(text, style, anchor, tag) => {
                let node = Node { line, value: scalar(text.clone(), style, tag.as_deref()) };
                self.anchors.insert(anchor, node);
                Key { text, is_plain: false }
            }
            Event::Alias(anchor) => match self.alias(anchor, line)?.value {
                Value::String(text) | Value::Number(text) | Value::Bool(_, text) => Key { text, is_plain: false },
                _ => return Err(SyntaxError { line, cause: Cause::KeyNotString }),
            },
            _ => return Err(SyntaxError { line, cause: Cause::KeyNotString }),
        };
        Ok(Some((key, line)))
    }

    /// Returns a copy of the anchored node, with the line of the alias.
    fn alias(&mut self, anchor: usize, line: u32) -> Result<Node<'t>, SyntaxError> {
        // The parser has already rejected unknown anchors, so a missing node is still being composed.
        let Some(node) = self.anchors.remove(&anchor) else {
            return Err(SyntaxError { line, cause: Cause::RecursiveAlias });
        };
        let copy = self.copy(&node, line);
        self.anchors.insert(anchor, node);
        copy
    }

    fn copy(&mut self, node: &Node<'t>, line: u32) -> Result<Node<'t>, SyntaxError> {
        self.copies = self.copies.saturating_add(weight(node));
        if self.copies > MAX_COPIES {
            return Err(SyntaxError { line, cause: Cause::TooManyAliases(MAX_COPIES) });
        }
        Ok(Node { line, ..node.clone() })
    }
}

/// The key of a mapping.
struct Key<'t> {
    text: Cow<'t, str>,
    /// The key is not quoted, which `<<` requires to be a merge key.
    is_plain: bool,
}

/// A mapping that is being composed.
struct Mapping<'t> {
    line: u32,
    entries: Vec<Entry<'t>>,
    /// The values of its merge keys.
    merged: Vec<Node<'t>>,
}

impl<'t> Mapping<'t> {
    fn new(line: u32) -> Self {
        Self { line, entries: Vec::new(), merged: Vec::new() }
    }

    fn add(&mut self, key: Key<'t>, line: u32, node: Node<'t>) -> Result<(), SyntaxError> {
        match node.value {
            _ if !key.is_plain || key.text != "<<" => self.entries.push((key.text, node)),
            Value::Map(_) => self.merged.push(node),
            Value::List(nodes) if nodes.iter().all(|node| matches!(node.value, Value::Map(_))) => {
                self.merged.extend(nodes);
            }
            _ => return Err(SyntaxError { line, cause: Cause::BadMerge }),
        }
        Ok(())
    }

    /// Applies the merge keys. The mapping's own keys take precedence over merged ones, and earlier merged ones over
    /// later ones.
    fn finish(mut self) -> Result<Node<'t>, SyntaxError> {
        if let Some(key) = duplicate_key(&self.entries) {
            let last = self.entries.iter().rev().find(|(name, _)| name == key);
            return Err(duplicate(key, last.map_or(self.line, |(_, node)| node.line)));
        }
        if self.merged.is_empty() {
            return Ok(Node { line: self.line, value: Value::Map(self.entries) });
        }
        let mut keys: HashSet<Cow<'t, str>> = self.entries.iter().map(|(key, _)| key.clone()).collect();
        for node in self.merged {
            let Value::Map(entries) = node.value else { continue };
            self.entries.extend(entries.into_iter().filter(|(key, _)| keys.insert(key.clone())));
        }
        Ok(Node { line: self.line, value: Value::Map(self.entries) })
    }
}

fn scalar<'t>(text: Cow<'t, str>, style: ScalarStyle, tag: Option<&Tag>) -> Value<'t> {
    match tag {
        // `!` and `!!str` make a scalar a string; the other core tags make it the type of its plain spelling.
        Some(tag) if tag.is_yaml_core_schema_tag("str") || tag.parts() == ("", "!") => Value::String(text),
        Some(tag) if tag.is_yaml_core_schema() => Value::from_plain_scalar(text),
        _ if style == ScalarStyle::Plain => Value::from_plain_scalar(text),
        _ => Value::String(text),
    }
}

/// Returns the number of values in a node. A long text counts as several values, because each copy of it is decoded to
/// a separate string.
fn weight(node: &Node<'_>) -> usize {
    let text = |text: &str| text.len() / TEXT_OF_ONE_VALUE;
    1 + match &node.value {
        Value::Null => 0,
        Value::Bool(_, value) | Value::Number(value) | Value::String(value) => text(value),
        Value::List(items) => items.iter().map(weight).sum(),
        Value::Map(entries) => entries.iter().map(|(key, node)| text(key) + weight(node)).sum(),
    }
}

fn syntax_error(error: &ScanError) -> SyntaxError {
    SyntaxError { line: line(error.marker().line()), cause: Cause::Yaml(error.info()) }
}

fn yaml_error(line: u32, message: &str) -> SyntaxError {
    SyntaxError { line, cause: Cause::Yaml(message.to_owned()) }
}

fn duplicate(key: &str, line: u32) -> SyntaxError {
    SyntaxError { line, cause: Cause::DuplicateKey(key.to_owned()) }
}

fn line(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The parser's anchor ID of nodes without an anchor.
const NO_ANCHOR: usize = 0;

/// Limit of nesting, which bounds the use of the stack. Kubernetes objects are nested far less.
const MAX_DEPTH: usize = 64;

/// Limit of values copied for anchors and aliases in a document; about 10 MB.
const MAX_COPIES: usize = 100_000;

/// Number of bytes of text that count as a further value, which is about the memory of a value.
const TEXT_OF_ONE_VALUE: usize = 100;
