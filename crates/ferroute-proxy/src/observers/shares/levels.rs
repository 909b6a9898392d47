//! Computes the share of an endpoint. Pure: times and counts are given.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use ferroute_core::{ServicePortName, Share, tracker::Shares};

/// Load of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Open connections.
    pub(super) connections: u64,
    /// Weight, relative to the weights of the others.
    pub(super) weight: f64,
}

/// Shares of endpoints by their connections. There are few levels, so that shares change rarely.
#[derive(Debug, Default)]
pub(super) struct Levels(BTreeMap<ServicePortName, BTreeMap<SocketAddr, usize>>);

/// Returns the share of an endpoint at this time after its start, and the time until the next share; `None` for the
/// full share.
pub(super) fn starting(elapsed: Duration, window: Duration) -> Option<(Share, Duration)> {
    let step = window / STEPS.len() as u32;
    let position = (0..STEPS.len() as u32).find(|position| elapsed < step * (position + 1))?;
    Some((Share::new(STEPS[position as usize])?, step * (position + 1) - elapsed))
}

impl Levels {
    /// Updates the levels according to the connections of all endpoints of all service ports.
    pub(super) fn update(&mut self, loads: &BTreeMap<ServicePortName, BTreeMap<SocketAddr, Load>>) {
        let before = std::mem::take(&mut self.0);
        for (name, loads) in loads {
            let before = before.get(name);
            let weights: f64 = loads.values().map(|load| load.weight).sum();
            let connections: u64 = loads.values().map(|load| load.connections).sum();
            let level = |(endpoint, load): (&SocketAddr, &Load)| {
                let fair = connections as f64 * load.weight / weights;
                let ratio = (load.connections as f64 + NOISE) / (fair + NOISE);
                let level = before.and_then(|before| before.get(endpoint)).copied().unwrap_or(USUAL);
                (*endpoint, next_level(level, ratio))
            };
            self.0.insert(name.clone(), loads.iter().map(level).collect());
        }
    }

    /// Adds the shares of the service ports whose endpoints have different levels.
    pub(super) fn add_shares(&self, shares: &mut Shares) {
        let differ = |levels: &BTreeMap<SocketAddr, usize>| {
            let mut levels = levels.values();
            let first = levels.next();
            levels.any(|level| Some(level) != first)
        };
        let share = |(endpoint, level): (&SocketAddr, &usize)| Some((*endpoint, Share::new(LEVELS[*level].0)?));
        let ports = self.0.iter().filter(|(_, levels)| differ(levels));
        for (name, levels) in ports {
            shares.entry(name.clone()).or_default().extend(levels.iter().filter_map(share));
        }
    }
}

/// Returns the level for a ratio of connections to the fair number: the previous level, unless the ratio is clearly
/// outside of it.
fn next_level(before: usize, ratio: f64) -> usize {
    let lower = if before == 0 { 0.0 } else { LEVELS[before - 1].1 / HYSTERESIS };
    if (lower..=LEVELS[before].1 * HYSTERESIS).contains(&ratio) {
        return before;
    }
    LEVELS.iter().position(|(_, most)| ratio <= *most).unwrap_or(LEVELS.len() - 1)
}

/// The sixteenths of a new endpoint's share, each for the same part of the time.
const STEPS: [u8; 4] = [2, 4, 8, 12];

/// The sixteenths of the share, and the largest ratio of connections to the fair number.
const LEVELS: [(u8, f64); 5] = [(16, 0.6), (8, 1.5), (4, 3.0), (2, 6.0), (1, f64::INFINITY)];

/// Level of endpoints with about as many connections as others.
const USUAL: usize = 1;

/// A level changes once the ratio is beyond it by this factor.
const HYSTERESIS: f64 = 1.2;

/// Number of connections that is added to each count, so that small differences do not cause a change.
const NOISE: f64 = 4.0;

#[cfg(test)]
mod tests {
    use ferroute_core::{Protocol, testing::namespaced_name};

    use super::*;

