//! Words of `nft` text.

use std::borrow::Cow;

use crate::model::named_port;

/// A word with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// The word. Quoted strings keep their quotes; the end of a line is `\n`.
    pub(super) text: String,
    /// The number of its line, from 1.
    pub(super) line: usize,
}

/// Splits text into words. Text after `#` is a comment, such as a handle, but `nft` also prints `#` before modules of
/// `iptables`.
pub(super) fn split(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = command(content);
        // A backslash continues a line of a script.
        let continued = content.trim_end().strip_suffix('\\');
        let (mut rest, start) = (continued.unwrap_or(&content).trim(), tokens.len());
        let mut follows_blank = true;
        while let Some(first) = rest.chars().next() {
            let length = match first {
                '#' if rest[1..].trim_start().starts_with(MODULE) => 1,
                '#' => match remark(rest, &tokens[start..]) {
                    Some(length) => length,
                    None => break,
                },
                '"' => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
                // Bits of a header: `@nh,8,16`.
                '@' if rest.get(3..4) == Some(",") => rest.find(char::is_whitespace).unwrap_or(rest.len()),
                // Ports without an address: `redirect to :tcp dport map {`.
                ':' if rest[1..].starts_with(|next: char| next.is_ascii_alphabetic()) => 1,
                c if PUNCTUATION.contains(&c) => c.len_utf8(),
                _ => {
                    rest.find(|c: char| c.is_whitespace() || c == '"' || PUNCTUATION.contains(&c)).unwrap_or(rest.len())
                }
            };
            let (word, after) = rest.split_at(length.max(1));
            // The name of a port after an address: `10.0.0.1:"http"`.
            let port = named_port(unquoted(word)).filter(|_| !follows_blank);
            match (tokens[start..].last_mut().filter(|last| last.text.ends_with(':')), port) {
                (Some(last), Some(port)) => last.text.push_str(&port.to_string()),
                _ => tokens.push(Token { text: word.trim_end().to_owned(), line }),
            }
            rest = after.trim_start();
            follows_blank = rest.len() < after.len();
        }
        if continued.is_none() {
            tokens.push(Token { text: "\n".to_owned(), line });
        }
    }
    tokens
}

/// Returns a line without a call of `nft` in a shell: `sudo nft 'add rule t c drop'`.
pub(super) fn command(line: &str) -> Cow<'_, str> {
    let words =
        line.trim_start().trim_start_matches("sudo ").trim_start_matches("/usr/sbin/").trim_start_matches("/sbin/");
    match words.strip_prefix("nft ") {
        Some(words) => Cow::Owned(words.replace('\'', "").replace("\\;", ";").replace("\\{", "{").replace("\\}", "}")),
        None => Cow::Borrowed(line),
    }
}

/// Returns the length of a module of `iptables` in the words of its `print` function, which `nft` before 1.0.6 prints
/// after `#`: `# match-set pods src counter packets 0 bytes 0 # TPROXY redirect 127.0.0.1:8080`. `before` are the words
/// of the line before it. `None` for a comment.
fn remark(text: &str, before: &[Token]) -> Option<usize> {
    if let Some(length) = text.find(" counter packets ") {
        return Some(length);
    }
    let handle = text.rfind("# handle ").unwrap_or(text.len());
    let follows_counter = matches!(before, [.., counter, packets, _, bytes, _]
        if [&counter.text, &packets.text, &bytes.text] == ["counter", "packets", "bytes"]);
    (follows_counter && handle > 0).then_some(handle)
}

/// The beginning of the name of a module of `iptables`.
pub(super) const MODULE: &str = "xt_";

/// Characters that are separate words.
const PUNCTUATION: [char; 7] = ['{', '}', '(', ')', ',', ';', '|'];

/// A position in a list of words.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'t> {
    pub(super) tokens: &'t [Token],
    pub(super) at: usize,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(tokens: &'t [Token]) -> Self {
        Self { tokens, at: 0 }
    }

    /// Returns the next word, or an empty one at the end.
    pub(super) fn peek(&self) -> &'t str {
        self.peek_at(0)
    }

    pub(super) fn peek_at(&self, ahead: usize) -> &'t str {
        self.tokens.get(self.at + ahead).map_or("", |token| &token.text)
    }

    pub(super) fn take(&mut self) -> &'t str {
        let text = self.peek();
        self.at += 1;
        text
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    /// Takes the next word if it is this one.
    pub(super) fn accept(&mut self, word: &str) -> bool {
        let is_next = self.peek() == word;
        self.at += usize::from(is_next);
        is_next
    }

    /// Returns the line of the next word, or of the last one.
    pub(super) fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |token| token.line)
    }

    /// Takes the words up to the brace that closes the one that was taken last; `None` if it is missing.
    pub(super) fn block(&mut self) -> Option<&'t [Token]> {
        let (start, mut depth) = (self.at, 1);
        while !self.is_at_end() {
            match self.take() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(&self.tokens[start..self.at - 1]);
            }
        }
        None
    }

    /// Takes the words up to the end of the line, or a semicolon, outside of braces.
    pub(super) fn statement(&mut self) -> &'t [Token] {
        let (start, mut depth) = (self.at, 0_i32);
        while !self.is_at_end() {
            match self.peek() {
                "{" => depth += 1,
                "}" => depth -= 1,
                "\n" | ";" if depth <= 0 => break,
                _ => {}
            }
            self.at += 1;
        }
        let taken = self.since(start);
        self.at += 1;
        taken
    }

    /// Returns the words that were taken since a position.
    pub(super) fn since(&self, start: usize) -> &'t [Token] {
        self.tokens.get(start..self.at.min(self.tokens.len())).unwrap_or_default()
    }
}

/// Returns words as text, as they were written up to blanks.
pub(super) fn join(tokens: &[Token]) -> String {
    let words: Vec<&str> = tokens.iter().map(|token| token.text.as_str()).filter(|word| *word != "\n").collect();
    words.join(" ").replace(" ,", ",")
}

/// Returns a string without its quotes.
pub(super) fn unquoted(word: &str) -> &str {
    word.strip_prefix('"').map_or(word, |word| word.strip_suffix('"').unwrap_or(word))
}
