use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A Kubernetes quantity such as `512`, `4Ki` or `1.5M`, kept as text.
///
/// Only sizes of log buffers are quantities. Ferroute has no such buffers and only checks whether the size is zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity(String);

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
        &self.0
    }

    /// Reports whether the number is zero, whatever its suffix.
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
    fn quantities_keep_their_text_and_zero_is_recognized_with_any_suffix() {
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
