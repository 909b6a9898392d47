//! Compressed bodies, for clients that accept gzip.

use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};
use hyper::{HeaderMap, header::ACCEPT_ENCODING};

/// Reports whether a request accepts gzip, and prefers it to an uncompressed response: `gzip`, `gzip;q=0.5`, but not
/// `gzip;q=0` or `identity, gzip`.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let weight_of = |name: &str| {
        let lists = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let weights = lists.flat_map(|list| list.split(',')).filter_map(|encoding| {
            let (encoding, weight) = encoding.split_once(';').unwrap_or((encoding, ""));
            let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
            encoding.trim().eq_ignore_ascii_case(name).then_some(weight.unwrap_or(1.0))
        });
        weights.fold(0.0, f32::max)
    };
    weight_of("gzip") > weight_of("identity")
}

/// Compresses a body.
///
/// # Errors
/// Those of the encoder; none are known for a body in memory.
pub fn gzip(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn gzip_is_accepted_by_name_and_weight() {
        let accepts = |value| accepts_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]));
        for value in ["gzip", "br, GZIP", "deflate,gzip;q=0.5", "gzip, identity;q=0.5"] {
            assert!(accepts(value), "{value}");
        }
        for value in ["", "br", "*", "gzip;q=0", "gzip; q=0.0", "identity, gzip", "gzip;q=0.5, identity"] {
            assert!(!accepts(value), "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
