//! Upper bounds of histograms, in seconds, as kube-proxy has them: a dashboard's quantiles are the same for both.

/// For the time that a sync takes: 1 ms, doubled 14 times, up to 16 s.
pub(crate) fn sync() -> Vec<f64> {
    (0..15).map(|power| f64::from(1_u32 << power) / 1000.0).collect()
}

/// For the time from a change in the cluster to the rule: fine up to a minute, coarse up to five.
pub(crate) fn programming() -> Vec<f64> {
    let seconds = (1..60).chain((60..=115).step_by(5)).chain((120..=300).step_by(30)).map(f64::from);
    [0.25, 0.5].into_iter().chain(seconds).collect()
}

/// For requests to the API server.
pub(crate) fn requests() -> Vec<f64> {
    vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0]
}

#[cfg(test)]
mod tests {
    #[test]
    fn bounds_are_those_of_kube_proxy() {
        let sync = super::sync();
        assert_eq!((sync.len(), sync[0], sync[14]), (15, 0.001, 16.384));
        let programming = super::programming();
        assert_eq!(programming.len(), 2 + 59 + 12 + 7);
        assert_eq!(programming[..4], [0.25, 0.5, 1.0, 2.0]);
        assert_eq!(programming[60..63], [59.0, 60.0, 65.0]);
        assert_eq!(programming[72..], [115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0]);
        assert!(programming.is_sorted_by(|a, b| a < b));
    }
}
