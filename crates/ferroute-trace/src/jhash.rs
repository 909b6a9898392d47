//! The hash of nft expression `jhash` and of module `cluster`: lookup3 of Bob Jenkins, as in `include/linux/jhash.h` of the kernel.

/// Returns the hash of a key, scaled to `0..modulus`, as `nft_jhash_eval` computes it.
pub(crate) fn jhash(key: &[u8], seed: u32, modulus: u32) -> u32 {
    // `reciprocal_scale`.
    ((u64::from(hash(key, seed)) * u64::from(modulus)) >> 32) as u32
}

fn hash(key: &[u8], seed: u32) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(key.len() as u32).wrapping_add(seed);
    let mut state = [start; 3];
    let mut rest = key;
    while rest.len() > 12 {
        let (block, after) = rest.split_at(12);
        add(&mut state, block);
        mix(&mut state);
        rest = after;
    }
    if !rest.is_empty() {
        add(&mut state, rest);
        finish(&mut state);
    }
    state[2]
}

/// Adds up to three words in the host's byte order, the last one padded with zeros.
fn add(state: &mut [u32; 3], bytes: &[u8]) {
    for (word, bytes) in state.iter_mut().zip(bytes.chunks(4)) {
        let mut padded = [0; 4];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = word.wrapping_add(u32::from_ne_bytes(padded));
    }
}

fn mix([a, b, c]: &mut [u32; 3]) {
    let step = |x: &mut u32, y: &mut u32, z: &mut u32, bits| {
        *x = x.wrapping_sub(*z) ^ z.rotate_left(bits);
        *z = z.wrapping_add(*y);
    };
    step(a, b, c, 4);
    step(b, c, a, 6);
    step(c, a, b, 8);
    step(a, b, c, 16);
    step(b, c, a, 19);
    step(c, a, b, 4);
}

fn finish([a, b, c]: &mut [u32; 3]) {
    let step = |x: &mut u32, y: u32, bits| *x = (*x ^ y).wrapping_sub(y.rotate_left(bits));
    step(c, *b, 14);
    step(a, *c, 11);
    step(b, *a, 25);
    step(c, *b, 16);
    step(a, *c, 4);
    step(b, *a, 14);
    step(c, *b, 24);
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    /// The expected values were read from the kernel, with `nft` rules that store the hash of a packet in a set.
    #[test]
    fn hashes_are_those_of_the_kernel() {
        let v4 = Ipv4Addr::new(127, 0, 0, 5).octets();
        let v6 = Ipv6Addr::LOCALHOST.octets();
        let port = [0x04, 0xd2, 0, 0];
        assert_eq!([&v4[..], &v6[..]].map(|key| 1 + jhash(key, 0x6665_7272, 32_768)), [0xb26, 0x7468]);
        assert_eq!([&v4[..], &v6[..]].map(|key| jhash(&[key, &port].concat(), 1, 65_536)), [0x5a72, 0x9fab]);
    }
}
