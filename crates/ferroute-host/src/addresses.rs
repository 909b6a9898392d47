use std::net::IpAddr;

use ferroute_netlink::{AsyncSubscription, Error, Message, Protocol, Request, Socket};

/// An error of the host's address list.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// No netlink socket could be opened.
    #[error("cannot open a netlink socket for addresses")]
    Open(#[source] Error),
    /// The addresses could not be listed. Worth a retry.
    #[error("cannot list the host's addresses")]
    List(#[source] Error),
    /// Address changes could not be received.
    #[error("cannot watch the host's addresses")]
    Watch(#[source] Error),
}

/// Lists the host's addresses.
pub trait HostAddresses: Send {
    /// Returns the addresses of all interfaces in both families, sorted and without duplicates.
    ///
    /// As in kube-proxy, this includes loopback and link-local addresses and those of interfaces that are down;
    /// `nodePortAddresses` selects the ones that accept node port traffic.
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError>;
}

/// The kernel's addresses of a network namespace.
#[derive(Debug)]
pub struct KernelAddresses {
    socket: Socket,
}

impl KernelAddresses {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, AddressError> {
        Socket::open(Protocol::Route).map(|socket| Self { socket }).map_err(AddressError::Open)
    }
}

impl HostAddresses for KernelAddresses {
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        let mut request = Request::new(libc::RTM_GETADDR, 0, &[0; IFADDRMSG_LENGTH]);
        let parse = |message: Message<'_>| parse(message).map(|address| address.map(|(_, ip)| ip));
        let mut addresses = self.socket.collect(&mut request, parse).map_err(AddressError::List)?;
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }
}

/// Returns the interface index and the address of an `RTM_NEWADDR` message, `None` for other messages and families.
pub(crate) fn parse(message: Message<'_>) -> Result<Option<(u32, IpAddr)>, Error> {
    let (header, attributes) = message.split_header::<IFADDRMSG_LENGTH>()?;
    if message.kind != libc::RTM_NEWADDR || ![libc::AF_INET, libc::AF_INET6].contains(&header[0].into()) {
        return Ok(None);
    }
    let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let (mut local, mut address) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::IFA_LOCAL => local = Some(attribute.ip()?),
            libc::IFA_ADDRESS => address = Some(attribute.ip()?),
            _ => {}
        }
    }
    // On a point-to-point link IFA_ADDRESS is the peer's address.
    Ok(local.or(address).map(|ip| (index, ip)))
}

/// The host's addresses, updated on changes.
#[derive(Debug)]
pub struct AddressWatch {
    subscription: AsyncSubscription,
    kernel: KernelAddresses,
    addresses: Vec<IpAddr>,
    /// A change was received but the addresses have not been listed since.
    is_stale: bool,
}

impl AddressWatch {
    /// Watches the addresses of the calling thread's network namespace.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime with I/O enabled.
    pub fn open() -> Result<Self, AddressError> {
        // Subscribe before listing, so that no change is lost in between.
        let groups = [libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR];
        let subscription = AsyncSubscription::open(Protocol::Route, &groups).map_err(AddressError::Watch)?;
        let mut kernel = KernelAddresses::open()?;
        let addresses = kernel.list()?;
        Ok(Self { subscription, kernel, addresses, is_stale: false })
    }

    /// Returns the most recent list, in the order of [`HostAddresses::list`].
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Waits until the list differs from [`AddressWatch::addresses`] and returns the new one. Notifications that leave
    /// the list unchanged, such as a renewed lifetime, are ignored.
    ///
    /// This method is cancel safe. After an error the next call lists the addresses immediately, so callers should back
    /// off in between.
    pub async fn changed(&mut self) -> Result<&[IpAddr], AddressError> {
        loop {
            if self.is_stale {
                let addresses = self.kernel.list()?;
                self.is_stale = false;
                if addresses != self.addresses {
                    self.addresses = addresses;
                    return Ok(&self.addresses);
                }
            }
            self.subscription.wait(|_| ()).await.map_err(AddressError::Watch)?;
            self.is_stale = true;
        }
    }
}

/// `sizeof(struct ifaddrmsg)`: address family at offset 0, interface index at 4 (`include/uapi/linux/if_addr.h`).
pub(crate) const IFADDRMSG_LENGTH: usize = 8;
