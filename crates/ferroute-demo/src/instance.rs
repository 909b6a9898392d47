use std::{fmt, path::PathBuf, str::FromStr};

/// Which demo is meant: there is one per machine, except where tests ask for more by name.
///
/// Its directory and its network namespaces begin with a word that no other instance's begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instance {
    name: Option<String>,
}

/// Not a name for an instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid name {0:?} (want letters and digits)")]
pub(crate) struct InvalidInstance(String);

impl Instance {
    /// Where this demo keeps its files while it is up.
    pub(crate) fn directory(&self) -> PathBuf {
        PathBuf::from("/run").join(self.to_string())
    }

    /// The network namespace of a machine or pod.
    pub(crate) fn namespace(&self, machine: &str) -> String {
        format!("{}{machine}", self.prefix())
    }

    /// What the names of all its network namespaces begin with.
    pub(crate) fn prefix(&self) -> String {
        format!("{self}-")
    }

    /// The name, where it has one.
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
    fn no_instance_mistakes_anothers_namespaces_for_its_own() {
        let (unnamed, named): (_, Instance) = (Instance::default(), "test".parse().unwrap());
        assert_eq!(unnamed.namespace("node"), "ferroute-demo-node");
        assert_eq!(named.namespace("node"), "ferroute-demo@test-node");
        assert!(!named.namespace("node").starts_with(&unnamed.prefix()));
        "a-b".parse::<Instance>().unwrap_err();
    }
}
