//! Positions of a list that has more positions than endpoints.
//!
//! ```text
//!   cycle        a b c a b c a b …     the positions of a round
//!   hash table   c a a b c b a c …     position of a hash to endpoint
//! ```
//!
//! A hash table depends on the endpoints alone, so all nodes with the same endpoints have the same one. It is filled by
//! rendezvous hashing with a bounded load: each position prefers endpoints in the order of a hash of both, and an
//! endpoint keeps those positions that rate it highest, at most its [`capacity`]. The result is a stable matching,
//! independent of the order of the computation. The positions of a removed endpoint go to all others, and few other
//! positions move; with the permutations of Maglev, several times as many would move in tables of this size.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    iter,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::{Endpoint, TableSize};

/// Returns each endpoint with its number of positions, in proportion to its weight: 1 if all weights are equal.
pub(super) fn weighted(endpoints: &[Endpoint]) -> Vec<(SocketAddr, usize)> {
    let divisor = endpoints.iter().fold(0, |divisor, endpoint| gcd(divisor, endpoint.weight)).max(1);
    let total: usize = endpoints.iter().map(|endpoint| usize::from(endpoint.weight / divisor)).sum();
    let positions = |endpoint: &Endpoint| match usize::from(endpoint.weight / divisor) {
        _ if endpoints.len() > MAX_WEIGHTED => 1,
        weight if total <= MAX_WEIGHTED => weight,
        // The ratios are rounded.
        weight => (weight * MAX_WEIGHTED / total).max(1),
    };
    endpoints.iter().map(|endpoint| (endpoint.socket(), positions(endpoint))).collect()
}

/// Returns the positions of a list from which a random one is chosen.
pub(super) fn random(endpoints: &[Endpoint]) -> Vec<SocketAddr> {
    // True for nearly all lists; a large cluster has a million endpoints.
    if endpoints.iter().all(|endpoint| endpoint.weight == endpoints[0].weight) {
        return endpoints.iter().map(Endpoint::socket).collect();
    }
    let repeat = |(socket, times)| iter::repeat_n(socket, times);
    weighted(endpoints).into_iter().flat_map(repeat).collect()
}

/// Returns the positions of a cycle in which endpoints with several positions alternate with others. It has one
/// position per endpoint and weight, or repeats them up to a longer cycle.
pub(super) fn cycle(weighted: &[(SocketAddr, usize)], length: impl Fn(usize) -> usize) -> Vec<SocketAddr> {
    let total: usize = weighted.iter().map(|(_, times)| times).sum();
    // The positions of each endpoint are evenly spaced, and sorted by their middles.
    let mut turns: Vec<(usize, usize)> = Vec::with_capacity(total);
    for (i, (_, times)) in weighted.iter().enumerate() {
        turns.extend((0..*times).map(|turn| ((2 * turn + 1) * total / (2 * times), i)));
    }
    turns.sort_unstable();
    turns.iter().map(|(_, i)| weighted[*i].0).cycle().take(length(total)).collect()
}

/// Returns the positions of a hash table.
pub(super) fn hash_table(weighted: &[(SocketAddr, usize)], size: TableSize) -> Vec<SocketAddr> {
    let keys: Vec<Key> =
        weighted.iter().map(|(socket, times)| Key { hash: hash_socket(*socket), weight: *times as u64 }).collect();
    let owners = fill(&keys, size.get());
    owners.into_iter().map(|owner| weighted[owner].0).collect()
}

/// An endpoint of a hash table.
struct Key {
    hash: u64,
    weight: u64,
}

/// Returns the owner of each position.
fn fill(keys: &[Key], positions: usize) -> Vec<usize> {
    let total: u64 = keys.iter().map(|key| key.weight).sum();
    let capacities: Vec<usize> = keys.iter().map(|key| capacity(key, positions as u64, total)).collect();
    let is_weighted = keys.iter().any(|key| key.weight != keys[0].weight);
    let mut owners = vec![0; positions];
    let mut ratings = vec![None; positions];
    // Positions of each endpoint, the one with the lowest rating first.
    let mut owned: Vec<BinaryHeap<Reverse<(u64, usize)>>> = keys.iter().map(|_| BinaryHeap::new()).collect();
    let mut open: Vec<usize> = (0..positions).rev().collect();
    while let Some(position) = open.pop() {
        let rating = |(i, key): (usize, &Key)| {
            let hash = mix(key.hash ^ (position as u64).wrapping_mul(GOLDEN));
            (if is_weighted { weighted_rating(hash, key.weight) } else { hash }, i)
        };
        let is_next = |candidate: &(u64, usize)| ratings[position].is_none_or(|rejected| *candidate < rejected);
        // The capacities of all endpoints together suffice for all positions, so not all endpoints reject a position.
        let Some(best) = keys.iter().enumerate().map(rating).filter(is_next).max() else { continue };
        ratings[position] = Some(best);
        owners[position] = best.1;
        let positions = &mut owned[best.1];
        positions.push(Reverse((best.0, position)));
        if positions.len() > capacities[best.1] {
            open.extend(positions.pop().map(|Reverse((_, rejected))| rejected));
        }
    }
    owners
}

