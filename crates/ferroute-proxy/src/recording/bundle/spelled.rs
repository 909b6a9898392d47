//! How values look in a file whose types have no spelling of their own.

/// Times in a file, in UTC as in RFC 3339.
pub(super) mod time {
    use std::time::SystemTime;

    use ferroute_core::rfc3339;
    use serde::{Deserialize, Deserializer, Serializer, de, ser};

    pub(in crate::recording::bundle) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        let text = rfc3339::format(*time, 6).ok_or_else(|| ser::Error::custom("the time is after the year 9999"))?;
        serializer.serialize_str(&text)
    }

    pub(in crate::recording::bundle) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        let text = String::deserialize(deserializer)?;
        rfc3339::parse(&text).ok_or_else(|| de::Error::custom(format_args!("invalid time {text:?}")))
    }
}

/// Families in a file.
pub(super) mod family {
    use ferroute_core::IpFamily;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in crate::recording::bundle) fn serialize<S: Serializer>(family: &IpFamily, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(family.as_str())
    }

    pub(in crate::recording::bundle) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpFamily, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = IpFamily::BOTH.into_iter().find(|family| family.as_str() == text);
        known.ok_or_else(|| D::Error::custom(format_args!("unknown IP family {text:?}")))
    }
}

/// Digests in a file.
pub(super) mod digest {
    use ferroute_core::RulesDigest;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(in crate::recording::bundle) fn serialize<S: Serializer>(
        digest: &Option<RulesDigest>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        digest.map(|digest| digest.to_string()).serialize(serializer)
    }

    pub(in crate::recording::bundle) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<RulesDigest>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}
