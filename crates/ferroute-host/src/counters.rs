use ferroute_netlink::{Error, Message, Protocol, Request, Socket, flags, nfnetlink};

/// The kernel's packet counters cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// Whether the kernel has any cannot be told.
    #[error("cannot ask the kernel for packet counters")]
    Open(#[source] Error),
    /// A counter is not there and cannot be made. The kernel takes names of 1 to 31 bytes.
    #[error("cannot create the packet counter {name:?}")]
    Create {
        /// Its name.
        name: String,
        /// The kernel's answer.
        #[source]
        source: Error,
    },
    /// A counter is there and cannot be removed, maybe because rules use it.
    #[error("cannot remove the packet counter {name:?}")]
    Remove {
        /// Its name.
        name: String,
        /// The kernel's answer.
        #[source]
        source: Error,
    },
    /// A counter cannot be read.
    #[error("cannot read the packet counter {name:?}")]
    Read {
        /// Its name.
        name: String,
        /// The kernel's answer.
        #[source]
        source: Error,
    },
}

/// What a counter has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Packets.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// Named counters that rules refer to (`-m nfacct --nfacct-name …`) and that outlive these rules.
pub trait PacketCounters: Send {
    /// Makes a counter unless there is one of this name, which then keeps its numbers.
    fn ensure(&mut self, name: &str) -> Result<(), CounterError>;

    /// Reads a counter; `None` if there is none of this name.
    fn read(&mut self, name: &str) -> Result<Option<Counter>, CounterError>;

    /// Removes a counter, if there is one of this name. The kernel keeps one that a rule uses.
    fn remove(&mut self, name: &str) -> Result<(), CounterError>;
}

/// The counters of a network namespace, from the kernel's packet accounting (nfacct).
#[derive(Debug)]
pub struct KernelCounters {
    socket: Socket,
}

impl KernelCounters {
    /// Those of the calling thread's network namespace; `None` where the kernel has no packet accounting.
    pub fn open() -> Result<Option<Self>, CounterError> {
        let socket = Socket::open(Protocol::Netfilter).map_err(CounterError::Open)?;
        let mut counters = Self { socket };
        match counters.get("any name at all") {
            Ok(_) => Ok(Some(counters)),
            Err(error) if nfnetlink::is_subsystem_missing(&error) => Ok(None),
            Err(error) => Err(CounterError::Open(error)),
        }
    }

    fn get(&mut self, name: &str) -> Result<Option<Counter>, Error> {
        match self.socket.get(&mut request(GET, 0, name), parse) {
            Err(error) if error.is_not_found() => Ok(None),
            result => result,
        }
    }
}

impl PacketCounters for KernelCounters {
    fn ensure(&mut self, name: &str) -> Result<(), CounterError> {
        let mut request = request(NEW, flags::CREATE | flags::EXCLUSIVE, name);
        match self.socket.request_ack(&mut request) {
            Err(error) if !error.is_exists() => Err(CounterError::Create { name: name.to_owned(), source: error }),
            _ => Ok(()),
        }
    }

    fn read(&mut self, name: &str) -> Result<Option<Counter>, CounterError> {
        self.get(name).map_err(|source| CounterError::Read { name: name.to_owned(), source })
    }

    fn remove(&mut self, name: &str) -> Result<(), CounterError> {
        match self.socket.request_ack(&mut request(DELETE, 0, name)) {
            Err(error) if !error.is_not_found() => Err(CounterError::Remove { name: name.to_owned(), source: error }),
            _ => Ok(()),
        }
    }
}

fn request(command: u8, flags: u16, name: &str) -> Request {
    let kind = nfnetlink::kind(nfnetlink::ACCOUNTING, command);
    let mut request = Request::new(kind, flags, &nfnetlink::header(libc::AF_UNSPEC as u8, 0, 0));
    request.attributes().put_str(NAME, name);
    request
}

fn parse(message: Message<'_>) -> Result<Counter, Error> {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let (mut packets, mut bytes) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            PACKETS => packets = Some(attribute.u64_be()?),
            BYTES => bytes = Some(attribute.u64_be()?),
            _ => {}
        }
    }
    Ok(Counter { packets: packets.ok_or(message.missing(PACKETS))?, bytes: bytes.ok_or(message.missing(BYTES))? })
}

// Commands and attributes of `include/uapi/linux/netfilter/nfnetlink_acct.h`.
const NEW: u8 = 0;
const GET: u8 = 1;
const DELETE: u8 = 3;
const NAME: u16 = 1;
const PACKETS: u16 = 2;
const BYTES: u16 = 3;
