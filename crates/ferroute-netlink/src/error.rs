use std::{fmt, io};

use crate::{Malformed, Oversize, Protocol};

/// An error of an exchange with the kernel.
///
/// The socket remains usable after [`Error::Refused`] and [`Error::Oversize`]; after other errors, open a new one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket could not be opened: the kernel lacks the protocol, or the process has too many open files.
    #[error("cannot open a netlink socket for {protocol}")]
    Open {
        /// The protocol of the socket.
        protocol: Protocol,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The messages could not be sent; the kernel processed none of them.
    #[error("cannot send {bytes} bytes of netlink messages")]
    Send {
        /// The total size of the messages.
        bytes: usize,
        /// The kernel's error. `EMSGSIZE`: the process may not have a send buffer of this size.
        #[source]
        source: io::Error,
    },
    /// The reply could not be received.
    #[error("cannot receive netlink messages")]
    Receive {
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A datagram exceeded the receive buffer.
    #[error("truncated netlink datagram (got {length} bytes, want at most {buffer})")]
    Truncated {
        /// The size of the datagram.
        length: usize,
        /// The size of the receive buffer.
        buffer: usize,
    },
    /// The kernel refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The kernel sent no ack; the request may or may not have been executed.
    #[error("kernel did not acknowledge a request of type {kind:#06x}")]
    Unanswered {
        /// The message type of the request.
        kind: u16,
    },
    /// The kernel sent fewer acks than the batch requested, and refused no message.
    #[error("kernel did not acknowledge a batch of {messages} messages")]
    UnansweredBatch {
        /// The number of messages in the batch.
        messages: usize,
    },
    /// `ENOBUFS`: the receive buffer overran and replies were lost.
    #[error("netlink receive buffer overrun: replies were lost")]
    Overrun,
    /// Every attempt to dump a list was interrupted by a change (`NLM_F_DUMP_INTR`).
    #[error("dump was interrupted {attempts} times in a row (type {kind:#06x})")]
    Interrupted {
        /// The message type of the dump request.
        kind: u16,
        /// The number of attempts.
        attempts: usize,
    },
    /// An attribute or message is too long for its length field.
    #[error("netlink message is too long")]
    Oversize(#[from] Oversize),
    /// The kernel's reply is malformed.
    #[error("malformed reply of the kernel")]
    Malformed(#[from] Malformed),
}

/// An error reply of the kernel to one message (`NLMSG_ERROR`), with its extended ack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The index of the message in its batch; 0 for a request.
    pub index: usize,
    /// The message type.
    pub kind: u16,
    /// The error number (`E*`), positive.
    pub errno: i32,
    /// The offset of the attribute at fault from the start of the message (`NLMSGERR_ATTR_OFFS`).
    pub offset: Option<u32>,
    /// The kernel's error message (`NLMSGERR_ATTR_MSG`).
    pub message: Option<String>,
}

/// The error replies of the kernel to a batch, in the order of the messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the kernel may have refused messages of a batch that was sent"]
pub struct Refusals {
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) overrun: bool,
}

impl Refusals {
    /// Reports whether the kernel refused no message.
    pub fn is_empty(&self) -> bool {
        self.refusals.is_empty() && !self.overrun
    }

    /// Returns the refusals that were received.
    pub fn as_slice(&self) -> &[Refusal] {
        &self.refusals
    }

    /// Reports whether the receive buffer overran, so that refusals were lost.
    pub fn is_overrun(&self) -> bool {
        self.overrun
    }

    /// Returns the first refusal as an error, for batches that the kernel applies as a whole.
    pub fn into_result(self) -> Result<(), Error> {
        match self.refusals.into_iter().next() {
            Some(refusal) => Err(refusal.into()),
            None if self.overrun => Err(Error::Overrun),
            None => Ok(()),
        }
    }
}

impl Refusal {
    /// Reports whether the object, or an object that it refers to, does not exist (`ENOENT`).
    pub fn is_not_found(&self) -> bool {
        self.errno == libc::ENOENT
    }

    /// Reports whether the object exists already (`EEXIST`).
    pub fn is_exists(&self) -> bool {
        self.errno == libc::EEXIST
    }

    /// Reports whether the object is in use (`EBUSY`).
    pub fn is_busy(&self) -> bool {
        self.errno == libc::EBUSY
    }

    /// Reports whether the process lacks a right (`EPERM`).
    pub fn is_permission(&self) -> bool {
        self.errno == libc::EPERM
    }

    /// Reports whether other transactions were committed since the generation that the batch requires (`ERESTART`).
    pub fn is_outdated(&self) -> bool {
        self.errno == libc::ERESTART
    }

    /// Reports whether the kernel lacks memory, the process lacks a privilege, or another transaction came in between,
    /// so that the contents of the message are not the cause.
    pub fn is_circumstantial(&self) -> bool {
        [
            libc::ENOMEM,
            libc::ENOBUFS,
            libc::EPERM,
            libc::EACCES,
            libc::EINTR,
            libc::EAGAIN,
            libc::ERESTART,
            libc::EMFILE,
            libc::ENFILE,
        ]
        .contains(&self.errno)
    }
}

impl Error {
    /// Returns the refusal, if that is the error.
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

    /// See [`Refusal::is_outdated`].
    pub fn is_outdated(&self) -> bool {
        self.refusal().is_some_and(Refusal::is_outdated)
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, kind, errno, .. } = self;
        write!(f, "kernel refused netlink message {index} of type {kind:#06x}")?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": {}", io::Error::from_raw_os_error(*errno))?;
        if let Some(message) = &self.message {
            write!(f, ": {message}")?;
        }
        Ok(())
    }
}
