use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::PathBuf,
};

/// A sysctl could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The kernel has none of this name; maybe the module that brings it is not loaded.
    #[error("sysctl {name} does not exist")]
    Missing {
        /// Its path below the root.
        name: String,
    },
    /// It is there but cannot be read.
    #[error("cannot read sysctl {name}")]
    Read {
        /// Its path below the root.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is there but cannot be set to this value: the kernel does not take it, or the process may not.
    #[error("cannot set sysctl {name} to {value:?} (it is {found:?})")]
    Write {
        /// Its path below the root.
        name: String,
        /// What it should become.
        value: String,
        /// What it was before.
        found: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl SysctlError {
    /// The setting's path below the root.
    pub fn name(&self) -> &str {
        match self {
            Self::Missing { name } | Self::Read { name, .. } | Self::Write { name, .. } => name,
        }
    }
}

/// What [`Sysctls::ensure`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ensured {
    /// The value was right; nothing was written.
    AsBefore,
    /// It was this one, and has been replaced.
    Changed {
        /// The old value.
        from: String,
    },
}

/// The kernel's settings. A name is a path: `net/ipv4/conf/all/route_localnet`.
#[derive(Clone, Debug)]
pub struct Sysctls {
    root: PathBuf,
}

impl Sysctls {
    /// Those of the running kernel. What is below `net/` belongs to the calling thread's network namespace.
    pub fn of_kernel() -> Self {
        Self::rooted_at("/proc/sys")
    }

    /// Those in another directory.
    pub fn rooted_at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The value, with single spaces between its words and none around them.
    pub fn read(&self, name: &str) -> Result<String, SysctlError> {
        let text = fs::read_to_string(self.root.join(name)).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => SysctlError::Missing { name: name.to_owned() },
            _ => SysctlError::Read { name: name.to_owned(), source },
        })?;
        Ok(words(&text))
    }

    /// Nobody may write it, not even root. So it is in network namespaces beside the first with settings that belong to
    /// the whole machine.
    pub fn is_read_only(&self, name: &str) -> bool {
        fs::metadata(self.root.join(name)).is_ok_and(|metadata| metadata.permissions().readonly())
    }

    /// Sets the value unless it is this one already: some hosts let nobody write, and need not when all is well.
    pub fn ensure(&self, name: &str, value: &str) -> Result<Ensured, SysctlError> {
        let found = self.read(name)?;
        if found == words(value) {
            return Ok(Ensured::AsBefore);
        }
        // A sysctl takes its value in a single write, and must not be created.
        let written = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(self.root.join(name))
            .and_then(|mut file| file.write_all(value.as_bytes()));
        match written {
            Ok(()) => Ok(Ensured::Changed { from: found }),
            Err(source) => Err(SysctlError::Write { name: name.to_owned(), value: value.to_owned(), found, source }),
        }
    }
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
