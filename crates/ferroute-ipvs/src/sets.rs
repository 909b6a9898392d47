use std::net::IpAddr;

use ferroute_netlink::{Error, Protocol, Request, Socket, Writer, flags, nfnetlink};

use crate::VirtualServer;

/// A failure to test or destroy an ipset.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The netlink socket cannot be opened.
    #[error("cannot open a netlink socket for ipsets")]
    Open(#[source] Error),
    /// A rule refers to the set. Retrying may succeed: the kernel releases a set shortly after its last rule is deleted.
    #[error("cannot destroy ipset {name}: a rule refers to it")]
    InUse {
        /// The set.
        name: String,
    },
    /// The set cannot be tested for a member.
    #[error("cannot test ipset {name} for virtual server {server}")]
    Test {
        /// The set.
        name: String,
        /// The virtual server whose member was tested.
        server: VirtualServer,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The set cannot be destroyed.
    #[error("cannot destroy ipset {name}")]
    Destroy {
        /// The set.
        name: String,
        /// The cause.
        #[source]
        source: Error,
    },
}

/// Access to the ipsets of a network namespace.
#[derive(Debug)]
pub struct IpSets {
    socket: Socket,
}

impl IpSets {
    /// Opens a netlink socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, SetError> {
        Socket::open(Protocol::Netfilter).map(|socket| Self { socket }).map_err(SetError::Open)
    }

    /// Reports whether a set of kube-proxy contains the address and port, as for the virtual servers of each Service.
    pub fn has_service(&mut self, server: VirtualServer) -> Result<bool, SetError> {
        self.contains(&SERVICE_SETS, server, write_address_and_port)
    }

    /// Reports whether a set of kube-proxy contains the port, independent of the address, as for TCP and UDP node ports.
    /// For SCTP node ports, sets contain address and port.
    pub fn has_node_port(&mut self, server: VirtualServer) -> Result<bool, SetError> {
        let set = match i32::from(server.protocol) {
            libc::IPPROTO_TCP => NODE_PORT_SET_TCP,
            libc::IPPROTO_UDP => NODE_PORT_SET_UDP,
            _ => return Ok(false),
        };
        self.contains(&[set], server, write_port)
    }

    /// Reports whether one of the sets contains a member. A missing set contains none.
    fn contains(&mut self, sets: &[&str], server: VirtualServer, write: WriteMember) -> Result<bool, SetError> {
        for set in sets {
            let name = set_name(set, server.address.is_ipv6());
            match self.socket.request_ack(&mut test(&name, server, write)) {
                Ok(()) => return Ok(true),
                Err(error) if error.is_not_found() || nfnetlink::is_subsystem_missing(&error) => {}
                Err(error) if error.refusal().is_some_and(|refusal| refusal.errno == IPSET_ERR_EXIST) => {}
                Err(source) => return Err(SetError::Test { name, server, source }),
            }
        }
        Ok(false)
    }

    /// Destroys a set with its members. Returns false if it does not exist or the kernel does not support ipsets.
    pub fn destroy(&mut self, name: &str) -> Result<bool, SetError> {
        match self.socket.request_ack(&mut destroy(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() || nfnetlink::is_subsystem_missing(&error) => Ok(false),
            Err(error) if error.refusal().is_some_and(|refusal| refusal.errno == IPSET_ERR_BUSY) => {
                Err(SetError::InUse { name: name.to_owned() })
            }
            Err(source) => Err(SetError::Destroy { name: name.to_owned(), source }),
        }
    }
}

/// Returns the names of kube-proxy's ipsets, of both families.
pub fn kube_proxy_set_names() -> impl Iterator<Item = String> {
    SET_SUFFIXES.into_iter().flat_map(|set| [set_name(set, false), set_name(set, true)])
}

fn set_name(set: &str, is_ipv6: bool) -> String {
    let mut name = format!("{}{set}", if is_ipv6 { "KUBE-6-" } else { "KUBE-" });
    // The kernel's limit; kube-proxy truncates longer names, too.
    name.truncate(MAX_NAME_LEN);
    name
}

/// Writes the member that a set contains for a virtual server.
type WriteMember = fn(&mut Writer<'_>, VirtualServer);

fn test(name: &str, server: VirtualServer, write: WriteMember) -> Request {
    let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_IPSET, IPSET_CMD_TEST);
    let mut request = Request::new(kind, 0, &nfnetlink::header(libc::AF_UNSPEC as u8, 0, 0));
    let mut attributes = request.attributes();
    attributes.put_u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
    attributes.put_str(IPSET_ATTR_SETNAME, name);
    write(&mut attributes.nest(IPSET_ATTR_DATA), server);
    drop(attributes);
    request
}

fn write_address_and_port(member: &mut Writer<'_>, server: VirtualServer) {
    let address = server.address.ip();
    let kind = match address {
        IpAddr::V4(_) => IPSET_ATTR_IPADDR_IPV4,
        IpAddr::V6(_) => IPSET_ATTR_IPADDR_IPV6,
    };
    member.nest(IPSET_ATTR_IP).put_ip(kind | NET_BYTEORDER, address);
    // The protocols of all virtual servers fit into a byte.
    member.put_u8(IPSET_ATTR_PROTO, server.protocol.try_into().unwrap_or(u8::MAX));
    write_port(member, server);
}

fn write_port(member: &mut Writer<'_>, server: VirtualServer) {
    member.put_u16_be(IPSET_ATTR_PORT | NET_BYTEORDER, server.address.port());
}

fn destroy(name: &str) -> Request {
    let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_IPSET, IPSET_CMD_DESTROY);
    // Without the flag newer kernels ignore a missing set.
    let mut request = Request::new(kind, flags::NLM_F_EXCL, &nfnetlink::header(libc::AF_UNSPEC as u8, 0, 0));
    let mut attributes = request.attributes();
    attributes.put_u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
    attributes.put_str(IPSET_ATTR_SETNAME, name);
    drop(attributes);
    request
}

