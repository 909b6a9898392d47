//! Changes of elements of sets and maps.

use super::{
    super::{
        lexer::{Cursor, Token, join},
        set::{EXTRAS, has_condition, read_data},
    },
    Reading, RuleReader,
};
use crate::model::{Data, ElementOp, Foreign, Name, Source};

impl RuleReader {
    /// Reads `add @set { key }` and similar statements, including the older forms `set add key @set` and `meter name {
    /// key }`.
    pub(super) fn element(&self, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<()> {
        let (mut op, mut set) = (ElementOp::Update, None);
        while !cursor.is_at_end() && cursor.peek() != "{" {
            match cursor.take() {
                "add" => op = ElementOp::Add,
                "delete" => op = ElementOp::Delete,
                "size" => cursor.at += 1,
                "set" | "update" | "meter" | "\n" => {}
                name => set = Some(Name::from(name.trim_start_matches('@'))),
            }
        }
        cursor.accept("{");
        let words = cursor.block()?;
        let at = |word: &str| words.iter().position(|token| token.text == word);
        // Timeouts, counters and limits follow the key.
        let colon = at(":").unwrap_or(words.len());
        let end = words[..colon].iter().position(|token| EXTRAS.contains(&token.text.as_str())).unwrap_or(colon);
        let details = &words[end..colon];
        let key = self.key_of(&words[..end], reading).unwrap_or_default();
        let data = words.get(colon + 1..).and_then(|words| self.stored(words, reading)).unwrap_or_default();
        let texts: Vec<&str> = details.iter().map(|token| token.text.as_str()).collect();
        let is_condition = has_condition(&texts);
        let details = if details.is_empty() { String::new() } else { format!(" {}", join(details)) };
        reading.foreign(Foreign::Element { op, set: set?, key, data, details, is_condition });
        Some(())
    }

    fn key_of(&self, words: &[Token], reading: &mut Reading) -> Option<Vec<crate::model::Operand>> {
        let mut cursor = Cursor::new(words);
        let key = self.key(&mut cursor, reading)?;
        cursor.is_at_end().then_some(key)
    }

    /// Reads the data that is stored in a map.
    fn stored(&self, words: &[Token], reading: &mut Reading) -> Option<Vec<Source>> {
        if let Some(key) = self.key_of(words, reading) {
            return Some(key.into_iter().map(|operand| Source::Operand(Box::new(operand))).collect());
        }
        let texts: Vec<&str> = words.iter().map(|token| token.text.as_str()).collect();
        match read_data(&texts, &Default::default())? {
            Data::Values(values) => Some(values.into_iter().map(Source::Constant).collect()),
            Data::Verdict(_) => None,
        }
    }
}
