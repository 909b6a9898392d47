use std::net::IpAddr;

use ferroute_core::{IpFamily, error_chain};
use ferroute_host::{KernelRoutes, RouteError, SysctlError};
use ferroute_netlink::{Batch, Error, Refusal, Refusals, ipset};

use super::{Kernel, KernelRealServer, KernelServer, KernelState, Operation, Refused};
use crate::{
    DUMMY_DEVICE, DUMMY_KIND, Device, DeviceError, Devices, IpSets, ServerError, SetError, Timeouts, VirtualServers,
    plan::{ServerKey, SetKind},
};

/// The kernel of a network namespace.
#[derive(Debug)]
pub struct NetlinkKernel {
    family: IpFamily,
    scheduler: Box<str>,
    servers: VirtualServers,
    sets: IpSets,
    devices: Devices,
    routes: KernelRoutes,
    /// Dummy device, once its index is known.
    device: Option<Device>,
    /// A text that the device's alias must contain.
    alias: Option<String>,
    timeouts: Timeouts,
    /// Whether the device is known to accept IPv6 addresses.
    is_ipv6_enabled: bool,
    /// Encoded changes of [`NetlinkKernel::pending`].
    batch: Batch,
    /// Changes that have not been sent, all of one subsystem.
    pending: Vec<Operation>,
    refused: Vec<Refused<KernelError>>,
}

/// An error of the kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Error of virtual servers.
    #[error(transparent)]
    Servers(#[from] ServerError),
    /// Error of ipsets.
    #[error(transparent)]
    Sets(#[from] SetError),
    /// Error of the dummy device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// IPv6 addresses are not permitted on the device.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// Error of routes.
    #[error(transparent)]
    Routes(#[from] RouteError),
    /// The kernel does not support ipvs.
    #[error("the kernel does not support ipvs (module ip_vs)")]
    Unsupported,
    /// Changes could not be sent.
    #[error("cannot change {objects}")]
    Send {
        /// The kind of objects.
        objects: &'static str,
        /// The cause.
        #[source]
        source: Error,
    },
    /// A change was refused.
    #[error("cannot run `{change}`{}", hint(.source))]
    Refused {
        /// The change, in the syntax of the tool for it.
        change: String,
        /// The cause.
        #[source]
        source: Refusal,
    },
}

/// A part of the kernel with a separate netlink protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subsystem {
    Sets,
    Servers,
    Addresses,
}

impl Subsystem {
    fn of(operation: &Operation) -> Self {
        match operation {
            Operation::AddEntry(..) | Operation::DeleteEntry(..) => Self::Sets,
            Operation::Bind(_) | Operation::Unbind(_) => Self::Addresses,
            _ => Self::Servers,
        }
    }

    fn objects(self) -> &'static str {
        match self {
            Self::Sets => "ipsets",
            Self::Servers => "virtual servers",
            Self::Addresses => "the addresses of device kube-ipvs0",
        }
    }
}

impl NetlinkKernel {
    /// Opens the interfaces to the calling thread's network namespace. Loads the kernel's module if necessary.
    ///
    /// # Errors
    /// If the kernel does not support ipvs or ipsets.
    pub fn open(family: IpFamily, scheduler: &str) -> Result<Self, KernelError> {
        Ok(Self {
            family,
            scheduler: scheduler.into(),
            servers: VirtualServers::open()?.ok_or(KernelError::Unsupported)?,
            sets: IpSets::open()?,
            devices: Devices::open()?,
            routes: KernelRoutes::open()?,
            device: None,
            alias: None,
            timeouts: Timeouts::default(),
            is_ipv6_enabled: false,
            batch: Batch::new(),
            pending: Vec::new(),
            refused: Vec::new(),
        })
    }

    /// Sets a text that the alias of the dummy device must contain, also after another program has deleted the device.
    #[must_use]
    pub fn with_alias(self, alias: Option<String>) -> Self {
        Self { alias, ..self }
    }

    /// Sets the timeouts of connections.
    #[must_use]
    pub fn with_timeouts(self, timeouts: Timeouts) -> Self {
        Self { timeouts, ..self }
    }

    fn device(&mut self) -> Result<Device, KernelError> {
        match &self.device {
            Some(device) => Ok(device.clone()),
            None => {
                let device = self.devices.ensure_dummy(DUMMY_DEVICE)?;
                self.device = Some(device.clone());
                Ok(device)
            }
        }
    }

    fn send(&mut self) -> Result<(), KernelError> {
        let Some(subsystem) = self.pending.first().map(Subsystem::of) else { return Ok(()) };
        let sent = match subsystem {
            Subsystem::Sets => self.sets.send(&mut self.batch),
            Subsystem::Servers => self.servers.send(&mut self.batch),
            Subsystem::Addresses => self.devices.send(&mut self.batch),
        };
        let pending = std::mem::take(&mut self.pending);
        self.batch.clear();
        let refusals: Refusals = sent.map_err(|source| KernelError::Send { objects: subsystem.objects(), source })?;
        if refusals.is_overrun() {
            return Err(KernelError::Send { objects: subsystem.objects(), source: Error::Overrun });
        }
        for refusal in refusals.as_slice() {
            let Some(operation) = pending.get(refusal.index).copied() else { continue };
            if is_harmless(&operation, refusal) {
                continue;
            }
            let change = operation.describe(self.family, &self.scheduler);
            let error = KernelError::Refused { change, source: refusal.clone() };
            tracing::debug!(family = %self.family, error = error_chain(&error), "refused change");
            self.refused.push(Refused { operation, error });
        }
        self.pending = pending;
        self.pending.clear();
        Ok(())
    }
}

impl Kernel for NetlinkKernel {
    type Error = KernelError;