    #[test]
    fn new_endpoints_get_more_in_four_steps() {
        let window = Duration::from_secs(40);
        let at = |seconds| {
            let found = starting(Duration::from_secs(seconds), window);
            found.map(|(share, next)| (share.get(), next.as_secs()))
        };
        assert_eq!(
            [0, 9, 10, 25, 39, 40].map(at),
            [Some((2, 10)), Some((2, 1)), Some((4, 10)), Some((8, 5)), Some((12, 1)), None]
        );
    }

    fn endpoint(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 244, 0, number], 80))
    }

    /// Updates the levels with these numbers of connections and weights, and returns the sixteenths; empty if all are
    /// the same.
    fn update(levels: &mut Levels, loads: &[(u64, f64)]) -> Vec<u8> {
        let (service, port) = (namespaced_name("shop/web"), "http".into());
        let name = ServicePortName { service, port, protocol: Protocol::Tcp };
        let loads = loads.iter().zip(1..).map(|((connections, weight), number)| {
            (endpoint(number), Load { connections: *connections, weight: *weight })
        });
        levels.update(&BTreeMap::from([(name.clone(), loads.collect())]));
        let mut shares = Shares::new();
        levels.add_shares(&mut shares);
        shares.get(&name).map(|shares| shares.values().map(|share| share.get()).collect()).unwrap_or_default()
    }

    #[test]
    fn endpoints_with_more_connections_get_a_smaller_share() {
        let mut levels = Levels::default();
        assert_eq!(update(&mut levels, &[(100, 1.0), (103, 1.0), (98, 1.0)]), [0; 0]);
        assert_eq!(update(&mut levels, &[(3, 1.0), (0, 1.0), (1, 1.0)]), [0; 0], "a few are no reason");
        assert_eq!(update(&mut levels, &[(200, 1.0), (40, 1.0), (60, 1.0)]), [4, 16, 8]);
        assert_eq!(update(&mut levels, &[(900, 1.0), (0, 1.0), (0, 1.0)]), [4, 16, 16]);
        assert_eq!(update(&mut levels, &[(3, 1.0), (0, 1.0), (1, 1.0)]), [4, 8, 8], "1.31 times, with the noise");
        assert_eq!(update(&mut levels, &[(1, 1.0), (0, 1.0), (0, 1.0)]), [0; 0]);
        assert_eq!(update(&mut levels, &[(300, 3.0), (100, 1.0)]), [0; 0], "as many as its weight says");
    }

    #[test]
    fn levels_do_not_change_for_small_differences() {
        let mut levels = Levels::default();
        // Three other endpoints share the rest, and none of them has clearly too few.
        let of =
            |first: u64| [first, (10_000 - first) / 3, (10_000 - first) / 3, (10_000 - first) / 3].map(|c| (c, 1.0));
        assert_eq!(update(&mut levels, &of(4_450)), [0; 0], "1.78 times the fair number");
        assert_eq!(update(&mut levels, &of(4_750)), [4, 8, 8, 8]);
        assert_eq!(update(&mut levels, &of(3_500)), [4, 8, 8, 8], "1.4 times: not clearly below 1.5");
        assert_eq!(update(&mut levels, &of(3_000)), [0; 0]);
        let of = |second: u64| [(10_000 - second, 1.0), (second, 1.0)];
        assert_eq!(update(&mut levels, &of(2_600)), [0; 0], "0.52 times: not clearly below 0.6");
        assert_eq!(update(&mut levels, &of(2_400)), [8, 16]);
        assert_eq!(update(&mut levels, &of(3_500)), [8, 16], "0.7 times: not clearly above 0.6");
        assert_eq!(update(&mut levels, &of(3_700)), [0; 0]);
    }

    #[test]
    fn service_ports_are_forgotten() {
        let mut levels = Levels::default();
        assert_eq!(update(&mut levels, &[(200, 1.0), (40, 1.0), (60, 1.0)]).len(), 3);
        levels.update(&BTreeMap::new());
        let mut shares = Shares::new();
        levels.add_shares(&mut shares);
        assert!(shares.is_empty());
    }
}
