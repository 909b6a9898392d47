use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Addresses that served node ports and have left the host a short time ago. Their virtual servers stay for this time: the kernel ends the
/// connections of a virtual server that is deleted, even if the address returns at once.
#[derive(Debug, Default)]
pub(crate) struct Departed {
    left: BTreeMap<IpAddr, Instant>,
    period: Duration,
}

impl Departed {
    /// Keeps addresses for this time.
    pub(crate) fn new(period: Duration) -> Self {
        Self { left: BTreeMap::new(), period }
    }

    /// Adds the addresses of `serving` that the host had before and has no longer. Removes those that have returned, or left long ago.
    pub(crate) fn update(&mut self, before: &[IpAddr], addresses: &[IpAddr], serving: &[IpAddr], now: Instant) {
        let left = before.iter().filter(|address| serving.contains(address)).map(|address| (*address, now));
        self.left.extend(left);
        self.left.retain(|address, left| !addresses.contains(address) && now.duration_since(*left) < self.period);
    }

    /// Returns the addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.left.keys().copied()
    }

    /// Reports whether an address left long ago.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.left.values().any(|left| now.duration_since(*left) >= self.period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_served_node_ports_stay_for_a_while_unless_they_return() {
        let [node, moving, other] = ["192.0.2.1", "192.0.2.7", "192.0.2.8"].map(|text| text.parse().unwrap());
        let (start, period) = (Instant::now(), Duration::from_secs(10));
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut departed = Departed::new(period);
        let mut check = |before: &[IpAddr], addresses: &[IpAddr], seconds, expected: &[IpAddr]| {
            departed.update(before, addresses, &[node, moving], after(seconds));
            assert_eq!(departed.addresses().collect::<Vec<_>>(), expected, "after {seconds} s");
            [9, 10].map(|more| departed.is_due(after(seconds + more)))
        };
        assert_eq!(check(&[node, moving, other], &[node], 0, &[moving]), [false, true]);
        assert_eq!(check(&[node], &[node, moving], 1, &[]), [false, false]);
        assert_eq!(check(&[node, moving], &[node], 2, &[moving]), [false, true]);
        assert_eq!(check(&[node], &[node], 11, &[moving]), [true, true]);
        assert_eq!(check(&[node], &[node], 12, &[]), [false, false]);
    }
}
