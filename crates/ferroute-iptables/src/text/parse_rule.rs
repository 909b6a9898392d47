use std::{borrow::Cow, net::IpAddr};

use ferroute_core::{IpFamily, Protocol};
use ipnet::IpNet;

use crate::{
    AddressMatch, ChainName, InterfaceMatch, Match, ProtocolMatch, Rule, Sense, Target,
    extension::{Entry, Opt, Options},
};

/// A word of a rule's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word<'a> {
    /// The text without quotes and backslashes.
    pub(crate) text: Cow<'a, str>,
    /// Quoted, and therefore not the name of an option.
    pub(super) quoted: bool,
    /// Offset of the start in the line, including the quote.
    pub(super) start: usize,
    /// Offset of the end.
    pub(super) end: usize,
}

impl Word<'_> {
    /// Reports whether the word can be the name of an option (`-s`, `--dport`).
    pub(super) fn is_option(&self) -> bool {
        !self.quoted && self.text.len() > 1 && self.text.starts_with('-')
    }

    /// Returns the text if it parses the same without quotes. `iptables-save` quotes the values of few options.
    pub(crate) fn plain(&self) -> Option<&str> {
        let special = |byte: u8| is_blank(byte) || byte == b'"';
        let needs_quotes = self.text.is_empty() || self.text.starts_with(['-', '!']) || self.text.bytes().any(special);
        (!needs_quotes).then_some(&*self.text)
    }

    /// Reports whether the word is the `!` that negates the next option.
    pub(super) fn is_negation(&self) -> bool {
        !self.quoted && self.text == "!"
    }
}

/// An unterminated quote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenQuote;

/// Splits a line at spaces, with the quoting rules of `iptables-restore`: between `"`, a backslash escapes the next
/// character, and the closing quote ends the word. Within a word, a quote without such an end is a character of it:
/// `iptables-save` prints names of chains and interfaces as they are.
pub(super) fn split(line: &str) -> Result<Vec<Word<'_>>, OpenQuote> {
    // Enough for most rules.
    let mut words = Vec::with_capacity(24);
    let mut at = 0;
    while let Some(skip) = line[at..].bytes().position(|byte| !is_blank(byte)) {
        let word = word(line, at + skip)?;
        at = word.end;
        words.push(word);
    }
    Ok(words)
}

/// Returns the word that begins at `start`.
fn word(line: &str, start: usize) -> Result<Word<'_>, OpenQuote> {
    let rest = &line[start..];
    if rest
        .starts_with(['&', '\u{ab}', '\u{bb}', '\u{2013}', '\u{2014}', '\u{201c}', '\u{201d}', '\u{201e}', '\u{201f}'])
        && let Some(word) = pasted(rest, start)
    {
        return Ok(word);
    }
    let plain = rest.bytes().position(|byte| is_blank(byte) || byte == b'"').unwrap_or(rest.len());
    let unquoted = || {
        let length = rest.bytes().position(is_blank).unwrap_or(rest.len());
        Word { text: Cow::Borrowed(&rest[..length]), quoted: false, start, end: start + length }
    };
    let Some(inside) = rest[plain..].strip_prefix('"') else { return Ok(unquoted()) };
    let mut text = String::from(&rest[..plain]);
    let mut chars = inside.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                let end = start + plain + 1 + at + 1;
                if plain > 0 && line[end..].bytes().next().is_some_and(|byte| !is_blank(byte)) {
                    return Ok(unquoted());
                }
                return Ok(Word { text: Cow::Owned(text), quoted: true, start, end });
            }
            '\\' => text.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => text.push(c),
        }
    }
    if plain > 0 { Ok(unquoted()) } else { Err(OpenQuote) }
}

/// Returns a word with the quotes or dashes that word processors, chats and HTML replace those of `iptables-save` by, which
/// never prints them outside of quotes; `None` if the word has none.
fn pasted(rest: &str, start: usize) -> Option<Word<'_>> {
    let quote = |text: &str| QUOTES.into_iter().find(|quote| text.starts_with(quote)).map(str::len);
    if let Some(name) = rest.strip_prefix(['\u{2013}', '\u{2014}']) {
        let name = &name[..name.bytes().position(is_blank).unwrap_or(name.len())];
        let dashes = if name.len() == 1 { "-" } else { "--" };
        let end = start + '\u{2013}'.len_utf8() + name.len();
        return Some(Word { text: Cow::Owned(format!("{dashes}{name}")), quoted: false, start, end });
    }
    let open = quote(rest)?;
    let inside = &rest[open..];
    let (length, close) = inside.char_indices().find_map(|(at, _)| {
        let close = quote(&inside[at..])?;
        inside[at + close..].bytes().next().is_none_or(is_blank).then_some((at, close))
    })?;
    Some(Word { text: Cow::Borrowed(&inside[..length]), quoted: true, start, end: start + open + length + close })
}

