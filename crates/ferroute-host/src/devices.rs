use ferroute_netlink::{Drained, Error, Protocol, Request, Socket, Subscription};

use crate::routes::{IFINFOMSG_LENGTH, parse_link};

/// An error of the host's list of devices.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No netlink socket could be opened.
    #[error("cannot open a netlink socket for network devices")]
    Open(#[source] Error),
    /// The devices could not be listed. Worth a retry.
    #[error("cannot list the host's network devices")]
    List(#[source] Error),
    /// Changes of devices could not be received.
    #[error("cannot watch the host's network devices")]
    Watch(#[source] Error),
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The name, unique at a time.
    pub name: Box<str>,
    /// Index. If a device replaces another one with the same name, its index is different.
    pub index: u32,
}

/// Lists the host's network devices.
pub trait HostDevices: Send {
    /// Returns all devices, sorted by name.
    ///
    /// # Errors
    /// If they cannot be read.
    fn list(&mut self) -> Result<Vec<Device>, DeviceError>;
}

/// The kernel's devices of a network namespace. They are read again only after a change.
#[derive(Debug)]
pub struct KernelDevices {
    socket: Socket,
    subscription: Subscription,
    /// Devices; `None` if they must be read.
    devices: Option<Vec<Device>>,
}

impl KernelDevices {
    /// Opens sockets in the calling thread's network namespace.
    ///
    /// # Errors
    /// If they cannot be opened.
    pub fn open() -> Result<Self, DeviceError> {
        // Subscribe before listing, so that no change is lost in between.
        let subscription = Subscription::open(Protocol::Route, &[libc::RTNLGRP_LINK]).map_err(DeviceError::Watch)?;
        let socket = Socket::open(Protocol::Route).map_err(DeviceError::Open)?;
        Ok(Self { socket, subscription, devices: None })
    }
}

impl HostDevices for KernelDevices {
    fn list(&mut self) -> Result<Vec<Device>, DeviceError> {
        let mut changed = false;
        let drained = self.subscription.drain(|_| changed = true);
        if changed || drained.map_err(DeviceError::Watch)? == Drained::Overrun {
            self.devices = None;
        }
        if let Some(devices) = &self.devices {
            return Ok(devices.clone());
        }
        let mut request = Request::new(libc::RTM_GETLINK, 0, &[0; IFINFOMSG_LENGTH]);
        let links = self.socket.collect(&mut request, parse_link).map_err(DeviceError::List)?;
        // A device whose name is not text cannot be added to a flowtable by its name.
        let named = links.into_iter().filter(|(_, name)| !name.contains('\\'));
        let mut devices: Vec<Device> = named.map(|(index, name)| Device { name: name.into(), index }).collect();
        devices.sort_unstable();
        self.devices = Some(devices.clone());
        Ok(devices)
    }
}
