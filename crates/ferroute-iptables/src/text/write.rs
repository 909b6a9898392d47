use std::{
    fmt::{self, Display, Write},
    io,
};

use crate::{ChainHead, ChainName, Match, Policy, Rule, RuleSet, Sense, TableName, Target, sink::RuleSink};

/// Writes the declaration of a chain: `:KUBE-SERVICES - [0:0]`.
pub(crate) fn write_head(out: &mut dyn Write, chain: ChainName, head: ChainHead) -> fmt::Result {
    let policy = head.policy.map_or("-", Policy::as_str);
    out.write_char(':')?;
    out.write_str(chain.as_str())?;
    writeln!(out, " {policy} [{}:{}]", head.counters.packets, head.counters.bytes)
}

/// Writes the line of a rule with `command` (`-A`, `-I` or `-D`):
/// `-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000`.
///
/// # Errors
/// Only errors of `out`.
pub(crate) fn write_rule(out: &mut dyn Write, command: &str, chain: ChainName, rule: &Rule) -> fmt::Result {
    out.write_str(command)?;
    out.write_char(' ')?;
    out.write_str(chain.as_str())?;
    write_parts(out, rule)?;
    out.write_char('\n')
}

/// A rule together with its chain. Displays as a line without a newline.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a>(
    /// The chain.
    pub ChainName,
    /// The rule.
    pub &'a Rule,
);

impl Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-A {}", self.0)?;
        write_parts(f, self.1)
    }
}

impl Display for Rule {
    /// Formats the rule without its chain: `-s 10.0.0.1/32 -j DROP`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write_parts(&mut text, self)?;
        f.write_str(text.strip_prefix(' ').unwrap_or(&text))
    }
}

impl Display for RuleSet {
    /// Formats the rules as `iptables-save` prints them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, table) in &self.tables {
            writeln!(f, "*{name}")?;
            for (name, chain) in &table.chains {
                if let Some(head) = chain.head {
                    write_head(f, *name, head)?;
                }
            }
            for (name, chain) in &table.chains {
                for rule in &chain.rules {
                    write_rule(f, "-A", *name, rule)?;
                }
            }
            f.write_str("COMMIT\n")?;
        }
        Ok(())
    }
}

/// Writes all parts of a rule, each preceded by a blank.
fn write_parts(out: &mut dyn Write, rule: &Rule) -> fmt::Result {
    let Rule { source, destination, in_interface, out_interface, protocol, matches, target } = rule;
    write_sense(out, " -s ", source.as_ref())?;
    write_sense(out, " -d ", destination.as_ref())?;
    write_sense(out, " -i ", in_interface.as_ref())?;
    write_sense(out, " -o ", out_interface.as_ref())?;
    write_sense(out, " -p ", protocol.as_ref())?;
    for module in matches {
        write_match(out, module)?;
    }
    target.as_ref().map_or(Ok(()), |target| write_target(out, target))
}

/// Writes an option with its value and, if negated, the `!`. `option` begins and ends with a space.
pub(crate) fn write_sense<T: Display>(out: &mut dyn Write, option: &str, value: Option<&Sense<T>>) -> fmt::Result {
    let Some(value) = value else { return Ok(()) };
    if value.is_negated() {
        out.write_str(" !")?;
    }
    out.write_str(option)?;
    write!(out, "{}", value.value())
}

fn write_match(out: &mut dyn Write, module: &Match) -> fmt::Result {
    match module {
        Match::Other(text) => {
            out.write_char(' ')?;
            out.write_str(text)
        }
        extension => extension.print(out),
    }
}

fn write_target(out: &mut dyn Write, target: &Target) -> fmt::Result {
    match target {
        Target::Jump(chain) => {
            out.write_str(" -j ")?;
            out.write_str(chain.as_str())
        }
        Target::Goto(chain) => write!(out, " -g {chain}"),
        Target::Accept => out.write_str(" -j ACCEPT"),
        Target::Drop => out.write_str(" -j DROP"),
        Target::Return => out.write_str(" -j RETURN"),
        Target::Other(text) if text.is_empty() => Ok(()),
        Target::Other(text) => {
            out.write_str(" -j ")?;
            out.write_str(text)
        }
        extension => extension.print(out),
    }
}

/// Writes a word, quoted if it contains characters other than letters, digits, `_` and `-`, as `iptables-save` does.
pub(crate) fn write_quoted(out: &mut dyn Write, text: &str) -> fmt::Result {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
        return out.write_str(text);
    }
    out.write_char('"')?;
    for piece in text.split_inclusive(['"', '\\', '\'']) {
        match piece.char_indices().next_back() {
            Some((end, special @ ('"' | '\\' | '\''))) => {
                out.write_str(&piece[..end])?;
                out.write_char('\\')?;
                out.write_char(special)?;
            }
            _ => out.write_str(piece)?,
        }
    }
    out.write_char('"')
}

/// A writer of input for `iptables-restore --noflush`.
#[derive(Debug)]
pub(crate) struct RestoreWriter<W: io::Write> {
    out: W,
    /// Text not yet written to `out`.
    text: String,
    /// The number of tables written.
    tables: u32,
}

impl<W: io::Write> RuleSink for RestoreWriter<W> {
    fn begin(&mut self, table: TableName) -> io::Result<()> {
        self.words(&["*", table.as_str()])
    }

    fn declare(&mut self, chain: ChainName) -> io::Result<()> {
        write_head(&mut self.text, chain, ChainHead::default()).expect("writing to a String cannot fail");
        self.flush_if_full()
    }

    fn append(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        self.rule("-A", chain, rule)
    }

    fn insert(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        self.rule("-I", chain, rule)
    }

    fn remove(&mut self, chain: ChainName, rules: &[Rule]) -> io::Result<()> {
        rules.iter().try_for_each(|rule| self.rule("-D", chain, rule))
    }

    fn delete(&mut self, chain: ChainName) -> io::Result<()> {
        self.words(&["-X ", chain.as_str()])
    }

    fn end(&mut self) -> io::Result<()> {
        self.tables += 1;
        self.words(&["COMMIT"])
    }

    fn commit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn transactions(&self) -> u32 {
        self.tables
    }
}

impl<W: io::Write> RestoreWriter<W> {
    /// Creates a writer to `out`, which need not be buffered.
    pub(crate) fn new(out: W) -> Self {
        Self { out, text: String::with_capacity(2 * FLUSH_AT), tables: 0 }
    }

    /// Writes the buffered text.
    ///
    /// # Errors
    /// Errors of the output, as in all other methods.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(self.text.as_bytes())?;
        self.out.flush()
    }

    fn rule(&mut self, command: &str, chain: ChainName, rule: &Rule) -> io::Result<()> {
        write_rule(&mut self.text, command, chain, rule).expect("writing to a String cannot fail");
        self.flush_if_full()
    }

    fn words(&mut self, words: &[&str]) -> io::Result<()> {
        self.text.extend(words.iter().copied().chain(["\n"]));
        self.flush_if_full()
    }

    fn flush_if_full(&mut self) -> io::Result<()> {
        if self.text.len() < FLUSH_AT {
            return Ok(());
        }
        self.out.write_all(self.text.as_bytes())?;
        self.text.clear();
        Ok(())
    }
}

/// Bytes that are buffered before they are written: the capacity of a pipe.
const FLUSH_AT: usize = 64 * 1024;
