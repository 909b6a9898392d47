//! The node on which a packet is traced: its desired state, addresses and routes.

use std::{net::IpAddr, sync::Arc};

use ferroute_core::IpFamily;
use ferroute_host::Sysctls;
use ferroute_trace::Host;

use super::{Request, router::KernelRouter, routes};
use crate::desired::Desired;

/// The node on which a packet is traced.
pub struct TraceNode {
    /// The desired state of the node.
    pub desired: Arc<Desired>,
    /// The node's addresses and routes.
    pub host: Host,
    /// Whether the node is this machine, and `host` was read from the kernel.
    pub here: bool,
    /// Whether addresses and routes are unknown, so that `host` is assumed.
    pub(super) is_unknown: bool,
    /// Addresses of the dummy device of ipvs mode in a file.
    pub(super) service_addresses: Vec<IpAddr>,
    /// Whether the kernel forwards packets of each IP family. A trace assumes that it does.
    forwards: [bool; 2],
}

impl TraceNode {
    /// Loads the desired state, and reads addresses and routes if the node is this machine.
    ///
    /// # Errors
    /// If the configuration, the objects or the host cannot be read.
    pub fn load(args: &Request, verbosity: Option<u32>) -> anyhow::Result<Self> {
        if !args.rules.is_empty() {
            return Self::of_files(args, verbosity);
        }
        // The kernel's rules can be traced without Services.
        let mut desired = match args.kernel {
            true => Desired::load_for_host(&args.desired, verbosity)?,
            false => Desired::load(&args.desired, verbosity)?,
        };
        if args.names_source() {
            desired.complete();
        }
        Self::new(Arc::new(desired), args.kernel)
    }

    /// Loads the objects, if any are given, and the addresses and routes of the node whose rules are in files.
    fn of_files(args: &Request, verbosity: Option<u32>) -> anyhow::Result<Self> {
        let has_objects = !args.desired.source.is_empty();
        let desired = match has_objects {
            true => Desired::load(&args.desired, verbosity)?,
            false => Desired::without_objects(&args.desired.settings, verbosity)?,
        };
        let (host, service_addresses) = match &args.routes {
            Some(file) => routes::read(file)?,
            None if has_objects => (desired.host.clone(), Vec::new()),
            None => (routes::unknown_host(), Vec::new()),
        };
        let is_unknown = args.routes.is_none() && !has_objects;
        let desired = Arc::new(desired);
        Ok(Self { desired, host, here: false, is_unknown, service_addresses, forwards: [true; 2] })
    }

    /// Reads addresses and routes if the node is this machine, which is always the case for rules in the kernel.
    ///
    /// # Errors
    /// If the host cannot be read.
    pub fn new(desired: Arc<Desired>, kernel: bool) -> anyhow::Result<Self> {
        let here = kernel || desired.is_this_host;
        let host = if here { kernel_host()? } else { desired.host.clone() };
        let forwards =
            FORWARDING.map(|name| !here || Sysctls::from_kernel().read(name).is_ok_and(|value| value != "0"));
        Ok(Self { desired, host, here, is_unknown: false, service_addresses: Vec::new(), forwards })
    }

    /// Returns the sysctl that disables forwarding of packets of a family.
    pub(super) fn disabled_forwarding(&self, family: IpFamily) -> Option<&'static str> {
        (!self.forwards[family.index()]).then(|| FORWARDING[family.index()])
    }
}

/// Reads the addresses and routes of this machine.
///
/// # Errors
/// If the kernel returns an error.
pub(crate) fn kernel_host() -> anyhow::Result<Host> {
    let router = KernelRouter::open()?;
    let route_localnet = Sysctls::from_kernel().read("net/ipv4/conf/all/route_localnet")? == "1";
    Ok(Host { addresses: router.addresses(), route_localnet, router: Some(Arc::new(router)), ..Host::default() })
}

/// The sysctls for forwarding.
const FORWARDING: [&str; 2] = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"];
