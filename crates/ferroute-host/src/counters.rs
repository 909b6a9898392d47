use ferroute_netlink::{Error, Message, Protocol, Request, Socket, flags, nfnetlink};

/// An error of the kernel's packet accounting (nfacct).
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// The kernel's support for packet accounting could not be determined.
    #[error("cannot open packet accounting")]
    Open(#[source] Error),
    /// A counter could not be created. The kernel accepts names of 1 to 31 bytes.
    #[error("cannot create packet counter {name:?}")]
    Create {
        /// The counter's name.
        name: String,
        /// The kernel's error.
        #[source]
        source: Error,
    },
    /// A counter could not be removed, for example because rules refer to it.
    #[error("cannot remove packet counter {name:?}")]
    Remove {
        /// The counter's name.
        name: String,
        /// The kernel's error.
        #[source]
        source: Error,
    },
    /// A counter could not be read.
    #[error("cannot read packet counter {name:?}")]
    Read {
        /// The counter's name.
        name: String,
        /// The kernel's error.
        #[source]
        source: Error,
    },
}

/// The values of a counter since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The number of packets.
    pub packets: u64,
    /// The number of bytes in these packets.
    pub bytes: u64,
}

/// Named counters that rules refer to (`-m nfacct --nfacct-name ...`) and that outlive these rules.
pub trait PacketCounters: Send {
    /// Creates a counter unless it exists. An existing counter keeps its values.
    fn ensure(&mut self, name: &str) -> Result<(), CounterError>;

    /// Reads a counter; returns `None` if it does not exist.
    fn read(&mut self, name: &str) -> Result<Option<Counter>, CounterError>;

    /// Removes a counter if it exists. The kernel refuses to remove a counter that a rule refers to.
    fn remove(&mut self, name: &str) -> Result<(), CounterError>;
}

/// The nfacct counters of a network namespace.
#[derive(Debug)]
pub struct KernelCounters {
    socket: Socket,
}

impl KernelCounters {
    /// Opens the counters of the calling thread's network namespace; returns `None` if the kernel lacks packet accounting.
    pub fn open() -> Result<Option<Self>, CounterError> {
        let socket = Socket::open(Protocol::Netfilter).map_err(CounterError::Open)?;
        let mut counters = Self { socket };
        match counters.get("probe") {
            Ok(_) => Ok(Some(counters)),
            Err(error) if nfnetlink::is_subsystem_missing(&error) => Ok(None),
            Err(error) => Err(CounterError::Open(error)),
        }
    }

    fn get(&mut self, name: &str) -> Result<Option<Counter>, Error> {
        match self.socket.get(&mut request(NFNL_MSG_ACCT_GET, 0, name), parse) {
            Err(error) if error.is_not_found() => Ok(None),
            result => result,
        }
    }
}

impl PacketCounters for KernelCounters {
    fn ensure(&mut self, name: &str) -> Result<(), CounterError> {
        let mut request = request(NFNL_MSG_ACCT_NEW, flags::NLM_F_CREATE | flags::NLM_F_EXCL, name);
        match self.socket.request_ack(&mut request) {
            Err(error) if !error.is_exists() => Err(CounterError::Create { name: name.to_owned(), source: error }),
            _ => Ok(()),
        }
    }

    fn read(&mut self, name: &str) -> Result<Option<Counter>, CounterError> {
        self.get(name).map_err(|source| CounterError::Read { name: name.to_owned(), source })
    }

    fn remove(&mut self, name: &str) -> Result<(), CounterError> {
        match self.socket.request_ack(&mut request(NFNL_MSG_ACCT_DEL, 0, name)) {
            Err(error) if !error.is_not_found() => Err(CounterError::Remove { name: name.to_owned(), source: error }),
            _ => Ok(()),
        }
    }
}

fn request(command: u8, flags: u16, name: &str) -> Request {
    let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_ACCT, command);
    let mut request = Request::new(kind, flags, &nfnetlink::header(libc::AF_UNSPEC as u8, 0, 0));
    request.attributes().put_str(NFACCT_NAME, name);
    request
}

pub(crate) fn parse(message: Message<'_>) -> Result<Counter, Error> {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let (mut packets, mut bytes) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            NFACCT_PKTS => packets = Some(attribute.u64_be()?),
            NFACCT_BYTES => bytes = Some(attribute.u64_be()?),
            _ => {}
        }
    }
    Ok(Counter {
        packets: packets.ok_or(message.missing(NFACCT_PKTS))?,
        bytes: bytes.ok_or(message.missing(NFACCT_BYTES))?,
    })
}

// include/uapi/linux/netfilter/nfnetlink_acct.h
const NFNL_MSG_ACCT_NEW: u8 = 0;
const NFNL_MSG_ACCT_GET: u8 = 1;
const NFNL_MSG_ACCT_DEL: u8 = 3;
const NFACCT_NAME: u16 = 1;
const NFACCT_PKTS: u16 = 2;
const NFACCT_BYTES: u16 = 3;
