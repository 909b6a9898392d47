use nix::{
    errno::Errno,
    sys::resource::{Resource, getrlimit, rlim_t, setrlimit},
};

/// The limit of open files cannot be read or raised.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorLimitError {
    /// The limit cannot be read.
    #[error("cannot read the limit of open files")]
    Read(#[source] Errno),
    /// The limit cannot be raised.
    #[error("cannot raise the limit of open files from {soft} to {hard}")]
    Raise {
        /// The active limit.
        soft: rlim_t,
        /// The limit up to which it can be raised.
        hard: rlim_t,
        /// Error of the kernel.
        #[source]
        source: Errno,
    },
}

/// Raises the process's limit of open files (`RLIMIT_NOFILE`) as far as is allowed, and returns it.
///
/// The soft limit is usually 1024, for old programs that call `select`. Child processes inherit the raised one.
///
/// # Errors
///
/// The limit cannot be read or raised; it has not changed.
pub fn raise_descriptor_limit() -> Result<rlim_t, DescriptorLimitError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(DescriptorLimitError::Read)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(|source| DescriptorLimitError::Raise {
            soft,
            hard,
            source,
        })?;
    }
    Ok(hard.max(soft))
}