/// Quotes, and the texts that stand for them after copying.
const QUOTES: [&str; 9] = ["\"", "&quot;", "&#34;", "\u{201c}", "\u{201d}", "\u{201e}", "\u{201f}", "\u{ab}", "\u{bb}"];

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Parses a rule from its words after `-A CHAIN`; `line` is the text that was split into the words.
///
/// Accepts any text: conditions that cannot be parsed are kept verbatim as one unsupported match.
pub(super) fn parse_rule(family: IpFamily, line: &str, words: &[Word<'_>]) -> Rule {
    let mut parser = RuleParser::new(line, words);
    match parser.parse(family) {
        Some(()) => parser.rule,
        None => unreadable(family, line, words),
    }
}

/// Returns a rule whose conditions or target cannot be parsed.
fn unreadable(family: IpFamily, line: &str, words: &[Word<'_>]) -> Rule {
    let is_jump = |word: &Word<'_>| !word.quoted && matches!(&*word.text, "-j" | "--jump");
    let is_goto = |word: &Word<'_>| !word.quoted && matches!(&*word.text, "-g" | "--goto");
    let at = words.iter().rposition(|word| is_jump(word) || is_goto(word)).unwrap_or(words.len());
    let mut parser = RuleParser::new(line, &words[at..]);
    let parsed = parser.parse(family).and_then(|()| parser.rule.target.take()).filter(|_| parser.rule == Rule::new());
    let (end, target) = match (parsed, &words[at..]) {
        (Some(target), _) => (at, target),
        (None, [option, name, ..]) if is_jump(option) => (at, Target::Other(line[name.start..].into())),
        (None, _) => (words.len(), Target::Other("".into())),
    };
    if end == 0 {
        return Rule::new().then(target);
    }
    let mut parser = RuleParser::new(&line[..end_before(line, words, end)], &words[..end]);
    let rule = match parser.parse(family) {
        Some(()) if parser.rule.target.is_none() => parser.rule,
        _ => Rule::new().and(Match::Other(parser.line[words[0].start..].into())),
    };
    rule.then(target)
}

impl Rule {
    /// Parses a rule in the syntax of `iptables-save`, without `-A CHAIN`. Unsupported parts are kept as text.
    pub fn parse(family: IpFamily, text: &str) -> Self {
        match split(text) {
            Ok(words) => parse_rule(family, text, &words),
            Err(OpenQuote) => Self::new().and(Match::Other(text.into())).then(Target::Other("".into())),
        }
    }
}

/// The state of parsing one rule.
struct RuleParser<'a> {
    line: &'a str,
    words: &'a [Word<'a>],
    rule: Rule,
    modules: Vec<Module<'a>>,
    target: Option<Module<'a>>,
}

/// A module or target with the options parsed so far.
struct Module<'a> {
    name: &'a str,
    /// The match module, if it is supported.
    extension: Option<&'static Entry<Match>>,
    options: Vec<Opt<'a>>,
    /// The words that belong to it, as half-open ranges of indices.
    pieces: Vec<(usize, usize)>,
}

impl<'a> Module<'a> {
    fn new(name: &'a str, pieces: Vec<(usize, usize)>) -> Self {
        Self { name, extension: Match::named(name), options: Vec::new(), pieces }
    }

    fn has_option(&self, option: &str) -> bool {
        self.extension.is_some_and(|extension| extension.has_option(option))
            || SHARED_OPTIONS.iter().any(|(name, options)| *name == self.name && options.contains(&option))
    }

    fn options(&self, family: IpFamily) -> Options<'_> {
        Options { family, name: self.name, list: &self.options }
    }

    /// Adds the words `first..end`.
    fn add(&mut self, first: usize, end: usize) {
        match self.pieces.last_mut() {
            Some(last) if last.1 == first => last.1 = end,
            _ => self.pieces.push((first, end)),
        }
    }
}

