//! The ports that listeners use (`--proxy-port-range`).

use std::{io, ops::RangeInclusive};

/// The ports to choose from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PortRange {
    /// Any port; the kernel chooses one of its ephemeral ports.
    #[default]
    Any,
    /// A port in this range.
    Within(RangeInclusive<u16>),
}

/// All ports of the range are in use.
#[derive(Debug, thiserror::Error)]
#[error("no free port from {first} to {last}")]
pub struct NoFreePort {
    first: u16,
    last: u16,
    #[source]
    source: Option<io::Error>,
}

impl PortRange {
    /// Calls `bind` with port 0 or, if there is a range, with its ports from number `start` (modulo the size of the range)
    /// on, until a port is free.
    ///
    /// # Errors
    /// If no port is free, or if `bind` fails for a reason other than a port in use.
    pub(crate) fn bind<T>(&self, start: usize, mut bind: impl FnMut(u16) -> io::Result<T>) -> io::Result<T> {
        let Self::Within(range) = self else { return bind(0) };
        let count = range.len();
        let mut in_use = None;
        for offset in 0..count {
            // The remainder is less than the number of ports, which fits into 16 bits or is 65,536 with `first` 0.
            let port = range.start() + ((start + offset) % count) as u16;
            match bind(port) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => in_use = Some(error),
                result => return result,
            }
        }
        Err(io::Error::other(NoFreePort { first: *range.start(), last: *range.end(), source: in_use }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind_unless(used: &[u16], start: usize) -> io::Result<u16> {
        let range = PortRange::Within(100..=103);
        range.bind(start, |port| match used.contains(&port) {
            true => Err(io::ErrorKind::AddrInUse.into()),
            false => Ok(port),
        })
    }

    #[test]
    fn the_first_free_port_from_the_start_is_used() {
        assert_eq!(bind_unless(&[], 0).unwrap(), 100);
        assert_eq!(bind_unless(&[102, 103], 2).unwrap(), 100);
        assert_eq!(bind_unless(&[100, 101, 102], 41).unwrap(), 103);
    }

    #[test]
    fn a_full_range_is_an_error() {
        let error = bind_unless(&[100, 101, 102, 103], 0).unwrap_err();
        assert!(error.get_ref().is_some_and(|error| error.is::<NoFreePort>()), "{error}");
    }

    #[test]
    fn other_errors_are_returned_at_once() {
        let mut calls = 0;
        let error = PortRange::Within(1..=10).bind(0, |_| -> io::Result<()> {
            calls += 1;
            Err(io::ErrorKind::PermissionDenied.into())
        });
        assert_eq!((error.unwrap_err().kind(), calls), (io::ErrorKind::PermissionDenied, 1));
    }

    #[test]
    fn without_a_range_the_kernel_chooses() {
        assert_eq!(PortRange::Any.bind(7, Ok).unwrap(), 0);
    }
}
