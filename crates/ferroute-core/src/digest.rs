use std::{
    fmt::{self, Write},
    num::ParseIntError,
    str::FromStr,
};

use sha2::{Digest, Sha256};

/// A digest of the rules of a service table, equal for equal rules on every machine and in every build.
///
/// It is the first half of the SHA-256 of their text and is written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RulesDigest(u128);

/// The error for a text that is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDigest {
    /// The length is wrong.
    #[error("invalid digest of {got} characters (want 32)")]
    Length {
        /// Number of characters.
        got: usize,
    },
    /// A character is not a hexadecimal digit.
    #[error("invalid digest (want 32 hexadecimal digits)")]
    Digits(#[from] ParseIntError),
}

impl RulesDigest {
    /// Returns the digest of the text that `write` writes.
    pub fn compute(write: impl FnOnce(&mut dyn Write) -> fmt::Result) -> Self {
        let mut text = Hashed(Sha256::new());
        write(&mut text).expect("bug: hashing does not fail, so only a `Display` implementation can");
        let hash: [u8; 32] = text.0.finalize().into();
        let (half, _) = hash.split_first_chunk().expect("32 bytes are more than 16");
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

/// A writer that hashes the text.
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
    fn digest_is_the_first_half_of_sha256() {
        let digest = RulesDigest::compute(|out| ["a", "bc"].iter().try_for_each(|text| out.write_str(text)));
        assert_eq!(digest.to_string(), "ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(digest.to_string().parse(), Ok(digest));
    }

    #[test]
    fn invalid_digests_are_rejected() {
        assert_eq!("ba78".parse::<RulesDigest>(), Err(InvalidDigest::Length { got: 4 }));
        assert!(matches!("x".repeat(32).parse::<RulesDigest>(), Err(InvalidDigest::Digits(_))));
    }
}
