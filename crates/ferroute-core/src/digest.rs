use std::{
    fmt::{self, Write},
    num::ParseIntError,
    str::FromStr,
};

use sha2::{Digest, Sha256};

/// Stands for the rules that a table's Services come to: the same for the same rules on every machine, by every build
/// and whatever came before. It is the first half of the SHA-256 of their text, and prints as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RulesDigest(u128);

/// Why a text is no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDigest {
    /// It is too short or too long.
    #[error("a digest has {got} characters (want 32)")]
    Length {
        /// How many it has.
        got: usize,
    },
    /// It is not hexadecimal.
    #[error("a digest is no hexadecimal number")]
    Digits(#[from] ParseIntError),
}

impl RulesDigest {
    /// Of the text that `write` writes.
    pub fn of(write: impl FnOnce(&mut dyn Write) -> fmt::Result) -> Self {
        let mut text = Hashed(Sha256::new());
        write(&mut text)
            .expect("bug: values that are printed fail only where their output does, and this one does not");
        let hash: [u8; 32] = text.0.finalize().into();
        let (half, _) = hash.split_first_chunk().expect("half of 32 bytes is 16");
        Self(u128::from_be_bytes(*half))
    }
}

impl fmt::Display for RulesDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for RulesDigest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        match text.len() {
            32 => Ok(Self(u128::from_str_radix(text, 16)?)),
            got => Err(InvalidDigest::Length { got }),
        }
    }
}

/// Takes text and keeps its hash alone.
struct Hashed(Sha256);

impl Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_first_half_of_a_known_hash() {
        let digest = RulesDigest::of(|out| ["a", "bc"].iter().try_for_each(|text| out.write_str(text)));
        assert_eq!(digest.to_string(), "ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(digest.to_string().parse(), Ok(digest));
    }

    #[test]
    fn other_texts_are_no_digests() {
        assert_eq!("ba78".parse::<RulesDigest>(), Err(InvalidDigest::Length { got: 4 }));
        assert!(matches!("x".repeat(32).parse::<RulesDigest>(), Err(InvalidDigest::Digits(_))));
    }
}
