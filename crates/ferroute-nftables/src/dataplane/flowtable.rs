//! Devices of the flowtable. They appear and disappear with pods, and the kernel does not add devices to a flowtable by
//! itself.

use std::collections::BTreeSet;

use ferroute_core::{FlowtableSettings, InterfacePattern, error_chain};
use ferroute_host::{Device, HostDevices};

use super::{NftablesDataplane, run::next_generation};
use crate::{
    kernel::{ErrorKind, Kernel, KernelError, Listing},
    model::{Change, Flowtable, Transaction},
    plan::FLOWTABLE,
};

/// The devices that belong to the flowtable.
pub(super) struct FlowtableDevices {
    patterns: Vec<InterfacePattern>,
    host: Box<dyn HostDevices>,
    /// Devices in the flowtable.
    attached: BTreeSet<Device>,
    /// Devices that the kernel refuses, until the next resync.
    refused: BTreeSet<Device>,
    /// Whether the last attempt to list the devices failed.
    is_unknown: bool,
}

impl FlowtableDevices {
    pub(super) fn new(settings: FlowtableSettings, host: Box<dyn HostDevices>) -> Self {
        Self {
            patterns: settings.devices,
            host,
            attached: BTreeSet::new(),
            refused: BTreeSet::new(),
            is_unknown: false,
        }
    }

    /// Sets the devices in the kernel's flowtable. Returns the devices that do not belong to it.
    fn restart(&mut self, listed: &[Box<str>]) -> Vec<Box<str>> {
        self.refused.clear();
        let (known, foreign): (Vec<Box<str>>, _) = listed.iter().cloned().partition(|name| self.includes(name));
        self.attached = self.list().into_iter().filter(|device| known.contains(&device.name)).collect();
        foreign
    }

    /// Reports whether the flowtable, as listed, has exactly the devices that were added.
    pub(super) fn has_devices(&mut self, listed: &[Box<str>]) -> bool {
        // The kernel removes deleted devices itself.
        let existing = self.list();
        self.attached.iter().all(|device| listed.contains(&device.name) || !existing.contains(device))
            && listed.iter().all(|name| self.includes(name))
    }

    /// Returns the devices that are missing in the flowtable.
    fn missing(&mut self) -> Vec<Device> {
        let wanted = self.list();
        // The kernel forgets deleted devices itself.
        self.attached.retain(|device| wanted.contains(device));
        self.refused.retain(|device| wanted.contains(device));
        let is_missing = |device: &Device| !self.attached.contains(device) && !self.refused.contains(device);
        wanted.into_iter().filter(is_missing).collect()
    }

    /// Returns the host's devices that belong to the flowtable.
    fn list(&mut self) -> BTreeSet<Device> {
        match self.host.list() {
            Ok(devices) => {
                self.is_unknown = false;
                devices.into_iter().filter(|device| self.includes(&device.name)).collect()
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_unknown, true) {
                    tracing::warn!("the flowtable keeps its devices: {}", error_chain(&error));
                }
                &self.attached | &self.refused
            }
        }
    }

    fn includes(&self, name: &str) -> bool {
        // Forwarded packets never arrive on it.
        name != LOOPBACK && self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}

impl<K: Kernel> NftablesDataplane<K> {
    /// Adds new devices to the flowtable. `generation` is the kernel's if no other program commits a transaction.
    ///
    /// Failures are logged only: packets of the device's connections pass the hooks.
    pub(super) fn attach_devices(&mut self, generation: &mut Option<u32>) {
        let Some(flowtable) = &mut self.flowtable else { return };
        for chunk in flowtable.missing().chunks(DEVICES_PER_MESSAGE) {
            if self.attach(chunk, generation).is_ok() {
                continue;
            }
            // A single device, which may just have been deleted, must not prevent the others from being added.
            for device in chunk {
                let Err(error) = self.attach(std::slice::from_ref(device), generation) else { continue };
                // It may have been deleted in the meantime.
                if error.kind() != Some(ErrorKind::NotFound) {
                    let device = &device.name;
                    tracing::warn!(table = %self.table, "cannot add {device} to the flowtable: {}", error_chain(&error));
                }
                if let Some(flowtable) = &mut self.flowtable {
                    flowtable.refused.insert(device.clone());
                }
            }
        }
    }

    fn attach(&mut self, devices: &[Device], generation: &mut Option<u32>) -> Result<(), K::Error> {
        let names = devices.iter().map(|device| device.name.clone()).collect();
        self.change_flowtable(Change::AddFlowtable(Flowtable { name: FLOWTABLE, devices: names }), generation)?;
        let names: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
        tracing::info!(table = %self.table, "flowtable has devices {}", names.join(", "));
        if let Some(flowtable) = &mut self.flowtable {
            flowtable.attached.extend(devices.iter().cloned());
        }
        Ok(())
    }

    /// Continues with the flowtable of a table as it was read; `None` if there is no table yet. Devices that an earlier
    /// run added with other settings are removed.
    pub(super) fn restart_flowtable(&mut self, listing: Option<&Listing>, generation: &mut Option<u32>) {
        let Some(flowtable) = &mut self.flowtable else { return };
        let devices = flowtable.restart(listing.map_or(&[], own_devices));
        if devices.is_empty() {
            return;
        }
        let change = Change::DeleteDevices(Flowtable { name: FLOWTABLE, devices });
        if let Err(error) = self.change_flowtable(change, generation) {
            tracing::warn!(table = %self.table, "cannot remove devices from the flowtable: {}", error_chain(&error));
        }
    }

    fn change_flowtable(&mut self, change: Change, generation: &mut Option<u32>) -> Result<(), K::Error> {
        self.kernel.commit(&Transaction { table: self.table.clone(), changes: vec![change] })?;
        *generation = generation.map(next_generation);
        Ok(())
    }
}

/// Returns the devices of the proxy's flowtable.
pub(super) fn own_devices(listing: &Listing) -> &[Box<str>] {
    let own = listing.flowtables.iter().find(|listed| listed.name == FLOWTABLE);
    own.and_then(|listed| listed.flowtable.as_ref()).map_or(&[], |own| &own.devices)
}

/// Half of the kernel's limit (`NFT_NETDEVICE_MAX`).
const DEVICES_PER_MESSAGE: usize = 128;
const LOOPBACK: &str = "lo";
