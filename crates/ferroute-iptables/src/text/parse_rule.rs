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
    let plain = rest.bytes().position(|byte| is_blank(byte) || byte == b'"').unwrap_or(rest.len());
    if !rest[plain..].starts_with('"') {
        return Ok(Word { text: Cow::Borrowed(&rest[..plain]), quoted: false, start, end: start + plain });
    }
    let unquoted = || {
        let length = rest.bytes().position(is_blank).unwrap_or(rest.len());
        Word { text: Cow::Borrowed(&rest[..length]), quoted: false, start, end: start + length }
    };
    let inside = &rest[plain + 1..];
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

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Parses a rule from its words after `-A CHAIN`; `line` is the text that was split into the words.
///
/// Accepts any text: a rule that cannot be parsed is kept verbatim as one unsupported match.
pub(super) fn parse_rule(family: IpFamily, line: &str, words: &[Word<'_>]) -> Rule {
    let mut parser = RuleParser { line, words, rule: Rule::new(), modules: Vec::new(), target: None };
    match parser.parse(family) {
        Some(()) => parser.rule,
        None if words.is_empty() => Rule::new(),
        None => Rule::new().and(Match::Other(line[words[0].start..].into())),
    }
}

impl Rule {
    /// Parses a rule in the syntax of `iptables-save`, without `-A CHAIN`. Unsupported parts are kept as text.
    pub fn parse(family: IpFamily, text: &str) -> Self {
        match split(text) {
            Ok(words) => parse_rule(family, text, &words),
            Err(OpenQuote) => Self::new().and(Match::Other(text.into())),
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
        let negated = words[first].is_negation();
        let at = first + usize::from(negated);
        let option = words.get(at).filter(|word| word.is_option())?;
        let arg = || words.get(at + 1).and_then(Word::plain);
        let rule = &mut self.rule;
        match &*option.text {
            "-s" | "--source" | "--src" => rule.source = address(negated, arg()?)?,
            "-d" | "--destination" | "--dst" => rule.destination = address(negated, arg()?)?,
            "-i" | "--in-interface" => rule.in_interface = Some(Sense::new(negated, interface(arg()?))),
            "-o" | "--out-interface" => rule.out_interface = Some(Sense::new(negated, interface(arg()?))),
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
        Some(at + 2)
    }

    /// Parses an option of a module or of the target. Its name is at `at`, the `!`, if any, at `first`.
    fn parse_module_option(&mut self, first: usize, at: usize) -> Option<usize> {
        let words = self.words;
        let name = &*words[at].text;
        let owner = self.option_owner(name)?;
        let is_arg = |word: &&Word<'_>| !word.is_option() && !word.is_negation();
        let args = match is_free_text(name) || owner.extension.is_some_and(|extension| extension.takes_text(name)) {
            true => 1,
            false => words[at + 1..].iter().take_while(is_arg).count(),
        };
        let end = at + 1 + args;
        owner.options.push(Opt { negated: first < at, name, args: words.get(at + 1..end)? });
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
            // The space before the next word is printed with that word. There is none after a quote.
            let blank = |next: &Word<'_>| usize::from(is_blank(self.line.as_bytes()[next.start - 1]));
            let end = self.words.get(end).map_or(self.line.len(), |next| next.start - blank(next));
            &self.line[start..end.max(start)]
        };
        match &*module.pieces {
            [one] => piece(one).into(),
            many => many.iter().map(|range| piece(range).trim_end()).collect::<Vec<_>>().join(" ").into(),
        }
    }
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
    ("policy", &["--mode"]),
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
