use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A Kubernetes quantity of bytes such as `512`, `4Ki` or `1.5M`: the size of a log file or of a log buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    text: String,
    bytes: Option<u64>,
}

/// A text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid quantity {text:?} (want a number with an optional suffix such as Ki, Mi, k or M)")]
pub struct ParseQuantityError {
    /// The whole text.
    pub text: String,
}

impl Quantity {
    /// Returns the original text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the number of bytes, rounded up as Kubernetes does; `None` if it is negative or larger than [`u64::MAX`].
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self { text: "0".to_owned(), bytes: Some(0) }
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let end = unsigned.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let has_digits = !whole.is_empty() || !fraction.is_empty();
        let Some((factor, exponent)) = factor(suffix).filter(|_| has_digits && !fraction.contains('.')) else {
            return Err(ParseQuantityError { text: text.to_owned() });
        };
        let bytes = bytes(whole, fraction, factor, exponent).filter(|bytes| *bytes == 0 || !text.starts_with('-'));
        Ok(Self { text: text.to_owned(), bytes })
    }
}

/// Returns the multiplier of a suffix: a factor, and a power of ten.
fn factor(suffix: &str) -> Option<(u64, i32)> {
    let (factor, exponent) = match suffix {
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "" => (1, 0),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => (1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some((factor, exponent))
}

/// Returns a decimal number times a factor and a power of ten, rounded up; `None` if it is too large.
fn bytes(whole: &str, fraction: &str, factor: u64, exponent: i32) -> Option<u64> {
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    if whole.is_empty() && fraction.is_empty() {
        return Some(0);
    }
    let number = format!("{whole}{fraction}").parse::<u128>().ok()?.checked_mul(factor.into())?;
    let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs());
    let bytes = match exponent {
        0.. => number.checked_mul(power?)?,
        // Less than a byte if the power is too large.
        _ => power.map_or(1, |power| number.div_ceil(power)),
    };
    bytes.try_into().ok()
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// Accepts a string or a number, and `null` for zero.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 512 or 4Ki")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_unit<E: de::Error>(self) -> Result<Quantity, E> {
                Ok(Quantity::default())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_keep_their_text_and_are_rounded_up_to_bytes() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("0Ki", Some(0)),
            ("0.00M", Some(0)),
            ("-0", Some(0)),
            ("0e3", Some(0)),
            ("0e999999999", Some(0)),
            ("512", Some(512)),
            ("4Ki", Some(4096)),
            ("10Mi", Some(10 << 20)),
            ("+1.5M", Some(1_500_000)),
            ("1.5Ki", Some(1536)),
            ("1.0001k", Some(1001)),
            (".5", Some(1)),
            ("5.", Some(5)),
            ("1500m", Some(2)),
            ("1n", Some(1)),
            ("1e3", Some(1000)),
            ("1E-3", Some(1)),
            ("1e-999999999", Some(1)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("15Ei", Some(15 << 60)),
            ("16Ei", None),
            ("1e20", None),
            ("1e999999999", None),
            ("-1", None),
        ] {
            let quantity: Quantity = text.parse().expect(text);
            assert_eq!((quantity.as_str(), quantity.bytes()), (text, bytes));
        }
    }

    #[test]
    fn invalid_quantities_are_rejected() {
        for text in ["", ".", "-", "Ki", "1 Ki", "1KiB", "1.2.3", "1e", "1ex"] {
            assert_eq!(text.parse::<Quantity>(), Err(ParseQuantityError { text: text.to_owned() }));
        }
    }

    #[test]
    fn plain_number_is_a_quantity() {
        assert_eq!(serde_json::from_str::<Quantity>("1024").expect("a number").as_str(), "1024");
        assert_eq!(serde_json::from_str::<Quantity>("null").expect("null"), Quantity::default());
    }
}
