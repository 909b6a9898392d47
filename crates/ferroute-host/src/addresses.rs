use std::net::IpAddr;

use ferroute_core::error_chain;
use ferroute_netlink::{AsyncSubscription, Drained, Error, Message, Protocol, Request, Socket, Subscription};

use crate::routes::IFINFOMSG_LENGTH;

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
    /// Returns the addresses of all interfaces in both families, sorted and without duplicates. Addresses of
    /// [`SERVICE_DEVICE`] do not count as the host's and are excluded.
    ///
    /// As in kube-proxy, this includes loopback and link-local addresses and those of interfaces that are down;
    /// `nodePortAddresses` selects the ones that accept node port traffic.
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError>;

    /// Updates a list. If the addresses cannot be read, this is logged and the list is kept: outdated addresses are
    /// better than no node ports.
    fn refresh(&mut self, known: &mut Vec<IpAddr>) {
        match self.list() {
            Ok(addresses) => *known = addresses,
            Err(error) => tracing::warn!(
                error = error_chain(&error),
                "cannot read the host's addresses; node ports keep the previous ones"
            ),
        }
    }
}

/// A host with these addresses, for plans and simulations of other hosts.
impl HostAddresses for Vec<IpAddr> {
    fn list(&mut self) -> Result<Self, AddressError> {
        Ok(self.clone())
    }
}

/// The kernel's addresses of a network namespace. They are read again only after a change, because ipvs mode can add
/// thousands that do not count.
#[derive(Debug)]
pub struct KernelAddresses {
    socket: Socket,
    subscription: Subscription,
    /// The index of [`SERVICE_DEVICE`] when the addresses were read.
    service_device: Option<u32>,
    /// Addresses; `None` if they must be read.
    addresses: Option<Vec<IpAddr>>,
}

impl KernelAddresses {
    /// Opens sockets in the calling thread's network namespace.
    pub fn open() -> Result<Self, AddressError> {
        // Subscribe before listing, so that no change is lost in between.
        let subscription = Subscription::open(Protocol::Route, &ADDRESS_GROUPS).map_err(AddressError::Watch)?;
        let socket = Socket::open(Protocol::Route).map_err(AddressError::Open)?;
        Ok(Self { socket, subscription, service_device: None, addresses: None })
    }

    fn read(&mut self) -> Result<Vec<IpAddr>, Error> {
        self.service_device = device_index(&mut self.socket, SERVICE_DEVICE)?;
        let ignored = self.service_device;
        let mut request = Request::new(libc::RTM_GETADDR, 0, &[0; IFADDRMSG_LENGTH]);
        let mut addresses = self.socket.collect(&mut request, |message: Message<'_>| {
            let parsed = parse(message)?;
            Ok::<_, Error>(parsed.filter(|(index, _)| Some(*index) != ignored).map(|(_, address)| address))
        })?;
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }
}

impl HostAddresses for KernelAddresses {
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        let (mut changed, ignored) = (false, self.service_device);
        let drained = self.subscription.drain(|message| changed |= concerns_host(message, ignored));
        if changed || drained.map_err(AddressError::Watch)? == Drained::Overrun {
            self.addresses = None;
        }
        if let Some(addresses) = &self.addresses {
            return Ok(addresses.clone());
        }
        let addresses = self.read().map_err(AddressError::List)?;
        self.addresses = Some(addresses.clone());
        Ok(addresses)
    }
}

/// Returns the index of the device with this name, if it exists.
fn device_index(socket: &mut Socket, name: &str) -> Result<Option<u32>, Error> {
    let mut request = Request::new(libc::RTM_GETLINK, 0, &[0; IFINFOMSG_LENGTH]);
    request.attributes().put_str(libc::IFLA_IFNAME, name);
    let index = socket.get(&mut request, |message: Message<'_>| {
        let (header, _) = message.split_header::<IFINFOMSG_LENGTH>()?;
        Ok::<_, Error>(index_at_4(header))
    });
    match index {
        Err(error) if error.refusal().is_some_and(|refusal| refusal.errno == libc::ENODEV) => Ok(None),
        index => index,
    }
}

/// Reports whether a notification concerns a device other than the one with the index `ignored`.
fn concerns_host(message: Message<'_>, ignored: Option<u32>) -> bool {
    message.split_header::<IFADDRMSG_LENGTH>().map_or(true, |(header, _)| Some(index_at_4(header)) != ignored)
}

/// Reads the interface index, which `struct ifaddrmsg` and `struct ifinfomsg` have at offset 4.
fn index_at_4(header: &[u8]) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&header[4..8]);
    u32::from_ne_bytes(bytes)
}

/// Returns the interface index and the address of an `RTM_NEWADDR` message, `None` for other messages and families.
pub(crate) fn parse(message: Message<'_>) -> Result<Option<(u32, IpAddr)>, Error> {
    let (header, attributes) = message.split_header::<IFADDRMSG_LENGTH>()?;
    if message.kind != libc::RTM_NEWADDR || ![libc::AF_INET, libc::AF_INET6].contains(&header[0].into()) {
        return Ok(None);
    }
    let index = index_at_4(header);
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
    /// Whether a change was received and the addresses have not been listed since.
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
        let subscription = AsyncSubscription::open(Protocol::Route, &ADDRESS_GROUPS).map_err(AddressError::Watch)?;
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
                // The subscription of the list may receive the notification later.
                self.kernel.addresses = None;
                let addresses = self.kernel.list()?;
                self.is_stale = false;
                if addresses != self.addresses {
                    self.addresses = addresses;
                    return Ok(&self.addresses);
                }
            }
            let (mut changed, ignored) = (false, self.kernel.service_device);
            let wait = self.subscription.wait(|message| changed |= concerns_host(message, ignored));
            let drained = wait.await.map_err(AddressError::Watch)?;
            self.is_stale = changed || drained == Drained::Overrun;
        }
    }
}

/// The dummy device of ipvs mode. The mode adds the addresses of all Services to it.
pub const SERVICE_DEVICE: &str = "kube-ipvs0";

/// The notifications of changed addresses.
const ADDRESS_GROUPS: [u32; 2] = [libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR];

/// `sizeof(struct ifaddrmsg)`: address family at offset 0, interface index at 4 (`include/uapi/linux/if_addr.h`).
pub(crate) const IFADDRMSG_LENGTH: usize = 8;
