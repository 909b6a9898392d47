use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A Kubernetes quantity such as `512`, `4Ki` or `1.5M`, kept as it was written.
///
/// Only log buffers are given so, and Ferroute has none: it needs to know whether one was asked for, not its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity(String);

/// The text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid quantity {text:?} (want a number, perhaps with a suffix such as Ki, Mi, k or M)")]
pub struct ParseQuantityError {
    /// The whole text.
    pub text: String,
}

impl Quantity {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Is nothing, whatever its suffix.
    pub fn is_zero(&self) -> bool {
        let number = self.0.split(|c: char| c.is_ascii_alphabetic()).next().unwrap_or_default();
        number.bytes().all(|byte| !matches!(byte, b'1'..=b'9'))
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self("0".to_owned())
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let end = unsigned.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let is_number = number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() <= 1;
        let is_suffix = match suffix {
            "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E" => true,
            "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei" => true,
            _ => suffix.strip_prefix(['e', 'E']).is_some_and(|exponent| exponent.parse::<i32>().is_ok()),
        };
        if is_number && is_suffix {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseQuantityError { text: text.to_owned() })
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// Reads text or a plain number; `null` is zero.
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
                Ok(Quantity(number.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
                number.to_string().parse().map_err(E::custom)
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
    fn quantities_are_kept_as_written_and_zero_is_seen_through_its_suffix() {
        for (text, zero) in [
            ("0", true),
            ("0Ki", true),
            ("0.00M", true),
            ("-0", true),
            ("0e3", true),
            ("512", false),
            ("4Ki", false),
            ("+1.5M", false),
            (".5", false),
            ("5.", false),
            ("1e3", false),
            ("1E-3", false),
            ("1E", false),
        ] {
            let quantity: Quantity = text.parse().expect(text);
            assert_eq!((quantity.as_str(), quantity.is_zero()), (text, zero));
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", ".", "-", "Ki", "1 Ki", "1KiB", "1.2.3", "1e", "1ex"] {
            assert_eq!(text.parse::<Quantity>(), Err(ParseQuantityError { text: text.to_owned() }));
        }
    }

    #[test]
    fn a_plain_number_is_a_quantity() {
        assert_eq!(serde_json::from_str::<Quantity>("1024").expect("a number").as_str(), "1024");
        assert_eq!(serde_json::from_str::<Quantity>("null").expect("null"), Quantity::default());
    }
}
