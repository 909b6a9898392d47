//! The rules of a chain while commands edit it: at any number, and by their text. Scripts may have a hundred thousand commands.

use std::{
    collections::{BTreeSet, HashMap},
    rc::Rc,
};

use ferroute_core::IpFamily;
use ferroute_iptables::Rule;

/// The rules of a chain, in blocks of limited length.
#[derive(Debug, Default)]
pub(super) struct RuleList {
    blocks: Vec<Vec<Entry>>,
    length: usize,
    /// The keys of equal rules; [`None`] until a command names a rule by its text.
    by_rule: Option<HashMap<Rc<Rule>, BTreeSet<i128>>>,
}

/// A rule after `-A CHAIN`.
#[derive(Debug)]
struct Entry {
    /// Keys ascend in the order of the rules.
    key: i128,
    text: String,
}

/// A place of a rule: the block, and the position in it.
type Place = (usize, usize);

impl RuleList {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Returns the texts of the rules.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.blocks.iter().flatten().map(|entry| entry.text.as_str())
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Inserts a rule before the one at a position, which is at most the number of rules.
    pub(super) fn insert(&mut self, family: IpFamily, at: usize, text: String) {
        let at = at.min(self.length);
        let mut key = self.key_before(at);
        if key.is_none() {
            self.renumber(family);
            key = self.key_before(at);
        }
        let key = key.unwrap_or_default();
        if let Some(index) = &mut self.by_rule {
            index.entry(Rule::parse(family, &text).into()).or_default().insert(key);
        }
        let (block, position) = match self.place(at) {
            Some(place) => place,
            None => {
                if self.blocks.is_empty() {
                    self.blocks.push(Vec::new());
                }
                let last = self.blocks.len() - 1;
                (last, self.blocks[last].len())
            }
        };
        let rules = &mut self.blocks[block];
        rules.insert(position, Entry { key, text });
        if rules.len() > MAX_BLOCK {
            let second = rules.split_off(rules.len() / 2);
            self.blocks.insert(block + 1, second);
        }
        self.length += 1;
    }

    /// Replaces the rule at a position; returns `false` if there is none.
    pub(super) fn replace(&mut self, family: IpFamily, at: usize, text: String) -> bool {
        let is_present = self.remove(family, at);
        if is_present {
            self.insert(family, at, text);
        }
        is_present
    }

    /// Removes the rule at a position; returns `false` if there is none.
    pub(super) fn remove(&mut self, family: IpFamily, at: usize) -> bool {
        let place = self.place(at);
        place.into_iter().for_each(|place| self.remove_at(family, place));
        place.is_some()
    }

    /// Removes the first rule that is equal to another one, if there is one.
    pub(super) fn remove_equal(&mut self, family: IpFamily, text: &str) {
        if self.by_rule.is_none() {
            self.index(family);
        }
        let keys = self.by_rule.as_ref().and_then(|index| index.get(&Rule::parse(family, text)));
        let Some(key) = keys.and_then(|keys| keys.first().copied()) else { return };
        let block = self.blocks.partition_point(|block| block.last().is_some_and(|last| last.key < key));
        let position = self.blocks.get(block).map(|rules| rules.binary_search_by_key(&key, |entry| entry.key));
        if let Some(Ok(position)) = position {
            self.remove_at(family, (block, position));
        }
    }

    fn remove_at(&mut self, family: IpFamily, (block, position): Place) {
        let Entry { key, text } = self.blocks[block].remove(position);
        if self.blocks[block].is_empty() {
            self.blocks.remove(block);
        }
        self.length -= 1;
        let Some(index) = &mut self.by_rule else { return };
        let rule = Rule::parse(family, &text);
        if let Some(keys) = index.get_mut(&rule) {
            keys.remove(&key);
            if keys.is_empty() {
                index.remove(&rule);
            }
        }
    }

    /// Returns the place of the rule at a position; [`None`] after the last one.
    fn place(&self, at: usize) -> Option<Place> {
        // Most commands append.
        let mut before = if at >= self.length { return None } else { 0 };
        self.blocks.iter().enumerate().find_map(|(block, rules)| {
            let position = at - before;
            before += rules.len();
            (position < rules.len()).then_some((block, position))
        })
    }

