use std::{fmt, sync::Arc};

use crate::Protocol;

/// `namespace/name` of a Service. Cheap to clone: all clones share one text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName {
    /// `namespace/name`.
    full: Arc<str>,
    /// Where the slash is in `full`. Part of every comparison, because nothing here keeps slashes out of names.
    slash: usize,
}

impl NamespacedName {
    /// Puts a name together.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { full: format!("{namespace}/{name}").into(), slash: namespace.len() }
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.full[..self.slash]
    }

    /// The name within the namespace.
    pub fn name(&self) -> &str {
        &self.full[self.slash + 1..]
    }

    /// `namespace/name`.
    pub fn as_str(&self) -> &str {
        &self.full
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.full, f)
    }
}

/// One port of one Service. The protocol is part of the name because a Service may offer the same port name for
/// several protocols, and slices' ports are matched by both.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    /// The Service.
    pub service: NamespacedName,
    /// Name of the port; empty where the Service's only port has none.
    pub port: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    /// `namespace/name:port`, or `namespace/name` for a port without a name: the form that kube-proxy 1.36 hashes into
    /// chain names and puts into comments.
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
