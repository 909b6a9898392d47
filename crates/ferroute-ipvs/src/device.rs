use std::net::IpAddr;

use ferroute_host::{Ensured, SysctlError, Sysctls};
use ferroute_netlink::{Batch, Error, Message, Protocol, Refusals, Request, Socket, flags};

use crate::DUMMY_KIND;

/// A failure to read or delete a network device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The netlink socket cannot be opened.
    #[error("cannot open a netlink socket for devices")]
    Open(#[source] Error),
    /// The device cannot be read.
    #[error("cannot read device {name}")]
    Read {
        /// The device.
        name: String,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The device's addresses cannot be listed.
    #[error("cannot list the addresses of device {name}")]
    Addresses {
        /// The device.
        name: String,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The device cannot be created.
    #[error("cannot create device {name}")]
    Create {
        /// The device.
        name: String,
        /// The cause.
        #[source]
        source: Error,
    },
    /// A device of another kind has the name.
    #[error("cannot use device {name} (got kind {kind}, want dummy)")]
    OtherKind {
        /// The device.
        name: String,
        /// Kind.
        kind: String,
    },
    /// The device's alias cannot be set.
    #[error("cannot set the alias of device {name}")]
    Alias {
        /// The device.
        name: String,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The device cannot be deleted.
    #[error("cannot delete device {name}")]
    Delete {
        /// The device.
        name: String,
        /// The cause.
        #[source]
        source: Error,
    },
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The name.
    pub name: String,
    /// The kind of virtual device; `None` for hardware.
    pub kind: Option<String>,
    /// Text that the administrator or another program attached to the device (`ip link set … alias`).
    pub alias: Option<String>,
    /// The interface index.
    index: u32,
}

/// Access to the devices of a network namespace.
#[derive(Debug)]
pub struct Devices {
    socket: Socket,
}

impl Devices {
    /// Opens a netlink socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, DeviceError> {
        Socket::open(Protocol::Route).map(|socket| Self { socket }).map_err(DeviceError::Open)
    }

    /// Returns the device with this name, if it exists.
    pub fn find(&mut self, name: &str) -> Result<Option<Device>, DeviceError> {
        let mut request = Request::new(libc::RTM_GETLINK, 0, &[0; LINK_HEADER]);
        request.attributes().put_str(libc::IFLA_IFNAME, name);
        match self.socket.get(&mut request, |message| parse_device(message, name)) {
            Err(error) if error.refusal().is_some_and(|refusal| refusal.errno == libc::ENODEV) => Ok(None),
            result => result.map_err(|source| DeviceError::Read { name: name.to_owned(), source }),
        }
    }

    /// Returns the dummy device with this name, and creates it if necessary. Like kube-proxy's, it stays down: its addresses
    /// are local nevertheless.
    pub fn ensure_dummy(&mut self, name: &str) -> Result<Device, DeviceError> {
        if let Some(device) = self.find(name)? {
            return match device.kind.as_deref() {
                Some(DUMMY_KIND) => Ok(device),
                kind => {
                    Err(DeviceError::OtherKind { name: name.to_owned(), kind: kind.unwrap_or("hardware").to_owned() })
                }
            };
        }
        let mut request = Request::new(libc::RTM_NEWLINK, flags::NLM_F_CREATE | flags::NLM_F_EXCL, &[0; LINK_HEADER]);
        let mut attributes = request.attributes();
        attributes.put_str(libc::IFLA_IFNAME, name);
        attributes.nest(libc::IFLA_LINKINFO).put_str(libc::IFLA_INFO_KIND, DUMMY_KIND);
        drop(attributes);
        let failed = |source| DeviceError::Create { name: name.to_owned(), source };
        match self.socket.request_ack(&mut request) {
            // Another dataplane was faster.
            Err(error) if error.is_exists() => {}
            result => result.map_err(failed)?,
        }
        let missing = Error::Unanswered { kind: libc::RTM_NEWLINK };
        self.find(name)?.ok_or_else(|| failed(missing))
    }

    /// Permits IPv6 addresses on a device. Another program, or the default for new devices, may have disabled them.
    pub fn enable_ipv6(&self, device: &Device) -> Result<(), SysctlError> {
        let name = format!("net/ipv6/conf/{}/disable_ipv6", device.name);
        match Sysctls::from_kernel().ensure(&name, "0") {
            Ok(Ensured::Changed { .. }) => {
                tracing::info!("set {name} to 0 for IPv6 addresses of Services");
                Ok(())
            }
            // The kernel does not support IPv6, and there is nothing to enable.
            Ok(Ensured::Unchanged) | Err(SysctlError::Missing { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Appends the message that adds an address to a device, or deletes it.
    pub(crate) fn encode(batch: &mut Batch, added: bool, device: &Device, address: IpAddr) {
        let (family, length) = if address.is_ipv4() { (libc::AF_INET, 32) } else { (libc::AF_INET6, 128) };
        let mut header = [0; ADDRESS_HEADER];
        (header[0], header[1]) = (family as u8, length);
        header[ADDRESS_DEVICE..].copy_from_slice(&device.index.to_ne_bytes());
        let mut message = match added {
            true => batch.message(libc::RTM_NEWADDR, flags::NLM_F_CREATE | flags::NLM_F_EXCL, &header),
            false => batch.message(libc::RTM_DELADDR, 0, &header),
        };
        message.put_ip(libc::IFA_LOCAL, address);
        message.put_ip(libc::IFA_ADDRESS, address);
        if added && address.is_ipv6() {
            // No other host has the address, and it must be usable at once.
            message.put_u32_ne(libc::IFA_FLAGS, libc::IFA_F_NODAD);
        }
    }

    /// Sends encoded changes.
    pub(crate) fn send(&mut self, batch: &mut Batch) -> Result<Refusals, Error> {
        self.socket.send_batch(batch)
    }

    /// Returns the addresses of a device, of both families.
    pub fn addresses(&mut self, device: &Device) -> Result<Vec<IpAddr>, DeviceError> {
        let mut request = Request::new(libc::RTM_GETADDR, 0, &[0; ADDRESS_HEADER]);
        self.socket
            .collect(&mut request, |message| parse_address(message, device.index))
            .map_err(|source| DeviceError::Addresses { name: device.name.clone(), source })
    }

    /// Sets the alias of a device; an empty one deletes it.
    pub fn set_alias(&mut self, device: &Device, alias: &str) -> Result<(), DeviceError> {
        let mut request = Request::new(libc::RTM_SETLINK, 0, &device.header());
        // The kernel takes a terminating zero byte for a part of the text.
        request.attributes().put_bytes(libc::IFLA_IFALIAS, alias.as_bytes());
        self.socket.request_ack(&mut request).map_err(|source| DeviceError::Alias { name: device.name.clone(), source })
    }

    /// Adds a text to the alias of a device, unless it has it. Another program's text stays if there is room for both.
    pub fn add_to_alias(&mut self, device: &Device, text: &str) -> Result<(), DeviceError> {
        match &device.alias {
            Some(alias) if alias.contains(text) => Ok(()),
            Some(alias) if !alias.is_empty() && alias.len() + ALIAS_SEPARATOR.len() + text.len() <= MAX_ALIAS => {
                self.set_alias(device, &format!("{alias}{ALIAS_SEPARATOR}{text}"))
            }
            _ => self.set_alias(device, text),
        }
    }

    /// Deletes a device with its addresses.
    pub fn delete(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.socket
            .request_ack(&mut Request::new(libc::RTM_DELLINK, 0, &device.header()))
            .map_err(|source| DeviceError::Delete { name: device.name.clone(), source })
    }
}

impl Device {
    /// Returns the header of messages about the device.
    fn header(&self) -> [u8; LINK_HEADER] {
        let mut header = [0; LINK_HEADER];
        header[LINK_INDEX..LINK_INDEX + 4].copy_from_slice(&self.index.to_ne_bytes());
        header
    }
}

pub(crate) fn parse_device(message: Message<'_>, name: &str) -> Result<Device, Error> {
    let (header, attributes) = message.split_header::<LINK_HEADER>()?;
    let mut device = Device { name: name.to_owned(), kind: None, alias: None, index: number_at(header, LINK_INDEX) };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::IFLA_IFALIAS => device.alias = Some(attribute.escaped_text().into_owned()),
            libc::IFLA_LINKINFO => {
                let kind = attribute.nested().first(libc::IFLA_INFO_KIND)?;
                device.kind = kind.map(|kind| kind.escaped_text().into_owned());
            }
            _ => {}
        }
    }
    Ok(device)
}

/// Parses an address; `None` if it belongs to another device.
pub(crate) fn parse_address(message: Message<'_>, device: u32) -> Result<Option<IpAddr>, Error> {
    let (header, attributes) = message.split_header::<ADDRESS_HEADER>()?;
    if number_at(header, ADDRESS_DEVICE) != device {
        return Ok(None);
    }
    let mut address = None;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::IFA_LOCAL => address = Some(attribute.ip()?),
            libc::IFA_ADDRESS if address.is_none() => address = Some(attribute.ip()?),
            _ => {}
        }
    }
    Ok(address)
}

fn number_at(header: &[u8], offset: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&header[offset..offset + 4]);
    u32::from_ne_bytes(bytes)
}

/// The text between two in an alias.
pub const ALIAS_SEPARATOR: &str = "; ";
/// The kernel's limit of an alias, in bytes.
const MAX_ALIAS: usize = 255;

/// Bytes of `struct ifinfomsg` (`include/uapi/linux/rtnetlink.h`), and the offset of `ifi_index`.
pub(crate) const LINK_HEADER: usize = 16;
const LINK_INDEX: usize = 4;
/// Bytes of `struct ifaddrmsg` (`include/uapi/linux/if_addr.h`), and the offset of `ifa_index`.
const ADDRESS_HEADER: usize = 8;
const ADDRESS_DEVICE: usize = 4;