    fn prepare(&mut self) -> Result<(), KernelError> {
        // Another program may have deleted and recreated it.
        self.device = None;
        self.is_ipv6_enabled = false;
        let device = self.device()?;
        if let Some(alias) = &self.alias {
            self.devices.add_to_alias(&device, alias)?;
        }
        SetKind::ALL.into_iter().try_for_each(|kind| self.sets.create(kind, self.family))?;
        if !self.timeouts.is_empty() {
            self.servers.set_timeouts(self.timeouts)?;
        }
        Ok(())
    }

    fn reserve(&mut self, kind: SetKind, entries: usize) -> Result<(), KernelError> {
        self.send()?;
        Ok(self.sets.reserve(kind, self.family, entries)?)
    }

    fn read(&mut self, is_wanted: &dyn Fn(&ServerKey) -> bool) -> Result<KernelState, KernelError> {
        let Self { family, servers, sets, devices, routes, timeouts, .. } = self;
        let has_other_timeouts = !timeouts.is_empty() && !servers.has_timeouts(*timeouts)?;
        let state = read(*family, servers, sets, devices, routes, is_wanted)?;
        Ok(KernelState { has_other_timeouts, ..state })
    }

    fn real_servers(&mut self, key: ServerKey) -> Result<Vec<KernelRealServer>, KernelError> {
        self.send()?;
        Ok(self.servers.real_servers(key)?)
    }

    fn write(&mut self, operation: Operation) -> Result<(), KernelError> {
        let is_other = |pending: &Operation| Subsystem::of(pending) != Subsystem::of(&operation);
        if self.batch.byte_length() >= MAX_BATCH || self.pending.first().is_some_and(is_other) {
            self.send()?;
        }
        match operation {
            Operation::AddEntry(kind, entry) => IpSets::encode(&mut self.batch, true, kind, self.family, entry),
            Operation::DeleteEntry(kind, entry) => IpSets::encode(&mut self.batch, false, kind, self.family, entry),
            Operation::Bind(address) => {
                let device = self.device()?;
                if address.is_ipv6() && !self.is_ipv6_enabled {
                    self.devices.enable_ipv6(&device)?;
                    self.is_ipv6_enabled = true;
                }
                Devices::encode(&mut self.batch, true, &device, address);
            }
            Operation::Unbind(address) => {
                let device = self.device()?;
                Devices::encode(&mut self.batch, false, &device, address);
            }
            _ => self.servers.encode(&mut self.batch, operation, &self.scheduler),
        }
        self.pending.push(operation);
        Ok(())
    }

    fn flush(&mut self) -> Result<Vec<Refused<KernelError>>, KernelError> {
        self.send()?;
        Ok(std::mem::take(&mut self.refused))
    }
}

/// Reads all objects of an IP family in the calling thread's network namespace; `None` without the dummy device and entries of
/// sets, which show that ipvs mode is, or was, active.
///
/// # Errors
/// If the kernel returns an error. A kernel without ipvs is not an error.
pub fn read_state(family: IpFamily) -> Result<Option<KernelState>, KernelError> {
    let mut devices = Devices::open()?;
    let mut sets = IpSets::open()?;
    let has_device = devices.find(DUMMY_DEVICE)?.is_some_and(|device| device.kind.as_deref() == Some(DUMMY_KIND));
    // Another program may have deleted the device.
    if !has_device && !sets.are_used(family)? {
        return Ok(None);
    }
    let Some(mut servers) = VirtualServers::open()? else { return Ok(None) };
    let mut routes = KernelRoutes::open()?;
    read(family, &mut servers, &mut sets, &mut devices, &mut routes, &|_| true).map(Some)
}

fn read(
    family: IpFamily,
    servers: &mut VirtualServers,
    sets: &mut IpSets,
    devices: &mut Devices,
    routes: &mut KernelRoutes,
    is_wanted: &dyn Fn(&ServerKey) -> bool,
) -> Result<KernelState, KernelError> {
    let mut state = KernelState::default();
    for (key, config) in servers.list()? {
        if IpFamily::of(key.address) == family {
            let real_servers = if is_wanted(&key) { servers.real_servers(key)? } else { Vec::new() };
            state.servers.insert(key, KernelServer { config, real_servers });
        }
    }
    for kind in SetKind::ALL {
        state.entries[kind.index()] = sets.entries(kind, family)?;
    }
    if let Some(device) = devices.find(DUMMY_DEVICE)? {
        let addresses = devices.addresses(&device)?;
        let is_ours = |address: &IpAddr| {
            IpFamily::of(*address) == family
                && !matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
        };
        state.addresses = addresses.into_iter().filter(is_ours).collect();
        let routed = routes.local_addresses(family)?;
        state.unrouted = state.addresses.iter().filter(|address| !routed.contains(address)).copied().collect();
    }
    Ok(state)
}

/// Reports whether the object was already in the wanted state.
fn is_harmless(operation: &Operation, refusal: &Refusal) -> bool {
    match operation {
        Operation::Bind(_) => refusal.is_exists(),
        Operation::Unbind(_) => refusal.errno == libc::EADDRNOTAVAIL,
        // The kernel reports a missing virtual server of a real server as ESRCH.
        Operation::DeleteServer(_) | Operation::DeleteRealServer(..) => {
            refusal.is_not_found() || refusal.errno == libc::ESRCH
        }
        _ => false,
    }
}

/// Returns the meaning of an errno of the kernel's ipset that has no standard text.
fn hint(refusal: &Refusal) -> &'static str {
    match refusal.errno {
        ipset::IPSET_ERR_HASH_FULL => ": the set is full",
        _ => "",
    }
}

/// Size of a batch after which it is sent, in bytes.
const MAX_BATCH: usize = 256 * 1024;
