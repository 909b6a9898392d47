use std::net::IpAddr;

use ferroute_core::IpFamily;
use ipnet::IpNet;

use super::{
    options::{Opt, is_port_option, known_match, known_target, knows, takes_any_word},
    words::Word,
};
use crate::{AddressMatch, ChainName, InterfaceMatch, Match, ProtocolMatch, Rule, Sense, Target};

/// Reads a rule from its words after `-A CHAIN`; `line` is what the words were split from.
///
/// There is no text that this refuses: a rule that cannot be taken apart is kept whole, as one unknown match.
pub(super) fn read_rule(family: IpFamily, line: &str, words: &[Word<'_>]) -> Rule {
    let mut reader = Reader { line, words, rule: Rule::new(), modules: Vec::new(), target: None };
    match reader.read(family) {
        Some(()) => reader.rule,
        None if words.is_empty() => Rule::new(),
        None => Rule::new().and(Match::Other(line[words[0].start..].into())),
    }
}

/// A rule that is being read.
struct Reader<'a> {
    line: &'a str,
    words: &'a [Word<'a>],
    rule: Rule,
    modules: Vec<Module<'a>>,
    target: Option<Module<'a>>,
}

/// A module or target with what was said of it so far.
struct Module<'a> {
    name: &'a str,
    options: Vec<Opt<'a>>,
    /// The words that belong to it, as ranges of indices.
    pieces: Vec<(usize, usize)>,
}

impl<'a> Module<'a> {
    /// Adds the words from `first` to before `end`.
    fn add(&mut self, first: usize, end: usize) {
        match self.pieces.last_mut() {
            Some(last) if last.1 == first => last.1 = end,
            _ => self.pieces.push((first, end)),
        }
    }
}

impl<'a> Reader<'a> {
    /// Reads everything into `self.rule`; `None` when the words make no sense.
    fn read(&mut self, family: IpFamily) -> Option<()> {
        let mut at = 0;
        while at < self.words.len() {
            at = self.read_option(at)?;
        }
        for module in std::mem::take(&mut self.modules) {
            let known = known_match(family, module.name, &module.options);
            self.rule.matches.push(known.unwrap_or_else(|| Match::Other(self.text(&module))));
        }
        if let Some(target) = self.target.take() {
            let known = known_target(family, target.name, &target.options);
            let unknown = || {
                let text = self.text(&target);
                Target::Other(text.split_once(' ').map_or("", |(_, rest)| rest).into())
            };
            self.rule.target = Some(known.unwrap_or_else(unknown));
        }
        Some(())
    }

