//! How values look in a file whose types have no spelling of their own.

/// Times in a file, in UTC as in RFC 3339.
pub(super) mod time {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in crate::bundle) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_micros(*time))
    }

    pub(in crate::bundle) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        humantime::parse_rfc3339(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Families in a file.
pub(super) mod family {
    use ferroute_core::IpFamily;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in crate::bundle) fn serialize<S: Serializer>(family: &IpFamily, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(family.as_str())
    }

    pub(in crate::bundle) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpFamily, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = IpFamily::BOTH.into_iter().find(|family| family.as_str() == text);
        known.ok_or_else(|| D::Error::custom(format_args!("unknown IP family {text:?}")))
    }
}

/// Digests in a file.
pub(super) mod digest {
    use ferroute_core::RulesDigest;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(in crate::bundle) fn serialize<S: Serializer>(
        digest: &Option<RulesDigest>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        digest.map(|digest| digest.to_string()).serialize(serializer)
    }

    pub(in crate::bundle) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<RulesDigest>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}
