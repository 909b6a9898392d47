//! Strict ARP (`ipvs.strictARP`): the host answers ARP requests only for addresses of the device on which they arrive.
//!
//! The previous values of the sysctls are kept in the alias of the dummy device, which exists as long as they do: until
//! a reboot. If another program deletes the device, a running proxy writes them again. They are restored when strict ARP is
//! turned off or the device is removed.

use ferroute_host::{SysctlError, Sysctls};
use ferroute_ipvs::{ALIAS_SEPARATOR, DUMMY_DEVICE, DUMMY_KIND, DeviceError, Devices};

use crate::Sysctl;

/// The sysctls with their values for strict ARP.
pub(super) const SYSCTLS: [Sysctl; 2] = [
    Sysctl { name: "net/ipv4/conf/all/arp_ignore", value: "1" },
    Sysctl { name: "net/ipv4/conf/all/arp_announce", value: "2" },
];

/// The values could not be kept or restored.
#[derive(Debug, thiserror::Error)]
pub(super) enum StrictArpError {
    /// The dummy device cannot be accessed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A sysctl cannot be accessed.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

/// The values before strict ARP, in the order of [`SYSCTLS`].
#[derive(Clone, Debug, PartialEq, Eq)]
struct Before([String; SYSCTLS.len()]);

impl Before {
    fn to_alias(&self) -> String {
        let [ignore, announce] = &self.0;
        format!("{PREFIX}{ignore} {announce}")
    }

    /// Parses an alias. Returns the values with the text of another program before them; `None` if it has no values.
    fn from_alias(alias: &str) -> Option<(Self, &str)> {
        let (others, values) = alias.split_once(PREFIX)?;
        let (ignore, announce) = values.split_once(' ')?;
        let values = [ignore, announce];
        let are_valid = values.iter().all(|value| value.parse::<u8>().is_ok());
        are_valid.then(|| (Self(values.map(str::to_owned)), others.trim_end_matches(ALIAS_SEPARATOR)))
    }
}

/// Keeps the current values before strict ARP is turned on, if they differ. Values kept by an earlier start are not
/// replaced.
pub(super) fn remember(sysctls: &Sysctls) -> Result<(), StrictArpError> {
    let mut devices = Devices::open()?;
    let device = devices.ensure_dummy(DUMMY_DEVICE)?;
    if device.alias.as_deref().and_then(Before::from_alias).is_some() {
        return Ok(());
    }
    let [ignore, announce] = &SYSCTLS;
    let before = Before([sysctls.read(ignore.name)?, sysctls.read(announce.name)?]);
    if before.0.iter().zip(&SYSCTLS).any(|(before, sysctl)| before != sysctl.value) {
        devices.add_to_alias(&device, &before.to_alias())?;
    }
    Ok(())
}

/// Returns the values from before strict ARP as a part of the device's alias, if there are any.
pub(super) fn alias() -> Result<Option<String>, DeviceError> {
    let device = Devices::open()?.find(DUMMY_DEVICE)?;
    let before = device.as_ref().and_then(|device| Before::from_alias(device.alias.as_deref()?));
    Ok(before.map(|(before, _)| before.to_alias()))
}

/// Restores the values from before strict ARP, except for those that another program has changed since. Returns a
/// description of the restored values.
pub(super) fn restore(sysctls: &Sysctls) -> Result<Vec<String>, StrictArpError> {
    let mut devices = Devices::open()?;
    let device = devices.find(DUMMY_DEVICE)?.filter(|device| device.kind.as_deref() == Some(DUMMY_KIND));
    let Some(device) = device else { return Ok(Vec::new()) };
    let Some((before, others)) = device.alias.as_deref().and_then(Before::from_alias) else { return Ok(Vec::new()) };
    let mut restored = Vec::new();
    for (before, Sysctl { name, value }) in before.0.iter().zip(&SYSCTLS) {
        if before != value && sysctls.read(name)? == *value {
            sysctls.ensure(name, before)?;
            restored.push(format!("{name} = {before}"));
        }
    }
    devices.set_alias(&device, others)?;
    Ok(restored)
}

/// The start of the values in the alias, which `ip link` shows.
const PREFIX: &str = "ferroute: arp_ignore and arp_announce were ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_from_the_alias_and_other_texts_are_none() {
        let before = Before(["0".to_owned(), "2".to_owned()]);
        assert_eq!(Before::from_alias(&before.to_alias()), Some((before.clone(), "")));
        assert_eq!(Before::from_alias(&format!("uplink; {}", before.to_alias())), Some((before, "uplink")));
        for text in ["", "uplink", PREFIX, &format!("{PREFIX}0"), &format!("{PREFIX}0 x"), &format!("{PREFIX}0 1 2")] {
            assert_eq!(Before::from_alias(text), None, "{text}");
        }
    }
}
