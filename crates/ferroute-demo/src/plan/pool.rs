use std::{collections::BTreeMap, fmt};

use sha2::{Digest, Sha256};

use super::error::{ObjectName, Problem};

/// Addresses or ports, each of which has at most one owner.
#[derive(Debug)]
pub(super) struct Pool<T> {
    owners: BTreeMap<T, ObjectName>,
}

impl<T: Ord + Clone + fmt::Display> Pool<T> {
    pub(super) fn new() -> Self {
        Self { owners: BTreeMap::new() }
    }

    /// Assigns a certain value to `owner`.
    pub(super) fn reserve(&mut self, value: T, owner: &ObjectName) -> Result<(), Problem> {
        if let Some(other) = self.owners.get(&value) {
            return Err(Problem::Taken { value: value.to_string(), owner: other.clone() });
        }
        self.owners.insert(value, owner.clone());
        Ok(())
    }

    /// Assigns the first free one of `candidates` to `owner`; returns `None` if all are in use.
    pub(super) fn assign(&mut self, candidates: impl IntoIterator<Item = T>, owner: &ObjectName) -> Option<T> {
        let value = candidates.into_iter().find(|candidate| !self.owners.contains_key(candidate))?;
        self.owners.insert(value.clone(), owner.clone());
        Some(value)
    }
}

/// Returns all numbers below `size`, starting from one that depends only on `seed`: an object gets the same value in
/// every cluster, unless the value is in use.
pub(super) fn numbers(seed: &str, size: u32) -> impl Iterator<Item = u32> + use<> {
    let digest = Sha256::digest(seed);
    let start = digest.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte)) % size;
    (start..size).chain(0..start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> ObjectName {
        ObjectName { kind: "Service", namespace: "default".into(), name: name.into() }
    }

    #[test]
    fn value_has_one_owner() {
        let mut pool = Pool::new();
        pool.reserve(7, &owner("a")).unwrap();
        assert_eq!(pool.reserve(7, &owner("b")).unwrap_err().to_string(), "7 is already taken by Service default/a");
        assert_eq!(pool.assign([7, 8], &owner("b")), Some(8));
        assert_eq!(pool.assign([7, 8], &owner("c")), None);
    }

    #[test]
    fn numbers_are_a_permutation_that_depends_on_the_seed() {
        let mut all: Vec<u32> = numbers("default/a", 100).collect();
        assert_eq!(all, numbers("default/a", 100).collect::<Vec<_>>());
        assert_ne!(all[0], numbers("default/b", 100).next().unwrap());
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }
}