/// Returns the maximum number of positions of an endpoint: [`OVERLOAD`] more than its share, or more than that if the
/// share has few positions.
///
/// A full endpoint passes positions on to others, and gets them back when another endpoint is removed. The fewer
/// positions a share has, the more endpoints are full by chance. The bound therefore rises to [`DEVIATIONS`] above the
/// share, where one endpoint in twenty is full. It rises smoothly, and for each endpoint by a different fraction of a
/// position: with whole positions, all endpoints would get one more at certain numbers of endpoints.
fn capacity(key: &Key, positions: u64, total: u64) -> usize {
    let part = positions * key.weight;
    let least = (part * OVERLOAD.0 / OVERLOAD.1 / total).max(part.div_ceil(total));
    // As in `weighted_rating`, only operations that are exact everywhere.
    let share = part as f64 / total as f64;
    // If there are more endpoints than positions, as many as possible get one.
    if share <= 1.0 {
        return usize::try_from(least).unwrap_or(usize::MAX);
    }
    let slack = DEVIATIONS * share.sqrt().min(FEW_POSITIONS / share.sqrt());
    let fraction = (mix(key.hash ^ 1) >> 11) as f64 / (1_u64 << 53) as f64;
    let spread = ((MANY_POSITIONS - share) / RAMP).clamp(0.0, 1.0) * fraction;
    // The cast is of a positive number that is smaller than twice the table.
    usize::try_from(least.max((share + slack + spread) as u64)).unwrap_or(usize::MAX)
}

/// Returns the rating of an endpoint with this weight: like `ln(hash) / weight`, it is the highest of several
/// endpoints' ratings with a probability proportional to the weight. For equal weights, ratings have the order of the
/// hashes.
fn weighted_rating(hash: u64, weight: u64) -> u64 {
    // Uses only operations that IEEE 754 defines exactly, because all architectures must agree. `hash | 1` is
    // 2^exponent × mantissa.
    let exponent = 63 - (hash | 1).leading_zeros();
    let mantissa = (hash | 1) as f64 / (1_u64 << exponent) as f64;
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let (square, mut power, mut logarithm) = (t * t, t, 0.0);
    for odd in [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0] {
        logarithm += power / odd;
        power *= square;
    }
    let below_one = (64.0 - f64::from(exponent)) * std::f64::consts::LN_2 - 2.0 * logarithm;
    // Among positive numbers, a smaller number has smaller bits.
    !(below_one / weight as f64).to_bits()
}

