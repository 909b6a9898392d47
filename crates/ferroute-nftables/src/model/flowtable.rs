use super::{Name, join, name::Printable};

/// A flowtable: established connections whose packets skip the hooks if they arrive on one of its devices.
///
/// The kernel forwards and translates such packets at the devices' ingress hook, and counts them for connection tracking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flowtable {
    /// The name, unique among the table's flowtables.
    pub name: Name,
    /// The names of devices. The kernel forgets devices that are deleted.
    pub devices: Vec<Box<str>>,
}

impl Flowtable {
    /// Returns the properties of a new flowtable, each in `nft` syntax.
    pub fn properties(&self) -> Vec<String> {
        let hook = ["hook ingress priority filter".to_owned()];
        hook.into_iter().chain(self.device_property()).chain(["counter".to_owned()]).collect()
    }

    /// Returns the list of devices in `nft` syntax; `None` if there are none.
    pub fn device_property(&self) -> Option<String> {
        let devices: Vec<String> = self.devices.iter().map(|device| format!("\"{}\"", Printable(device))).collect();
        (!devices.is_empty()).then(|| format!("devices = {{ {} }}", join(&devices, ", ")))
    }
}
