use std::{fmt, path::PathBuf, str::FromStr};

/// A demo on this machine. There is one unnamed instance; tests use named ones.
///
/// The names of its directory and network namespaces start with a separate prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instance {
    name: Option<String>,
}

/// An invalid instance name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid name {0:?} (want letters and digits)")]
pub(crate) struct InvalidInstance(String);

impl Instance {
    /// Returns the directory of the running demo.
    pub(crate) fn directory(&self) -> PathBuf {
        PathBuf::from("/run").join(self.to_string())
    }

    /// Returns the network namespace of a machine or pod.
    pub(crate) fn namespace(&self, machine: &str) -> String {
        format!("{}{machine}", self.prefix())
    }

    /// Returns the prefix of all its network namespaces.
    pub(crate) fn prefix(&self) -> String {
        format!("{self}-")
    }

    /// Returns the name; `None` for the unnamed instance.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ferroute-demo")?;
        self.name.iter().try_for_each(|name| write!(f, "@{name}"))
    }
}

impl FromStr for Instance {
    type Err = InvalidInstance;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(InvalidInstance(name.to_owned()));
        }
        Ok(Self { name: Some(name.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_instances_are_distinct() {
        let (unnamed, named): (_, Instance) = (Instance::default(), "test".parse().unwrap());
        assert_eq!(unnamed.namespace("node"), "ferroute-demo-node");
        assert_eq!(named.namespace("node"), "ferroute-demo@test-node");
        assert!(!named.namespace("node").starts_with(&unnamed.prefix()));
        "a-b".parse::<Instance>().unwrap_err();
    }
}