fn gcd(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A hash that is stable across versions and architectures, so that nodes agree while they are updated.
fn hash_socket(socket: SocketAddr) -> u64 {
    let address = match socket.ip() {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    };
    [(address >> 64) as u64, address as u64, socket.port().into()].into_iter().fold(0, |hash, part| mix(hash ^ part))
}

/// The finalizer of SplitMix64: every bit of the result depends on every bit of the input.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(GOLDEN);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// 2⁶⁴ divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Approximate maximum number of positions of a list with weights. With more endpoints, all have the same weight.
const MAX_WEIGHTED: usize = 4_096;

/// Maximum load of an endpoint whose share has many positions, as a fraction of the share.
const OVERLOAD: (u64, u64) = (10_295, 10_000);

/// Maximum load above a share of few positions, in standard deviations of a random load. With this and the next three
/// constants, all measured by `examples/balancing.rs`, at most 1.22 times as many positions move as the endpoint had,
/// with up to 1,000 endpoints in a table of the default size.
const DEVIATIONS: f64 = 1.7;

/// Number up to which a share has few positions; above it, the distance to the share decreases again.
const FEW_POSITIONS: f64 = 172.0 / DEVIATIONS;

/// Number from which [`OVERLOAD`] is sufficient; apart from rounding, tables of the default size with up to 100
/// endpoints depend on it alone.
const MANY_POSITIONS: f64 = 334.0;

/// The distance below [`MANY_POSITIONS`] over which the fractions of positions grow from 0 to 1.
const RAMP: f64 = 40.0;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ferroute_core::testing::endpoint;

    use super::*;

    fn endpoints(count: u16) -> Vec<(SocketAddr, usize)> {
        (0..count).map(|i| (SocketAddr::from(([10, 244, (i / 200) as u8, (i % 200) as u8 + 2], 8080)), 1)).collect()
    }

    fn loads(table: &[SocketAddr]) -> BTreeMap<SocketAddr, usize> {
        table.iter().fold(BTreeMap::new(), |mut loads, socket| {
            *loads.entry(*socket).or_default() += 1;
            loads
        })
    }

    #[test]
    fn largest_load_is_within_three_percent_of_the_share() {
        for count in [2, 3, 7, 100] {
            let table = hash_table(&endpoints(count), TableSize::default());
            let largest = loads(&table).into_values().max().unwrap();
            let share = table.len() as f64 / f64::from(count);
            assert!(largest as f64 <= share * 1.03, "{largest} of {share} with {count} endpoints");
        }
    }

    #[test]
    fn removed_endpoint_moves_few_positions_of_others() {
        for count in [2, 5, 20, 100, 107, 200, 500] {
            let all = endpoints(count);
            let before = hash_table(&all, TableSize::default());
            for removed in [0, usize::from(count) / 2].into_iter().take(if count > 100 { 1 } else { 2 }) {
                let mut rest = all.clone();
                rest.remove(removed);
                let after = hash_table(&rest, TableSize::default());
                let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
                let own = before.iter().filter(|socket| **socket == all[removed].0).count() as f64;
                // With more endpoints, their numbers of positions differ by themselves.
                let ideal = if count <= 100 { before.len() as f64 / f64::from(count) } else { own };
                assert!(moved as f64 <= ideal * 1.25, "{moved} of {ideal} with {count} endpoints");
            }
        }
    }

    #[test]
    fn table_does_not_depend_on_the_order_of_endpoints() {
        let mut all = endpoints(9);
        let table = hash_table(&all, TableSize::at_least(0));
        all.reverse();
        assert_eq!(hash_table(&all, TableSize::at_least(0)), table);
        // All nodes must agree, even while they run different versions.
        let first: Vec<u8> = table[..12].iter().map(|socket| socket.to_string().as_bytes()[9] - b'0').collect();
        assert_eq!(first, [5, 9, 6, 9, 7, 2, 8, 9, 4, 5, 3, 2]);
    }

    #[test]
    fn tables_with_fewer_positions_than_endpoints_are_filled() {
        let table = hash_table(&endpoints(2_000), TableSize::at_least(0));
        assert_eq!(loads(&table).into_values().max(), Some(1));
    }

    #[test]
    fn shares_of_a_hash_table_are_in_proportion_to_weights() {
        let weights = [7, 2, 1, 1, 1, 4, 1, 1, 1, 1];
        let all: Vec<_> =
            endpoints(10).into_iter().zip(weights).map(|((socket, _), weight)| (socket, weight)).collect();
        let table = hash_table(&all, TableSize::default());
        let loads = loads(&table);
        for (socket, weight) in &all {
            let share = table.len() as f64 * *weight as f64 / weights.iter().sum::<usize>() as f64;
            let load = loads[socket] as f64;
            assert!(load <= share * 1.03 && load >= share * 0.9, "{load} of {share} with weight {weight}");
        }
        // Equal weights result in the same table as no weights, and a change of one endpoint's weight moves few
        // positions of others.
        let equal: Vec<_> = all.iter().map(|(socket, _)| (*socket, 3)).collect();
        let plain = hash_table(&endpoints(10), TableSize::default());
        assert_eq!(hash_table(&equal, TableSize::default()), plain);
        let mut doubled = endpoints(10);
        doubled[4].1 = 2;
        let after = hash_table(&doubled, TableSize::default());
        let moved = plain.iter().zip(&after).filter(|(before, after)| before != after).count() as f64;
        let ideal = plain.len() as f64 * (2.0 / 11.0 - 1.0 / 10.0);
        assert!(moved <= ideal * 1.25, "{moved} of {ideal}");
    }

    #[test]
    fn cycle_repeats_endpoints_in_order_and_spreads_those_with_weights() {
        let all = endpoints(3);
        let sockets: Vec<SocketAddr> = all.iter().map(|(socket, _)| *socket).collect();
        assert_eq!(cycle(&all, |length| length), sockets);
        assert_eq!(cycle(&all, |_| 8), [&sockets[..], &sockets, &sockets[..2]].concat());
        let [a, b, c] = sockets[..] else { panic!("three endpoints") };
        assert_eq!(cycle(&[(a, 3), (b, 1), (c, 2)], |length| length), [a, c, a, b, c, a]);
    }

    #[test]
    fn weights_are_reduced_and_long_lists_shortened() {
        let of = |weights: &[u16]| {
            let endpoints = endpoints(weights.len() as u16).into_iter().zip(weights);
            let endpoints: Vec<Endpoint> = endpoints
                .map(|((socket, _), weight)| Endpoint { weight: *weight, ..endpoint(&socket.to_string()) })
                .collect();
            weighted(&endpoints).into_iter().map(|(_, times)| times).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [0; 0]);
        assert_eq!(of(&[5, 5]), [1, 1]);
        assert_eq!(of(&[70, 20, 10]), [7, 2, 1]);
        let long = of(&[[256; 99].as_slice(), &[1]].concat());
        assert_eq!((long[0], long[99]), (41, 1));
    }
}
