use ferroute_netlink::{Error, Protocol, Request, Socket, flags, nfnetlink};

/// An ipset cannot be removed.
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
    SETS.into_iter().flat_map(|set| [format!("KUBE-{set}"), format!("KUBE-6-{set}")]).map(|mut name| {
        // The kernel takes no longer ones; kube-proxy cuts them, too.
        name.truncate(MAX_NAME);
        name
    })
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

// Commands, attributes and errors of `include/uapi/linux/netfilter/ipset/ip_set.h`.
const DESTROY: u8 = 3;
const PROTOCOL: u16 = 1;
const SET_NAME: u16 = 2;
/// Every kernel takes this version; the only newer one adds a command that is not used here.
const PROTOCOL_VERSION: u8 = 6;
/// `IPSET_ERR_BUSY`, one of the subsystem's own numbers.
const IN_USE: i32 = 4100;
/// `IPSET_MAXNAMELEN` without the final zero.
const MAX_NAME: usize = 31;

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
