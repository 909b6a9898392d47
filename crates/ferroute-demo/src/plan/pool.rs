use std::{collections::BTreeMap, fmt};

use sha2::{Digest, Sha256};

use super::error::{ObjectName, Problem};

/// Values of which each belongs to at most one object: addresses, ports.
#[derive(Debug)]
pub(super) struct Pool<T> {
    owners: BTreeMap<T, ObjectName>,
}

impl<T: Ord + Clone + fmt::Display> Pool<T> {
    pub(super) fn new() -> Self {
        Self { owners: BTreeMap::new() }
    }

    /// Gives `owner` the very value that it asks for.
    pub(super) fn reserve(&mut self, value: T, owner: &ObjectName) -> Result<(), Problem> {
        if let Some(other) = self.owners.get(&value) {
            return Err(Problem::Taken { value: value.to_string(), owner: other.clone() });
        }
        self.owners.insert(value, owner.clone());
        Ok(())
    }

    /// Gives `owner` the first of `candidates` that is free; `None` when none is.
    pub(super) fn assign(&mut self, candidates: impl IntoIterator<Item = T>, owner: &ObjectName) -> Option<T> {
        let value = candidates.into_iter().find(|candidate| !self.owners.contains_key(candidate))?;
        self.owners.insert(value.clone(), owner.clone());
        Some(value)
    }
}

/// All numbers below `size`, from one on that depends on nothing but `seed`. So an object gets the same value whatever
/// else is in the cluster, unless two want the same one.
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
    fn a_value_has_one_owner() {
        let mut pool = Pool::new();
        pool.reserve(7, &owner("a")).unwrap();
        assert_eq!(pool.reserve(7, &owner("b")).unwrap_err().to_string(), "7 is already taken by Service default/a");
        assert_eq!(pool.assign([7, 8], &owner("b")), Some(8));
        assert_eq!(pool.assign([7, 8], &owner("c")), None);
    }

    #[test]
    fn every_number_comes_once_from_a_start_that_the_seed_gives() {
        let mut all: Vec<u32> = numbers("default/a", 100).collect();
        assert_eq!(all, numbers("default/a", 100).collect::<Vec<_>>());
        assert_ne!(all[0], numbers("default/b", 100).next().unwrap());
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }
}
