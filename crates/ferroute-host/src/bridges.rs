use ferroute_core::IpFamily;
use ferroute_netlink::{Error, Message, Protocol, Request, Socket};

use crate::{
    devices::DeviceError,
    routes::{IFINFOMSG_LENGTH, parse_link},
};

/// A bridge of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// The index of its device.
    pub index: u32,
    /// The name of its device.
    pub name: String,
    /// Whether it also passes all packets to the host, so that the host forwards packets of a pod to itself.
    pub is_promiscuous: bool,
    /// Ports to pods, which are veth devices.
    pub ports: Vec<BridgePort>,
}

/// A port of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgePort {
    /// The name of its device.
    pub name: String,
    /// Whether the bridge sends packets back to the port from which they came.
    pub hairpin: bool,
}

/// Returns the name of the sysctl, with dots, by which bridged packets of an IP family pass the rules.
pub const fn bridge_nf_call(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "net.bridge.bridge-nf-call-iptables",
        IpFamily::V6 => "net.bridge.bridge-nf-call-ip6tables",
    }
}

/// Returns the bridges in the calling thread's network namespace, sorted by name.
///
/// # Errors
/// If the devices cannot be listed.
pub fn bridges() -> Result<Vec<Bridge>, DeviceError> {
    let mut socket = Socket::open(Protocol::Route).map_err(DeviceError::Open)?;
    let mut request = Request::new(libc::RTM_GETLINK, 0, &[0; IFINFOMSG_LENGTH]);
    let mut links = socket.collect(&mut request, parse).map_err(DeviceError::List)?;
    links.sort_by(|one, other| one.name.cmp(&other.name));
    let bridges = links.iter().filter(|link| link.kind == "bridge").map(|bridge| {
        let ports = links.iter().filter(|link| link.kind == "veth").filter_map(|link| match link.port? {
            (master, hairpin) if master == bridge.index => Some(BridgePort { name: link.name.clone(), hairpin }),
            _ => None,
        });
        let Link { index, name, is_promiscuous, .. } = bridge;
        Bridge { index: *index, name: name.clone(), is_promiscuous: *is_promiscuous, ports: ports.collect() }
    });
    Ok(bridges.collect())
}

struct Link {
    index: u32,
    name: String,
    kind: String,
    is_promiscuous: bool,
    /// The index of the bridge of which it is a port, and whether that sends packets back.
    port: Option<(u32, bool)>,
}

fn parse(message: Message<'_>) -> Result<Option<Link>, Error> {
    let Some((index, name)) = parse_link(message)? else { return Ok(None) };
    let (header, attributes) = message.split_header::<IFINFOMSG_LENGTH>()?;
    let flags = i32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
    let Some(info) = attributes.clone().first(libc::IFLA_LINKINFO)? else { return Ok(None) };
    let text = |kind| Ok::<_, Error>(info.nested().first(kind)?.map(|attribute| attribute.escaped_text().into_owned()));
    let master = attributes.first(libc::IFLA_MASTER)?;
    let port = match (master, info.nested().first(libc::IFLA_INFO_SLAVE_DATA)?) {
        (Some(master), Some(data)) if text(libc::IFLA_INFO_SLAVE_KIND)?.as_deref() == Some("bridge") => {
            let hairpin = data.nested().first(IFLA_BRPORT_MODE)?;
            Some((master.u32_ne()?, hairpin.is_some_and(|hairpin| hairpin.payload != [0])))
        }
        _ => None,
    };
    let kind = text(libc::IFLA_INFO_KIND)?.unwrap_or_default();
    Ok(Some(Link { index, name, kind, is_promiscuous: flags & libc::IFF_PROMISC != 0, port }))
}

/// `include/uapi/linux/if_link.h`.
const IFLA_BRPORT_MODE: u16 = 4;

#[cfg(test)]
mod tests {
    use ferroute_testing::NetNs;

    use super::*;

    #[test]
    fn bridges_have_their_ports_to_pods() {
        let host = NetNs::new();
        let ip = |command: &str| host.command("ip", &command.split(' ').collect::<Vec<_>>());
        for command in [
            "link add cni0 type bridge",
            "link add br1 type bridge",
            "link set br1 promisc on",
            "link add one type veth peer name pod1",
            "link add two type veth peer name pod2",
            "link set one master cni0",
            "link set two master cni0",
            "link set two type bridge_slave hairpin on",
        ] {
            ip(command);
        }
        let bridges = host.run(bridges).unwrap();
        let port = |name: &str, hairpin| BridgePort { name: name.to_owned(), hairpin };
        let found: Vec<_> =
            bridges.iter().map(|bridge| (&*bridge.name, bridge.is_promiscuous, &*bridge.ports)).collect();
        assert_eq!(found, [("br1", true, &[][..]), ("cni0", false, &[port("one", false), port("two", true)][..])]);
    }
}
