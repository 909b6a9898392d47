use ferroute_netlink::{Error, Message, Protocol, Refusal, Request, Socket, nfnetlink};

/// The ruleset's generation could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the nf_tables generation")]
pub struct GenerationError(#[from] Error);

/// Detects rule changes without reading rules.
pub trait RuleGeneration: Send {
    /// Returns the generation of the network namespace's nf_tables ruleset. Each committed transaction changes it,
    /// usually by incrementing it.
    ///
    /// `iptables-nft` commits one transaction per table; changes by `iptables-legacy` are not counted.
    fn current(&mut self) -> Result<u32, GenerationError>;
}

/// The kernel's nf_tables generation of a network namespace.
#[derive(Debug)]
pub struct KernelGeneration {
    socket: Socket,
}

impl KernelGeneration {
    /// Opens a socket in the calling thread's network namespace; returns `None` if the kernel lacks nf_tables.
    pub fn open() -> Result<Option<Self>, GenerationError> {
        let mut generation = Self { socket: Socket::open(Protocol::Netfilter)? };
        match generation.current() {
            Ok(_) => Ok(Some(generation)),
            Err(GenerationError(error)) if nfnetlink::is_subsystem_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl RuleGeneration for KernelGeneration {
    fn current(&mut self) -> Result<u32, GenerationError> {
        Ok(read_generation(&mut self.socket)?)
    }
}

/// Reports whether this process may read and write rules in the calling thread's network namespace: whether it has the capability
/// `CAP_NET_ADMIN` in the user namespace that owns it.
///
/// # Errors
/// If the kernel fails for another reason.
pub fn has_net_admin() -> Result<bool, GenerationError> {
    // The kernel checks the capability before it looks for the subsystem.
    match KernelGeneration::open() {
        Ok(_) => Ok(true),
        Err(GenerationError(error)) if error.refusal().is_some_and(Refusal::is_permission) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads the value of [`RuleGeneration::current`] through a socket for netfilter.
///
/// # Errors
/// If the kernel refuses.
pub fn read_generation(socket: &mut Socket) -> Result<u32, Error> {
    let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, NFT_MSG_GETGEN);
    let mut request = Request::new(kind, 0, &nfnetlink::header(libc::AF_UNSPEC as u8, 0, 0));
    // The kernel may acknowledge the request without a reply message.
    socket.get(&mut request, parse)?.ok_or(Error::Unanswered { kind })
}

pub(crate) fn parse(message: Message<'_>) -> Result<u32, Error> {
    Ok(message.attribute::<{ nfnetlink::HEADER_LENGTH }>(NFTA_GEN_ID)?.u32_be()?)
}

// include/uapi/linux/netfilter/nf_tables.h
const NFT_MSG_GETGEN: u8 = libc::NFT_MSG_GETGEN as u8;
const NFTA_GEN_ID: u16 = 1;