/// Names without prefix of the sets of ipvs mode, in kube-proxy 1.36 and earlier
/// (<https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/proxy/ipvs/ipset.go>).
const SET_SUFFIXES: [&str; 20] = [
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

/// The sets of type `hash:ip,port` whose members have a virtual server.
const SERVICE_SETS: [&str; 5] =
    ["CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "NODE-PORT-SCTP-HASH"];
/// The sets of type `bitmap:port`, whose members are ports of one protocol.
const NODE_PORT_SET_TCP: &str = "NODE-PORT-TCP";
const NODE_PORT_SET_UDP: &str = "NODE-PORT-UDP";

// `include/uapi/linux/netfilter/ipset/ip_set.h`: commands, attributes and errors. The headers of libc do not have them.
const IPSET_CMD_DESTROY: u8 = 3;
const IPSET_CMD_TEST: u8 = 11;
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_DATA: u16 = 7;
// Attributes within `IPSET_ATTR_DATA`.
const IPSET_ATTR_IP: u16 = 1;
const IPSET_ATTR_PORT: u16 = 4;
const IPSET_ATTR_PROTO: u16 = 7;
// Attributes within `IPSET_ATTR_IP`.
const IPSET_ATTR_IPADDR_IPV4: u16 = 1;
const IPSET_ATTR_IPADDR_IPV6: u16 = 2;
/// Version 6 of the protocol, which every kernel supports; version 7 only adds commands that are not used here.
const IPSET_PROTOCOL_MIN: u8 = 6;
const IPSET_ERR_BUSY: i32 = 4100;
const IPSET_ERR_EXIST: i32 = 4103;
/// Length of `IPSET_MAXNAMELEN` without the terminating zero.
const MAX_NAME_LEN: usize = 31;
/// The flag that ipset requires on numbers in attributes.
const NET_BYTEORDER: u16 = libc::NLA_F_NET_BYTEORDER as u16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_names_of_both_families_have_at_most_the_kernels_length() {
        let names: Vec<String> = kube_proxy_set_names().collect();
        for known in ["KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR"] {
            assert!(names.iter().any(|name| name == known), "{known}");
        }
        // As kube-proxy logs them.
        for cut in ["KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"] {
            assert!(names.iter().any(|name| name == cut), "{cut}");
        }
        assert!(names.iter().all(|name| name.len() <= MAX_NAME_LEN && name.starts_with("KUBE-")));
    }
}
