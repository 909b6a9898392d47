use std::net::IpAddr;

use ferroute_netlink::{Error, Protocol, Request, Socket, Writer, flags, nfnetlink};

use crate::VirtualServer;

/// An ipset cannot be looked into or removed.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// There is no way to ask for it.
    #[error("cannot ask the kernel for ipsets")]
    Open(#[source] Error),
    /// A rule looks into it. Worth another try: the kernel lets go of a set a moment after the last rule is gone.
    #[error("ipset {name} stays: a rule looks into it")]
    InUse {
        /// The set.
        name: String,
    },
    /// The kernel does not tell what is in it.
    #[error("cannot look for virtual server {server} in ipset {name}")]
    Look {
        /// The set.
        name: String,
        /// What was looked for.
        server: VirtualServer,
        /// The kernel's answer.
        #[source]
        source: Error,
    },
    /// The kernel does not remove it.
    #[error("cannot remove ipset {name}")]
    Remove {
        /// The set.
        name: String,
        /// The kernel's answer.
        #[source]
        source: Error,
    },
}

/// The ipsets of a network namespace.
#[derive(Debug)]
pub struct IpSets {
    socket: Socket,
}

impl IpSets {
    /// Those of the calling thread's network namespace.
    pub fn open() -> Result<Self, SetError> {
        Socket::open(Protocol::Netfilter).map(|socket| Self { socket }).map_err(SetError::Open)
    }

    /// Whether kube-proxy's sets name this address and port, as they do for each Service's virtual servers.
    pub fn name_service(&mut self, server: VirtualServer) -> Result<bool, SetError> {
        self.any(&SERVICES, server, write_address_and_port)
    }

    /// Whether kube-proxy's sets name this port, at whichever address, as they do for node ports of TCP and UDP. Those of
    /// SCTP are named as Services are.
    pub fn name_node_port(&mut self, server: VirtualServer) -> Result<bool, SetError> {
        let set = match i32::from(server.protocol) {
            libc::IPPROTO_TCP => NODE_PORTS_TCP,
            libc::IPPROTO_UDP => NODE_PORTS_UDP,
            _ => return Ok(false),
        };
        self.any(&[set], server, write_port)
    }

    /// A set that is not there holds nothing.
    fn any(&mut self, sets: &[&str], server: VirtualServer, write: WriteElement) -> Result<bool, SetError> {
        for set in sets {
            let name = name_of(set, server.address.is_ipv6());
            match self.socket.request_ack(&mut test(&name, server, write)) {
                Ok(()) => return Ok(true),
                Err(error) if error.is_not_found() || nfnetlink::is_subsystem_missing(&error) => {}
                Err(error) if error.refusal().is_some_and(|refusal| refusal.errno == NOT_IN_IT) => {}
                Err(source) => return Err(SetError::Look { name, server, source }),
            }
        }
        Ok(false)
    }

