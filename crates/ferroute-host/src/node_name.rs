use nix::{errno::Errno, unistd::gethostname};

/// There is no name for this node.
#[derive(Debug, thiserror::Error)]
pub enum NodeNameError {
    /// The kernel does not tell the host's name.
    #[error("cannot read the host's name")]
    Read(#[source] Errno),
    /// The host's name is not UTF-8.
    #[error("host's name {0:?} is not text")]
    NotText(std::ffi::OsString),
    /// Nothing is left of the name without the white space around it.
    #[error("node name is empty (from {0:?})")]
    Empty(String),
}

/// The name of this host's Node object: `hostname_override` unless empty, else the host's name; in lower case and
/// without white space around it, as kubelet registers it.
pub fn node_name(hostname_override: &str) -> Result<String, NodeNameError> {
    if !hostname_override.is_empty() {
        return normalized(hostname_override);
    }
    let name = gethostname().map_err(NodeNameError::Read)?;
    normalized(&name.into_string().map_err(NodeNameError::NotText)?)
}

fn normalized(name: &str) -> Result<String, NodeNameError> {
    match name.trim() {
        "" => Err(NodeNameError::Empty(name.to_owned())),
        trimmed => Ok(trimmed.to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_wins_and_is_written_as_kubelet_does() {
        assert_eq!(node_name(" Worker-1.Example \n").unwrap(), "worker-1.example");
    }

    #[test]
    fn white_space_is_no_name() {
        assert!(matches!(node_name(" \t"), Err(NodeNameError::Empty(name)) if name == " \t"));
    }

    #[test]
    fn without_an_override_it_is_the_name_of_the_host() {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(node_name("").unwrap(), name.trim().to_lowercase());
    }
}