impl<'a> RuleParser<'a> {
    fn new(line: &'a str, words: &'a [Word<'a>]) -> Self {
        Self { line, words, rule: Rule::new(), modules: Vec::new(), target: None }
    }

    /// Parses all words into `self.rule`; `None` if they are not valid.
    fn parse(&mut self, family: IpFamily) -> Option<()> {
        let mut at = 0;
        while at < self.words.len() {
            at = self.parse_option(at)?;
        }
        for module in std::mem::take(&mut self.modules) {
            let parsed = module.extension.and_then(|extension| extension.parse(&module.options(family)));
            self.rule.matches.push(parsed.unwrap_or_else(|| Match::Other(self.text(&module))));
        }
        if let Some(target) = self.target.take() {
            let parsed = parse_target(&target.options(family));
            self.rule.target = Some(parsed.unwrap_or_else(|| Target::Other(self.text(&target))));
        }
        Some(())
    }

    /// Parses the option at `first` and returns the index of the next one.
    fn parse_option(&mut self, first: usize) -> Option<usize> {
        let words = self.words;
        let is_first = words[first].is_negation();
        let at = first + usize::from(is_first);
        let option = words.get(at).filter(|word| word.is_option())?;
        let after = self.negation_after(at);
        let negated = is_first || after > 0;
        let arg = || words.get(at + 1 + after).and_then(Word::plain);
        let has_policy = self.modules.iter().any(|module| module.has_option("--proto"));
        let rule = &mut self.rule;
        match &*option.text {
            "-s" | "--source" | "--src" | "-d" | "--destination" | "--dst" if arg()?.contains(',') => {
                // `iptables` makes a rule for each address.
                let option = if option.text.trim_start_matches('-').starts_with('s') { "-s" } else { "-d" };
                let list =
                    arg().filter(|list| !negated && list.split(',').all(|part| address(false, part).is_some()))?;
                rule.matches.push(Match::Other(format!("{option} {list}").into()));
            }
            "-s" | "--source" | "--src" => rule.source = address(negated, arg()?)?,
            "-d" | "--destination" | "--dst" => rule.destination = address(negated, arg()?)?,
            "-i" | "--in-interface" => rule.in_interface = Some(Sense::new(negated, interface(arg()?))),
            "-o" | "--out-interface" => rule.out_interface = Some(Sense::new(negated, interface(arg()?))),
            // The abbreviation of `--protocol` is the name of an option of the module `policy`.
            "--proto" if has_policy => return self.parse_module_option(first, at),
            "-p" | "--protocol" | "--proto" => rule.protocol = protocol(negated, arg()?),
            "-f" | "--fragment" => {
                // A field of the kernel's rule that is printed last, directly before the modules.
                rule.matches.push(Match::Other(if negated { "! -f" } else { "-f" }.into()));
                return Some(at + 1);
            }
            "-m" | "--match" if !negated => {
                self.modules.push(Module::new(arg()?, vec![(at, at + 2)]));
            }
            "-j" | "--jump" if !negated && self.target.is_none() => {
                // Its text does not include the `-j`.
                let pieces = vec![(at + 1, at + 2)];
                self.target = Some(Module { name: arg()?, extension: None, options: Vec::new(), pieces });
            }
            "-g" | "--goto" if !negated && self.target.is_none() && rule.target.is_none() => {
                rule.target = Some(Target::Goto(ChainName::new(arg()?).ok()?));
            }
            _ => return self.parse_module_option(first, at),
        }
        Some(at + 2 + after)
    }

    /// Returns the number of words, 0 or 1, between the option at `at` and its argument: before 1.4.3, `iptables-save`
    /// printed `-s ! 10.0.0.0/8`.
    fn negation_after(&self, at: usize) -> usize {
        let is_argument = |word: &Word<'_>| !word.is_option() && !word.is_negation();
        let is_negated = self.words.get(at + 1).is_some_and(Word::is_negation);
        usize::from(is_negated && self.words.get(at + 2).is_some_and(is_argument))
    }

    /// Parses an option of a module or of the target. Its name is at `at`, the `!`, if any, at `first`.
    fn parse_module_option(&mut self, first: usize, at: usize) -> Option<usize> {
        let words = self.words;
        let name = &*words[at].text;
        let after = self.negation_after(at);
        let owner = self.option_owner(name)?;
        let is_arg = |word: &&Word<'_>| !word.is_option() && !word.is_negation();
        let (start, end) =
            match is_free_text(name) || owner.extension.is_some_and(|extension| extension.takes_text(name)) {
                true => (at + 1, at + 2),
                false => {
                    let start = at + 1 + after;
                    (start, start + words[start..].iter().take_while(is_arg).count())
                }
            };
        owner.options.push(Opt { negated: first < at || start > at + 1, name, args: words.get(start..end)? });
        owner.add(first, end);
        Some(end)
    }

    /// Returns the module or target that an option belongs to.
    fn option_owner(&mut self, option: &str) -> Option<&mut Module<'a>> {
        if self.target.is_some() {
            return self.target.as_mut();
        }
        // `iptables` queries each loaded module, so an option may be apart from its `-m`.
        if let Some(at) = self.modules.iter().rposition(|module| module.has_option(option)) {
            return self.modules.get_mut(at);
        }
        if Match::named(Protocol::Tcp.as_str()).is_some_and(|extension| extension.has_option(option)) {
            // `-p tcp` loads the module implicitly.
            let Some(Sense::Is(ProtocolMatch::Transport(protocol))) = &self.rule.protocol else { return None };
            self.modules.push(Module::new(protocol.as_str(), Vec::new()));
        }
        self.modules.last_mut()
    }

