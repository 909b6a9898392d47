use std::net::IpAddr;

use ferroute_netlink::{Error, Message, Protocol, Request, Socket};

/// The host's addresses could not be told.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// There is no way to ask for them.
    #[error("cannot ask the kernel for the host's addresses")]
    Open(#[source] Error),
    /// They could not be listed. Worth another try.
    #[error("cannot list the host's addresses")]
    List(#[source] Error),
    /// News of them cannot be heard.
    #[error("cannot listen to changes of the host's addresses")]
    Listen(#[source] Error),
}

/// Tells the host's addresses.
pub trait HostAddresses: Send {
    /// Those of all interfaces and both families, each once, sorted.
    ///
    /// As in kube-proxy nothing is left out, neither loopback nor link-local addresses nor those of interfaces that are
    /// down: which of them answer on node ports is for `nodePortAddresses` to say.
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError>;
}

/// The addresses of a network namespace, from the kernel.
#[derive(Debug)]
pub struct KernelAddresses {
    socket: Socket,
}

impl KernelAddresses {
    /// Those of the calling thread's network namespace.
    pub fn open() -> Result<Self, AddressError> {
        Socket::open(Protocol::Route).map(|socket| Self { socket }).map_err(AddressError::Open)
    }
}

impl HostAddresses for KernelAddresses {
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        let mut request = Request::new(libc::RTM_GETADDR, 0, &[0; ADDRESS_HEADER]);
        let mut addresses = self.socket.collect(&mut request, parse).map_err(AddressError::List)?;
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }
}

/// `None` for what is not an IP address.
fn parse(message: Message<'_>) -> Result<Option<IpAddr>, Error> {
    let (header, attributes) = message.split_header::<ADDRESS_HEADER>()?;
    if message.kind != libc::RTM_NEWADDR || ![libc::AF_INET, libc::AF_INET6].contains(&header[0].into()) {
        return Ok(None);
    }
    let (mut local, mut address) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::IFA_LOCAL => local = Some(attribute.ip()?),
            libc::IFA_ADDRESS => address = Some(attribute.ip()?),
            _ => {}
        }
    }
    // On a link between two hosts the «address» is that of the other end.
    Ok(local.or(address))
}

/// Bytes of `struct ifaddrmsg` (`include/uapi/linux/if_addr.h`), whose first is the address family.
const ADDRESS_HEADER: usize = 8;
