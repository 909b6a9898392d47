use std::{fmt, sync::Arc};

use ferroute_api::ObjectMeta;

use crate::Protocol;

/// The namespace and name of a Kubernetes object.
///
/// The namespace is empty for objects that are not namespaced, such as Nodes. Clones share one allocation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName {
    /// `namespace/name`, or `name` without a namespace.
    text: Arc<str>,
    /// Length of the namespace within `text`. Takes part in comparisons because this type does not reject slashes in
    /// names.
    namespace_len: usize,
}

impl NamespacedName {
    /// Creates a name from its parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        let text = if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}").into() };
        Self { text, namespace_len: namespace.len() }
    }

    /// The name of the object with this metadata.
    pub fn from_metadata(metadata: &ObjectMeta) -> Self {
        Self::new(&metadata.namespace, &metadata.name)
    }

    /// The namespace; empty for objects that are not namespaced.
    pub fn namespace(&self) -> &str {
        &self.text[..self.namespace_len]
    }

    /// The name within the namespace.
    pub fn name(&self) -> &str {
        match self.namespace_len {
            0 => &self.text,
            len => &self.text[len + 1..],
        }
    }

    /// `namespace/name`, or `name` without a namespace.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// The name of a port of a Service.
///
/// It includes the protocol because a Service may use the same port name for several protocols, and ports of endpoint
/// slices are matched by name and protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    /// The Service.
    pub service: NamespacedName,
    /// The name of the port; empty if the only port of the Service has none.
    pub port: Arc<str>,
    /// The protocol of the port.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    /// Writes `namespace/name:port`, or `namespace/name` for a port without a name: the form that kube-proxy 1.36
    /// hashes into chain names and writes into rule comments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.service.as_str())?;
        if !self.port.is_empty() {
            write!(f, ":{}", self.port)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
