//! The file of digests.

use std::{collections::BTreeMap, fmt, fs};

use ferroute_config::ModeName;
use ferroute_core::IpFamily;

/// The path of the file.
pub(crate) const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plan_digests/digests.txt");

/// A digest of a text. FNV-1a, because the hashes of the standard library may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u32);

impl Digest {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
    }
}

/// Key of a line of the file: the mode, the IP family, the settings and the group of clusters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(String);

impl Key {
    pub(crate) fn new(mode: ModeName, family: IpFamily, setup: &str, group: &str) -> Self {
        Self(format!("{setup} {group} {} {family}", mode.as_str()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The digests of the planned rules of all clusters of each group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot(BTreeMap<Key, Vec<Digest>>);

impl Snapshot {
    /// Reads the file; without a file, the snapshot is empty.
    pub(crate) fn read() -> Self {
        let text = fs::read_to_string(PATH).unwrap_or_default();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let parsed = lines.map(|line| {
            let (key, digests) = line.split_once(": ").unwrap();
            let digests = digests.split(' ').map(|digest| Digest(u32::from_str_radix(digest, 16).unwrap()));
            (Key(key.to_owned()), digests.collect())
        });
        Self(parsed.collect())
    }

    pub(crate) fn write(&self) {
        let mut text = "# settings, clusters, mode, IP family: digests of the planned rules, see main.rs\n".to_owned();
        for (key, digests) in &self.0 {
            let digests: Vec<String> = digests.iter().map(|Digest(hash)| format!("{hash:08x}")).collect();
            text.push_str(&format!("{key}: {}\n", digests.join(" ")));
        }
        fs::write(PATH, text).unwrap();
    }

    /// Adds the digest of the next cluster of a group and returns its position.
    pub(crate) fn push(&mut self, key: &Key, digest: Digest) -> usize {
        let digests = self.0.entry(key.clone()).or_default();
        digests.push(digest);
        digests.len() - 1
    }

    pub(crate) fn get(&self, key: &Key, number: usize) -> Option<Digest> {
        self.0.get(key)?.get(number).copied()
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.keys()
    }
}