    /// Returns the verbatim text of a module, including blanks.
    fn text(&self, module: &Module<'_>) -> Box<str> {
        let piece = |&(first, end): &(usize, usize)| {
            let start = self.words[first].start;
            &self.line[start..end_before(self.line, self.words, end).max(start)]
        };
        match &*module.pieces {
            [one] => piece(one).into(),
            many => many.iter().map(|range| piece(range).trim_end()).collect::<Vec<_>>().join(" ").into(),
        }
    }
}

/// Returns where the text before the word at index `next`, which is not the first one, ends.
fn end_before(line: &str, words: &[Word<'_>], next: usize) -> usize {
    // The space before the next word is printed with that word. There is none after a quote.
    let blank = |start: usize| usize::from(is_blank(line.as_bytes()[start - 1]));
    words.get(next).map_or(line.len(), |next| next.start - blank(next.start))
}

/// Reports whether an option of an unsupported extension takes one argument, which may look like an option.
fn is_free_text(option: &str) -> bool {
    matches!(option, "--log-prefix" | "--nflog-prefix" | "--string")
}

/// Parses a target; `None` if the target or one of its options is unsupported.
fn parse_target(options: &Options<'_>) -> Option<Target> {
    if let Some(extension) = Target::named(options.name) {
        return extension.parse(options);
    }
    match (options.name, options.list) {
        ("ACCEPT", []) => Some(Target::Accept),
        ("DROP", []) => Some(Target::Drop),
        ("RETURN", []) => Some(Target::Return),
        (name, []) if !NOT_CHAINS.contains(&name) => ChainName::new(name).ok().map(Target::Jump),
        _ => None,
    }
}

/// Parses an address, a network, or an address with a mask. An inner `None` means every address.
#[expect(clippy::option_option, reason = "invalid text differs from no condition")]
fn address(negated: bool, text: &str) -> Option<Option<Sense<AddressMatch>>> {
    let address = match text.split_once('/') {
        None => AddressMatch::Net(text.parse::<IpAddr>().ok()?.into()),
        Some((address, mask)) => match mask.parse() {
            Ok(length) => AddressMatch::Net(IpNet::new(address.parse().ok()?, length).ok()?.trunc()),
            Err(_) => AddressMatch::with_mask(address.parse().ok()?, mask.parse().ok()?)?,
        },
    };
    let all = matches!(address, AddressMatch::Net(net) if net.prefix_len() == 0);
    Some((negated || !all).then(|| Sense::new(negated, address)))
}

fn interface(text: &str) -> InterfaceMatch {
    match text.strip_suffix('+') {
        Some(prefix) => InterfaceMatch::Prefix(prefix.into()),
        None => InterfaceMatch::Name(text.into()),
    }
}

/// Parses the name or number of a protocol; `None` means every protocol.
fn protocol(negated: bool, text: &str) -> Option<Sense<ProtocolMatch>> {
    let protocol = match text {
        "all" | "0" => return None,
        "tcp" | "6" => ProtocolMatch::Transport(Protocol::Tcp),
        "udp" | "17" => ProtocolMatch::Transport(Protocol::Udp),
        "sctp" | "132" => ProtocolMatch::Transport(Protocol::Sctp),
        "icmpv6" => ProtocolMatch::Other("ipv6-icmp".into()),
        other => ProtocolMatch::Other(other.into()),
    };
    Some(Sense::new(negated, protocol))
}

/// Options of unsupported modules that a supported module has as well: of several, the last module owns them.
const SHARED_OPTIONS: [(&str, &[&str]); 6] = [
    ("connmark", &["--mark"]),
    ("policy", &["--mode", "--proto"]),
    ("dccp", PORTS),
    ("udplite", PORTS),
    ("quota2", &["--name"]),
    ("pknock", &["--name"]),
];
const PORTS: &[&str] = &["--sport", "--source-port", "--dport", "--destination-port"];

/// Names of verdicts and of unsupported target extensions. `iptables` rejects chains with these names.
#[rustfmt::skip]
const NOT_CHAINS: [&str; 38] = [
    "ACCEPT", "AUDIT", "CHECKSUM", "CLASSIFY", "CLUSTERIP", "CONNMARK", "CONNSECMARK", "CT", "DNPT", "DROP", "DSCP",
    "ECN", "HL", "HMARK", "IDLETIMER", "LED", "LOG", "MIRROR", "NETMAP", "NFLOG", "NFQUEUE", "NOTRACK", "QUEUE",
    "RATEEST", "REDIRECT", "RETURN", "SECMARK", "SET", "SNPT", "SYNPROXY", "TCPMSS", "TCPOPTSTRIP", "TEE", "TOS",
    "TPROXY", "TRACE", "TTL", "ULOG",
];
