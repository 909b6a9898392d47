use std::net::IpAddr;

use ferroute_netlink::{AsyncSubscription, Protocol};

use crate::{AddressError, HostAddresses, KernelAddresses};

/// Knows the host's addresses and wakes when they change.
#[derive(Debug)]
pub struct AddressWatch {
    news: AsyncSubscription,
    kernel: KernelAddresses,
    addresses: Vec<IpAddr>,
    /// News was heard but the addresses could not be listed since.
    is_stale: bool,
}

impl AddressWatch {
    /// Watches those of the calling thread's network namespace.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime that has I/O enabled.
    pub fn open() -> Result<Self, AddressError> {
        // Listen first, then look: what changes in between is heard.
        let groups = [libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR];
        let news = AsyncSubscription::open(Protocol::Route, &groups).map_err(AddressError::Listen)?;
        let mut kernel = KernelAddresses::open()?;
        let addresses = kernel.list()?;
        Ok(Self { news, kernel, addresses, is_stale: false })
    }

    /// The addresses as of the last look, as [`HostAddresses::list`] returns them.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Waits until the addresses are others than [`AddressWatch::addresses`] tells, and returns the new ones. News that
    /// changes none of them, such as a prolonged lifetime, wakes nobody.
    ///
    /// May be cancelled and called again. After an error the next call looks at once, so leave some time in between.
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
            self.news.wait(|_| ()).await.map_err(AddressError::Listen)?;
            self.is_stale = true;
        }
    }
}