    /// Returns a key between those of the rules before and at a position; [`None`] if there is no other number between.
    fn key_before(&self, at: usize) -> Option<i128> {
        let key = |(block, position): Place| self.blocks[block][position].key;
        let next = self.place(at).map(key);
        let last = || self.blocks.last().and_then(|rules| rules.last()).map(|entry| entry.key);
        let before = match at {
            0 => None,
            at if at == self.length => last(),
            at => self.place(at - 1).map(key),
        };
        match (before, next) {
            (None, None) => Some(0),
            (Some(before), None) => before.checked_add(GAP),
            (None, Some(next)) => next.checked_sub(GAP),
            (Some(before), Some(next)) => Some(before + (next - before) / 2).filter(|key| *key > before),
        }
    }

    /// Gives all rules new keys with gaps between them.
    fn renumber(&mut self, family: IpFamily) {
        for (n, entry) in (0..).zip(self.blocks.iter_mut().flatten()) {
            entry.key = n * GAP;
        }
        if self.by_rule.is_some() {
            self.index(family);
        }
    }

    fn index(&mut self, family: IpFamily) {
        let mut index: HashMap<Rc<Rule>, BTreeSet<i128>> = HashMap::new();
        for entry in self.blocks.iter().flatten() {
            index.entry(Rule::parse(family, &entry.text).into()).or_default().insert(entry.key);
        }
        self.by_rule = Some(index);
    }
}

/// The maximum number of rules in a block.
const MAX_BLOCK: usize = 512;
/// The difference of the keys of two rules that follow each other, so that others can be inserted between them.
const GAP: i128 = 1 << 80;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const FAMILY: IpFamily = IpFamily::V4;

    fn rule(n: usize) -> String {
        format!("-s 10.{}.{}.{}/32 -j DROP", n >> 16, n >> 8 & 255, n & 255)
    }

    #[test]
    fn edits_have_the_same_results_as_on_a_list() {
        let (mut list, mut expected) = (RuleList::default(), Vec::<String>::new());
        let mut random = 12345u64;
        let mut below = |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % limit
        };
        for step in 0..20_000 {
            // Equal rules occur often.
            let text = rule(below(700));
            let at = below(expected.len() + 1);
            match below(10) {
                0..=2 => {
                    list.insert(FAMILY, at, text.clone());
                    expected.insert(at, text);
                }
                // At the same place again and again.
                3..=5 => {
                    let at = at.min(1);
                    list.insert(FAMILY, at, text.clone());
                    expected.insert(at, text);
                }
                6 | 7 => {
                    list.remove_equal(FAMILY, &text.replace("/32", ""));
                    if let Some(at) = expected.iter().position(|other| *other == text) {
                        expected.remove(at);
                    }
                }
                8 => {
                    let is_present = at < expected.len();
                    assert_eq!(list.remove(FAMILY, at), is_present);
                    if is_present {
                        expected.remove(at);
                    }
                }
                _ => {
                    let is_present = at < expected.len();
                    assert_eq!(list.replace(FAMILY, at, text.clone()), is_present);
                    if is_present {
                        expected[at] = text;
                    }
                }
            }
            if step % 500 == 0 {
                assert_eq!(list.texts().collect::<Vec<_>>(), expected, "{step}");
            }
        }
        assert_eq!(
            (list.texts().collect::<Vec<_>>(), list.len()),
            (expected.iter().map(String::as_str).collect(), expected.len())
        );
    }

    #[test]
    fn long_chains_are_edited_in_a_short_time() {
        let (started, mut list) = (Instant::now(), RuleList::default());
        for n in 0..50_000 {
            list.insert(FAMILY, n, rule(n));
        }
        // From the end, so that each is the last one of many that are compared.
        for n in (0..50_000).rev() {
            list.remove_equal(FAMILY, &rule(n));
        }
        assert_eq!(list.len(), 0);
        // A comparison with all rules takes many minutes.
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    }
}