    /// Reads the option at `first`; gives where the next one begins.
    fn read_option(&mut self, first: usize) -> Option<usize> {
        let words = self.words;
        let negated = words[first].is_not();
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
                // The last of the kernel's own fields, printed before all modules.
                rule.matches.push(Match::Other(if negated { "! -f" } else { "-f" }.into()));
                return Some(at + 1);
            }
            "-m" | "--match" if !negated => {
                let module = Module { name: arg()?, options: Vec::new(), pieces: vec![(at, at + 2)] };
                self.modules.push(module);
            }
            "-j" | "--jump" if !negated && self.target.is_none() => {
                self.target = Some(Module { name: arg()?, options: Vec::new(), pieces: vec![(at, at + 2)] });
            }
            "-g" | "--goto" if !negated && self.target.is_none() && rule.target.is_none() => {
                rule.target = Some(Target::Goto(ChainName::new(arg()?).ok()?));
            }
            _ => return self.read_module_option(first, at),
        }
        Some(at + 2)
    }

    /// Reads an option of a module or of the target; its name is at `at`, the `!` (if any) at `first`.
    fn read_module_option(&mut self, first: usize, at: usize) -> Option<usize> {
        let words = self.words;
        let name = &*words[at].text;
        let is_arg = |word: &&Word<'_>| !word.is_option() && !word.is_not();
        let args = match takes_any_word(name) {
            true => 1,
            false => words[at + 1..].iter().take_while(is_arg).count(),
        };
        let end = at + 1 + args;
        let option = Opt { negated: first < at, name, args: words.get(at + 1..end)? };
        let owner = self.owner_of(name)?;
        owner.options.push(option);
        owner.add(first, end);
        Some(end)
    }

    /// The module that an option belongs to.
    fn owner_of(&mut self, option: &str) -> Option<&mut Module<'a>> {
        if self.target.is_some() {
            return self.target.as_mut();
        }
        if let Some(at) = self.modules.iter().rposition(|module| knows(module.name, option)) {
            return self.modules.get_mut(at);
        }
        if is_port_option(option) {
            // `-p tcp` loads the module by itself.
            let Some(Sense::Is(ProtocolMatch::Transport(protocol))) = &self.rule.protocol else { return None };
            self.modules.push(Module { name: protocol.as_str(), options: Vec::new(), pieces: Vec::new() });
        }
        self.modules.last_mut()
    }

    /// What was written about a module, blanks and all.
    fn text(&self, module: &Module<'_>) -> Box<str> {
        let piece = |&(first, end): &(usize, usize)| {
            let start = self.words[first].start;
            // The blank before the next word is printed by what comes next.
            let end = self.words.get(end).map_or(self.line.len(), |next| next.start - 1);
            &self.line[start..end.max(start)]
        };
        match &*module.pieces {
            [one] => piece(one).into(),
            many => many.iter().map(|range| piece(range).trim_end()).collect::<Vec<_>>().join(" ").into(),
        }
    }
}

/// Reads an address, a network or an address with a mask. The inner `None` stands for «all».
#[expect(clippy::option_option, reason = "nothing to read and nothing to say differ")]
fn address(negated: bool, text: &str) -> Option<Option<Sense<AddressMatch>>> {
    let wanted = match text.split_once('/') {
        None => AddressMatch::Net(text.parse::<IpAddr>().ok()?.into()),
        Some((address, mask)) => with_mask(address.parse().ok()?, mask)?,
    };
    let all = matches!(wanted, AddressMatch::Net(net) if net.prefix_len() == 0);
    Some((negated || !all).then(|| Sense::new(negated, wanted)))
}

/// An address with a prefix length or a mask.
fn with_mask(address: IpAddr, mask: &str) -> Option<AddressMatch> {
    if let Ok(len) = mask.parse() {
        return IpNet::new(address, len).ok().map(|net| AddressMatch::Net(net.trunc()));
    }
    let mask: IpAddr = mask.parse().ok()?;
    if let Ok(net) = IpNet::with_netmask(address, mask) {
        return Some(AddressMatch::Net(net.trunc()));
    }
    let address = match (address, mask) {
        (IpAddr::V4(address), IpAddr::V4(mask)) => IpAddr::V4(address & mask),
        (IpAddr::V6(address), IpAddr::V6(mask)) => IpAddr::V6(address & mask),
        _ => return None,
    };
    Some(AddressMatch::Masked { address, mask })
}

fn interface(text: &str) -> InterfaceMatch {
    match text.strip_suffix('+') {
        Some(prefix) => InterfaceMatch::Prefix(prefix.into()),
        None => InterfaceMatch::Name(text.into()),
    }
}

/// Reads a protocol's name or number; `None` stands for «all».
fn protocol(negated: bool, text: &str) -> Option<Sense<ProtocolMatch>> {
    let wanted = match text {
        "all" | "0" => return None,
        "tcp" | "6" => ProtocolMatch::Transport(ferroute_core::Protocol::Tcp),
        "udp" | "17" => ProtocolMatch::Transport(ferroute_core::Protocol::Udp),
        "sctp" | "132" => ProtocolMatch::Transport(ferroute_core::Protocol::Sctp),
        "icmpv6" => ProtocolMatch::Other("ipv6-icmp".into()),
        other => ProtocolMatch::Other(other.into()),
    };
    Some(Sense::new(negated, wanted))
}
