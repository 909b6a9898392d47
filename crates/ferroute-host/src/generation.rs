use ferroute_netlink::{Error, Message, Protocol, Request, Socket, nfnetlink};

/// The generation of the rules could not be told.
#[derive(Debug, thiserror::Error)]
#[error("cannot ask the kernel for the generation of its rules")]
pub struct GenerationError(#[from] Error);

/// Tells whether somebody has changed any rule, without looking at rules.
pub trait RuleGeneration: Send {
    /// A number that each committed nf_tables transaction in this network namespace makes another one, usually greater
    /// by one.
    ///
    /// What `iptables-nft` writes counts as well, one transaction per table; what `iptables-legacy` writes does not.
    fn current(&mut self) -> Result<u32, GenerationError>;
}

/// The generation of a network namespace's nf_tables rules, from the kernel.
#[derive(Debug)]
pub struct KernelGeneration {
    socket: Socket,
}

impl KernelGeneration {
    /// That of the calling thread's network namespace; `None` where the kernel has no nf_tables.
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
        let kind = nfnetlink::kind(nfnetlink::NFTABLES, GET_GENERATION);
        let mut request = Request::new(kind, 0, &nfnetlink::header(libc::AF_UNSPEC as u8, 0, 0));
        let generation = self.socket.get(&mut request, parse)?;
        // Done, but without the one thing that was asked for.
        generation.ok_or(GenerationError(Error::Unanswered { kind }))
    }
}

fn parse(message: Message<'_>) -> Result<u32, Error> {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == ID {
            return Ok(attribute.u32_be()?);
        }
    }
    Err(message.missing(ID).into())
}

/// `NFT_MSG_GETGEN` and `NFTA_GEN_ID` of `include/uapi/linux/netfilter/nf_tables.h`.
const GET_GENERATION: u8 = 16;
const ID: u16 = 1;
