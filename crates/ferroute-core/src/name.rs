use std::{cmp::Ordering, fmt, sync::Arc};

use ferroute_api::ObjectMeta;

use crate::Protocol;

/// The namespace and name of a Kubernetes object.
///
/// The namespace is empty for objects that are not namespaced, such as Nodes. Clones share one allocation. Names are ordered by
/// their text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NamespacedName {
    /// The length of the namespace in digits of six bits, the lowest first; all digits but the last have
    /// [`MORE_DIGITS`] set. It is followed by `namespace/name`, or by `name` without a namespace.
    ///
    /// The length is part of names because this type does not reject slashes in them. It is not a separate field
    /// because a large cluster has a million names.
    text: Arc<str>,
}

impl NamespacedName {
    /// Creates a name from its parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        let mut text = String::with_capacity(namespace.len() + name.len() + 2);
        let mut len = namespace.len();
        while len > usize::from(DIGIT) {
            text.push(char::from(len as u8 & DIGIT | MORE_DIGITS));
            len >>= DIGIT_BITS;
        }
        text.push(char::from(len as u8));
        if !namespace.is_empty() {
            text.push_str(namespace);
            text.push('/');
        }
        text.push_str(name);
        Self { text: text.into() }
    }

    /// The name of the object with this metadata.
    pub fn from_metadata(metadata: &ObjectMeta) -> Self {
        Self::new(&metadata.namespace, &metadata.name)
    }

    /// The namespace; empty for objects that are not namespaced.
    pub fn namespace(&self) -> &str {
        let (namespace_len, text) = self.parts();
        &text[..namespace_len]
    }

    /// The name within the namespace.
    pub fn name(&self) -> &str {
        match self.parts() {
            (0, text) => text,
            (namespace_len, text) => &text[namespace_len + 1..],
        }
    }

    /// `namespace/name`, or `name` without a namespace.
    pub fn as_str(&self) -> &str {
        self.parts().1
    }

    /// Returns the length of the namespace, and `namespace/name`.
    fn parts(&self) -> (usize, &str) {
        let mut len = 0;
        for (i, byte) in self.text.bytes().enumerate() {
            len |= usize::from(byte & DIGIT) << (DIGIT_BITS * i);
            if byte & MORE_DIGITS == 0 {
                return (len, &self.text[i + 1..]);
            }
        }
        unreachable!("bug: name without its first part");
    }
}

impl Ord for NamespacedName {
    fn cmp(&self, other: &Self) -> Ordering {
        let (len, text) = self.parts();
        let (other_len, other_text) = other.parts();
        text.cmp(other_text).then(len.cmp(&other_len))
    }
}

impl PartialOrd for NamespacedName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
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

/// Bits of a digit of a length. One digit suffices for the namespaces of Kubernetes, whose names have at most 63
/// characters.
const DIGIT: u8 = 0x3f;
const DIGIT_BITS: usize = 6;
/// Bit that is set in all digits but the last.
const MORE_DIGITS: u8 = 0x40;

#[cfg(test)]
mod tests;