    /// Removes a set with all its elements, and tells whether it was there. Where the kernel has no ipsets, there is
    /// none.
    pub fn remove(&mut self, name: &str) -> Result<bool, SetError> {
        match self.socket.request_ack(&mut destroy(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() || nfnetlink::is_subsystem_missing(&error) => Ok(false),
            Err(error) if error.refusal().is_some_and(|refusal| refusal.errno == IN_USE) => {
                Err(SetError::InUse { name: name.to_owned() })
            }
            Err(source) => Err(SetError::Remove { name: name.to_owned(), source }),
        }
    }
}

/// The names of kube-proxy's ipsets, for both families.
pub fn kube_proxy_sets() -> impl Iterator<Item = String> {
    SETS.into_iter().flat_map(|set| [name_of(set, false), name_of(set, true)])
}

fn name_of(set: &str, is_ipv6: bool) -> String {
    let mut name = format!("{}{set}", if is_ipv6 { "KUBE-6-" } else { "KUBE-" });
    // The kernel takes no longer ones; kube-proxy cuts them, too.
    name.truncate(MAX_NAME);
    name
}

/// Writes what a set would hold for a virtual server.
type WriteElement = fn(&mut Writer<'_>, VirtualServer);

fn test(name: &str, server: VirtualServer, write: WriteElement) -> Request {
    let kind = nfnetlink::kind(nfnetlink::IPSET, TEST);
    let mut request = Request::new(kind, 0, &nfnetlink::header(libc::AF_UNSPEC as u8, 0, 0));
    let mut attributes = request.attributes();
    attributes.put_u8(PROTOCOL, PROTOCOL_VERSION);
    attributes.put_str(SET_NAME, name);
    write(&mut attributes.nest(DATA), server);
    drop(attributes);
    request
}

fn write_address_and_port(element: &mut Writer<'_>, server: VirtualServer) {
    let address = server.address.ip();
    let kind = match address {
        IpAddr::V4(_) => element::IPV4,
        IpAddr::V6(_) => element::IPV6,
    };
    element.nest(element::ADDRESS).put_ip(kind | BIG_ENDIAN, address);
    // The kernel knows of none that does not fit.
    element.put_u8(element::PROTOCOL, server.protocol.try_into().unwrap_or(u8::MAX));
    write_port(element, server);
}

fn write_port(element: &mut Writer<'_>, server: VirtualServer) {
    element.put_u16_be(element::PORT | BIG_ENDIAN, server.address.port());
}

fn destroy(name: &str) -> Request {
    let kind = nfnetlink::kind(nfnetlink::IPSET, DESTROY);
    // Without the flag newer kernels take it for done when there is no such set.
    let mut request = Request::new(kind, flags::EXCLUSIVE, &nfnetlink::header(libc::AF_UNSPEC as u8, 0, 0));
    let mut attributes = request.attributes();
    attributes.put_u8(PROTOCOL, PROTOCOL_VERSION);
    attributes.put_str(SET_NAME, name);
    drop(attributes);
    request
}

/// Names of ipvs mode's sets without their prefix, of kube-proxy 1.36 and earlier ones
/// (<https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/proxy/ipvs/ipset.go>).
const SETS: [&str; 20] = [
    "LOOP-BACK",
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "LOAD-BALANCER",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-MASQ",
    "LOAD-BALANCER-SOURCE-IP",
    "LOAD-BALANCER-SOURCE-CIDR",
    "NODE-PORT-TCP",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-UDP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP",
    "NODE-PORT-LOCAL-SCTP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "HEALTH-CHECK-NODE-PORT",
    "IPVS-IPS",
];

/// The sets of type `hash:ip,port` that name what has a virtual server.
const SERVICES: [&str; 5] = ["CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "NODE-PORT-SCTP-HASH"];
/// Sets of type `bitmap:port`, which name ports of one protocol.
const NODE_PORTS_TCP: &str = "NODE-PORT-TCP";
const NODE_PORTS_UDP: &str = "NODE-PORT-UDP";

// Commands, attributes and errors of `include/uapi/linux/netfilter/ipset/ip_set.h`.
const DESTROY: u8 = 3;
const TEST: u8 = 11;
const PROTOCOL: u16 = 1;
const SET_NAME: u16 = 2;
const DATA: u16 = 7;
/// The subsystem takes no number without this word on its byte order.
const BIG_ENDIAN: u16 = libc::NLA_F_NET_BYTEORDER as u16;
/// Every kernel takes this version; the only newer one adds a command that is not used here.
const PROTOCOL_VERSION: u8 = 6;
/// `IPSET_ERR_BUSY`, one of the subsystem's own numbers.
const IN_USE: i32 = 4100;
/// `IPSET_ERR_EXIST`.
const NOT_IN_IT: i32 = 4103;
/// `IPSET_MAXNAMELEN` without the final zero.
const MAX_NAME: usize = 31;

/// Attributes within [`DATA`].
mod element {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const PORT: u16 = 4;
    pub(super) const PROTOCOL: u16 = 7;
    /// Within [`ADDRESS`].
    pub(super) const IPV4: u16 = 1;
    /// Within [`ADDRESS`].
    pub(super) const IPV6: u16 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_families_fit_into_the_kernels_field() {
        let names: Vec<String> = kube_proxy_sets().collect();
        for known in ["KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR"] {
            assert!(names.iter().any(|name| name == known), "{known}");
        }
        // As kube-proxy's log tells them.
        for cut in ["KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"] {
            assert!(names.iter().any(|name| name == cut), "{cut}");
        }
        assert!(names.iter().all(|name| name.len() <= MAX_NAME && name.starts_with("KUBE-")));
    }
}
