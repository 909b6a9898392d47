use std::io;

use super::{write_head, write_rule};
use crate::{ChainHead, ChainName, Rule, TableName};

/// Writes input for `iptables-restore --noflush`, piece by piece.
#[derive(Debug)]
pub struct RestoreWriter<W: io::Write> {
    out: W,
    /// Text that `out` has not got yet.
    text: String,
    /// Rules appended.
    rules: usize,
}

impl<W: io::Write> RestoreWriter<W> {
    /// A writer to `out`, which need not be buffered.
    pub fn new(out: W) -> Self {
        Self { out, text: String::with_capacity(2 * FLUSH_AT), rules: 0 }
    }

    /// How many rules were appended so far.
    pub fn rules(&self) -> usize {
        self.rules
    }

    /// Begins a table.
    ///
    /// # Errors
    /// Those of the output, here and in all that follow.
    pub fn begin(&mut self, table: TableName) -> io::Result<()> {
        self.words(&["*", table.as_str()])
    }

    /// Makes a chain, or empties it if it is there.
    pub fn declare(&mut self, chain: ChainName) -> io::Result<()> {
        write_head(&mut self.text, chain, ChainHead::default()).expect("a String takes all text");
        self.flush_if_full()
    }

    /// Adds a rule at the end of a chain.
    pub fn append(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        self.rules += 1;
        write_rule(&mut self.text, "-A", chain, rule).expect("a String takes all text");
        self.flush_if_full()
    }

    /// Adds rules at the end of a chain.
    pub fn append_all(&mut self, chain: ChainName, rules: &[Rule]) -> io::Result<()> {
        rules.iter().try_for_each(|rule| self.append(chain, rule))
    }

    /// Puts a rule before all others of a chain.
    pub fn insert(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        write_rule(&mut self.text, "-I", chain, rule).expect("a String takes all text");
        self.flush_if_full()
    }

    /// Removes a rule from a chain; an error to `iptables-restore` if it is not in there.
    pub fn remove(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        write_rule(&mut self.text, "-D", chain, rule).expect("a String takes all text");
        self.flush_if_full()
    }

    /// Deletes a chain, which must be empty and no rule's target.
    pub fn delete(&mut self, chain: ChainName) -> io::Result<()> {
        self.words(&["-X ", chain.as_str()])
    }

    /// Brings what was said of the current table into force.
    pub fn commit(&mut self) -> io::Result<()> {
        self.words(&["COMMIT"])
    }

    /// Hands on the last of the text and gives the output back.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(self.text.as_bytes())?;
        self.out.flush()?;
        Ok(self.out)
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

/// Bytes that are gathered before they are written: what a pipe takes at once.
const FLUSH_AT: usize = 64 * 1024;
