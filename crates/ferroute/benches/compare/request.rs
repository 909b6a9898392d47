//! Selection of the measurements.

use std::path::Path;

use crate::common::cluster::Size;

/// A parsed command line.
#[derive(Debug, Default)]
pub(crate) struct Request {
    modes: Vec<&'static str>,
    sizes: Vec<Size>,
    /// Changes per second.
    rates: Vec<u32>,
    /// Whether the clusters of public reports are measured.
    public: bool,
    /// Whether a fake API server is used.
    pub(crate) fake: bool,
}

/// A cluster to measure.
#[derive(Debug)]
pub(crate) struct Measurement {
    pub(crate) size: Size,
    /// Publication of the cluster.
    pub(crate) origin: Option<&'static str>,
    pub(crate) modes: Vec<&'static str>,
    /// Changes per second, one after the other.
    pub(crate) rates: Vec<u32>,
}

impl Request {
    /// Parses the command line: modes, sizes, rates, `public` and `fake`. Arguments that are not given have defaults; `public`
    /// alone selects only the public clusters.
    ///
    /// # Errors
    ///
    /// An argument is not valid, or the kernel does not support ipvs.
    pub(crate) fn parse() -> Result<Self, String> {
        let mut request = Self::default();
        for argument in std::env::args().skip(1).filter(|argument| argument != "--bench") {
            if let Some(mode) = MODES.into_iter().find(|mode| *mode == argument) {
                request.modes.push(mode);
            } else if argument == "public" {
                request.public = true;
            } else if argument == "fake" {
                request.fake = true;
            } else if let Some(rate) =
                argument.strip_suffix("/s").and_then(|rate| rate.parse().ok()).filter(|rate| *rate > 0)
            {
                request.rates.push(rate);
            } else {
                let expected = |problem| format!("{problem}; or a mode, a rate such as 20/s, public or fake");
                request.sizes.push(argument.parse().map_err(expected)?);
            }
        }
        if request.modes.contains(&IPVS) && !has_ipvs() {
            return Err("the kernel has no ipvs (module ip_vs), or its module is not loaded".to_owned());
        }
        if request.sizes.is_empty() && request.rates.is_empty() && !request.public {
            request.public = request.modes.is_empty();
            request.sizes = SIZES.to_vec();
        } else if request.sizes.is_empty() && !request.rates.is_empty() {
            request.sizes = SIZES.to_vec();
        }
        if request.modes.is_empty() {
            request.modes = MODES.into_iter().filter(|mode| *mode != IPVS || has_ipvs()).collect();
        }
        if request.rates.is_empty() {
            request.rates = RATES.to_vec();
        }
        Ok(request)
    }

    /// Returns the clusters to measure, in this order.
    pub(crate) fn measurements(&self) -> Vec<Measurement> {
        let Self { modes, rates, .. } = self;
        let sizes = self.sizes.iter().map(|size| Measurement {
            size: *size,
            origin: None,
            modes: modes.clone(),
            rates: rates.clone(),
        });
        // All were reported of nftables mode.
        let public = PUBLIC.into_iter().filter(|_| self.public).map(|(origin, services, endpoints)| Measurement {
            size: Size::new(services, endpoints),
            origin: Some(origin),
            modes: vec!["nftables"],
            rates: Vec::new(),
        });
        sizes.chain(public).collect()
    }
}

fn has_ipvs() -> bool {
    Path::new("/proc/net/ip_vs").exists()
}

const IPVS: &str = "ipvs";
const MODES: [&str; 3] = ["nftables", IPVS, "iptables"];
const SIZES: [Size; 2] = [Size::new(1_000, 10), Size::new(10_000, 10)];
/// Kubernetes supports 20 changes of EndpointSlices per second.
const RATES: [u32; 2] = [20, 200];
/// Clusters in which kube-proxy was reported to be slow.
const PUBLIC: [(&str, u32, u32); 3] =
    [("kubernetes#130119", 10_000, 2), ("kubernetes#135639", 5_006, 50), ("kubernetes#139513", 44_128, 1)];
