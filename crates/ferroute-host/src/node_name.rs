use nix::{errno::Errno, unistd::gethostname};

/// The node's name could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum NodeNameError {
    /// The host name could not be read.
    #[error("cannot read the host name")]
    Read(#[source] Errno),
    /// The host name is not UTF-8.
    #[error("host name {0:?} is not valid UTF-8")]
    NotUtf8(std::ffi::OsString),
    /// The name is empty or consists of white space.
    #[error("node name is empty (from {0:?})")]
    Empty(String),
}

/// Returns the name of this host's Node object: `hostname_override` if not empty, else the host name; in lower case and
/// without surrounding white space, as kubelet registers it.
pub fn node_name(hostname_override: &str) -> Result<String, NodeNameError> {
    if !hostname_override.is_empty() {
        return normalize(hostname_override);
    }
    let name = gethostname().map_err(NodeNameError::Read)?;
    normalize(&name.into_string().map_err(NodeNameError::NotUtf8)?)
}

fn normalize(name: &str) -> Result<String, NodeNameError> {
    match name.trim() {
        "" => Err(NodeNameError::Empty(name.to_owned())),
        trimmed => Ok(trimmed.to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn override_is_normalized_like_kubelet_does() {
        assert_eq!(node_name(" Worker-1.Example \n").unwrap(), "worker-1.example");
    }

    #[test]
    fn white_space_is_rejected() {
        assert!(matches!(node_name(" \t"), Err(NodeNameError::Empty(name)) if name == " \t"));
    }

    #[test]
    fn host_name_is_the_default() {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(node_name("").unwrap(), name.trim().to_lowercase());
    }
}
