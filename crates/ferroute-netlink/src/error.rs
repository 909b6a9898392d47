use std::{fmt, io};

use crate::{Malformed, Oversize, Protocol};

/// Why an exchange with the kernel failed.
///
/// After [`Error::Refused`] and [`Error::Oversize`] the socket is as good as before; after the others it is wiser to
/// open a new one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no socket: the kernel lacks the protocol, or the process may not have so many files.
    #[error("cannot open a netlink socket for {protocol}")]
    Open {
        /// What it should talk to.
        protocol: Protocol,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A message was not taken; nothing of it, nor of what was sent with it, was looked at.
    #[error("cannot send {bytes} bytes of netlink messages")]
    Send {
        /// Size of everything that was sent together.
        bytes: usize,
        /// The kernel's answer. `EMSGSIZE`: the process may not have a send buffer of this size.
        #[source]
        source: io::Error,
    },
    /// The answer could not be read.
    #[error("cannot receive netlink messages")]
    Receive {
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A datagram was longer than anything that was expected.
    #[error("a netlink datagram was cut off (got {length} bytes, want at most {room})")]
    Truncated {
        /// Its size.
        length: usize,
        /// The size of the receive buffer.
        room: usize,
    },
    /// The kernel looked at the request and said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The kernel did not say that it has done what was asked, so maybe it has not.
    #[error("kernel did not answer a request of kind {kind:#06x}")]
    Unanswered {
        /// The kind of the request.
        kind: u16,
    },
    /// The same for a batch: not all of its messages that ask for an answer got one, and none was refused.
    #[error("kernel did not answer a batch of {messages} messages")]
    UnansweredBatch {
        /// Number of messages in the batch.
        messages: usize,
    },
    /// So many answers came that some were lost.
    #[error("kernel's answers did not fit into the receive buffer, some are lost")]
    Overrun,
    /// Whenever a list was read, it was changed at the same time.
    #[error("list changed while it was read, {tries} times in a row (kind {kind:#06x})")]
    Interrupted {
        /// The kind of the message that asked for the list.
        kind: u16,
        /// How often it was tried.
        tries: usize,
    },
    /// What was to be sent does not fit into its frame.
    #[error("netlink message is too long")]
    Oversize(#[from] Oversize),
    /// The kernel's answer makes no sense.
    #[error("cannot understand the kernel's answer")]
    Malformed(#[from] Malformed),
}

/// One message that the kernel said no to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Position of the message in its batch, from 0; 0 for a request.
    pub index: usize,
    /// The kind of the message.
    pub kind: u16,
    /// The error number (`E*`), positive.
    pub errno: i32,
    /// Where in the message the kernel saw the error: bytes from the start of its netlink header to the attribute.
    pub offset: Option<u32>,
    /// The kernel's own words.
    pub text: Option<String>,
}

/// Everything that the kernel refused of a batch, in the order of the messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a batch that could be sent may still have been refused"]
pub struct Refusals {
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) overrun: bool,
}

impl Refusals {
    /// Nothing was refused.
    pub fn is_empty(&self) -> bool {
        self.refusals.is_empty() && !self.overrun
    }

    /// The refusals whose reports have arrived.
    pub fn as_slice(&self) -> &[Refusal] {
        &self.refusals
    }

    /// There were more refusals than the receive buffer has room for.
    pub fn is_overrun(&self) -> bool {
        self.overrun
    }

    /// The first refusal as an error, for batches that succeed or fail as a whole.
    pub fn into_result(self) -> Result<(), Error> {
        match self.refusals.into_iter().next() {
            Some(refusal) => Err(refusal.into()),
            None if self.overrun => Err(Error::Overrun),
            None => Ok(()),
        }
    }
}

impl Refusal {
    /// The object is not there, or what it refers to is not.
    pub fn is_not_found(&self) -> bool {
        self.errno == libc::ENOENT
    }

    /// There is such an object already.
    pub fn is_exists(&self) -> bool {
        self.errno == libc::EEXIST
    }

    /// The object is in use.
    pub fn is_busy(&self) -> bool {
        self.errno == libc::EBUSY
    }

    /// The batch was made for a state that is not the present one any more: read again, and write again.
    pub fn is_stale(&self) -> bool {
        self.errno == libc::ERESTART
    }
}

impl Error {
    /// What the kernel refused, if that is the reason.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// See [`Refusal::is_not_found`].
    pub fn is_not_found(&self) -> bool {
        self.refusal().is_some_and(Refusal::is_not_found)
    }

    /// See [`Refusal::is_exists`].
    pub fn is_exists(&self) -> bool {
        self.refusal().is_some_and(Refusal::is_exists)
    }

    /// See [`Refusal::is_busy`].
    pub fn is_busy(&self) -> bool {
        self.refusal().is_some_and(Refusal::is_busy)
    }

    /// See [`Refusal::is_stale`].
    pub fn is_stale(&self) -> bool {
        self.refusal().is_some_and(Refusal::is_stale)
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, kind, errno, .. } = self;
        write!(f, "kernel refused netlink message {index} of kind {kind:#06x}")?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": {}", io::Error::from_raw_os_error(*errno))?;
        if let Some(text) = &self.text {
            write!(f, ": {text}")?;
        }
        Ok(())
    }
}
