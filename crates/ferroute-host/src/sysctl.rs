use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::PathBuf,
};

/// A sysctl could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The sysctl does not exist, for example because its kernel module is not loaded.
    #[error("sysctl {name} does not exist")]
    Missing {
        /// The path below the root.
        name: String,
    },
    /// The sysctl cannot be read.
    #[error("cannot read sysctl {name}")]
    Read {
        /// The path below the root.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The sysctl cannot be set: the kernel rejects the value or the process lacks permission.
    #[error("cannot set sysctl {name} to {value:?} (it is {current:?})")]
    Write {
        /// The path below the root.
        name: String,
        /// The rejected value.
        value: String,
        /// The current value.
        current: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl SysctlError {
    /// Returns the sysctl's path below the root.
    pub fn name(&self) -> &str {
        match self {
            Self::Missing { name } | Self::Read { name, .. } | Self::Write { name, .. } => name,
        }
    }
}

/// The result of [`Sysctls::ensure`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ensured {
    /// The sysctl already had the value; nothing was written.
    Unchanged,
    /// The value was replaced.
    Changed {
        /// The old value.
        from: String,
    },
}

/// The kernel's settings. A sysctl's name is its path: `net/ipv4/conf/all/route_localnet`.
#[derive(Clone, Debug)]
pub struct Sysctls {
    root: PathBuf,
}

impl Sysctls {
    /// Returns the sysctls of the running kernel. Those below `net/` are of the calling thread's network namespace.
    pub fn from_kernel() -> Self {
        Self::with_root("/proc/sys")
    }

    /// Returns the sysctls in another directory.
    pub fn with_root(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Reads a value, with white space normalized to single spaces.
    pub fn read(&self, name: &str) -> Result<String, SysctlError> {
        let text = fs::read_to_string(self.root.join(name)).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => SysctlError::Missing { name: name.to_owned() },
            _ => SysctlError::Read { name: name.to_owned(), source },
        })?;
        Ok(normalize(&text))
    }

    /// Reports whether the sysctl's file has no write permission, not even for root. This is the case in network
    /// namespaces other than the initial one for settings of the whole machine.
    pub fn is_read_only(&self, name: &str) -> bool {
        fs::metadata(self.root.join(name)).is_ok_and(|metadata| metadata.permissions().readonly())
    }

    /// Sets a value unless the sysctl has it already, so that hosts with correct settings need no write permission.
    pub fn ensure(&self, name: &str, value: &str) -> Result<Ensured, SysctlError> {
        let current = self.read(name)?;
        if current == normalize(value) {
            return Ok(Ensured::Unchanged);
        }
        // A sysctl takes its value in a single write and must not be created.
        let written = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(self.root.join(name))
            .and_then(|mut file| file.write_all(value.as_bytes()));
        match written {
            Ok(()) => Ok(Ensured::Changed { from: current }),
            Err(source) => Err(SysctlError::Write { name: name.to_owned(), value: value.to_owned(), current, source }),
        }
    }
}

fn normalize(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
