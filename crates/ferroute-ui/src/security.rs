//! Protection against web pages of other sites, including names that resolve to this address.
//!
//! The page is only for browsers in which its address was opened. A hostile web page in the same browser can send
//! requests to it, but can neither read the responses nor set headers, unless the name of the hostile site resolves to
//! this address (DNS rebinding). Names other than `localhost` are therefore refused, and actions require a token in a
//! header.

use std::net::{IpAddr, SocketAddr};

use axum::http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
    uri::Authority,
};
use data_encoding::HEXLOWER;

/// The headers of all responses.
pub(crate) const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    // Another version of the program may answer at the same address tomorrow.
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Permission for actions, which only the user who started the command has.
#[derive(Clone, Debug)]
pub(crate) struct Token(String);

impl Token {
    /// Creates a token of 128 random bits.
    ///
    /// # Errors
    /// If the kernel's random numbers cannot be read.
    pub(crate) fn random() -> std::io::Result<Self> {
        use std::io::Read;
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(HEXLOWER.encode(&bytes)))
    }

    /// Returns the token as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Reports whether a request has the token, in a time that does not depend on the number of correct characters.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        let Some(got) = headers.get(TOKEN_HEADER) else { return false };
        let (got, want) = (got.as_bytes(), self.0.as_bytes());
        got.len() == want.len() && got.iter().zip(want).fold(0, |bits, (a, b)| bits | (a ^ b)) == 0
    }
}

/// The header with the token.
pub(crate) const TOKEN_HEADER: &str = "x-ferroute-token";

/// Reports whether the `Host` of a request cannot be that of another site: `localhost`, or an address instead of a
/// name.
pub(crate) fn is_own_host(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let Some(authority) = host.and_then(|host| host.parse::<Authority>().ok()) else { return false };
    let name = authority.host();
    name == "localhost" || name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
}

/// Returns the URL of the page.
pub(crate) fn url(address: SocketAddr, token: Option<&Token>) -> String {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    let fragment = token.map(|token| format!("#token={}", token.as_str())).unwrap_or_default();
    format!("http://{address}/{fragment}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn only_addresses_and_localhost_are_own_hosts() {
        for host in ["localhost", "localhost:8249", "127.0.0.1:8249", "[::1]:8249", "192.0.2.1"] {
            assert!(is_own_host(&headers("host", host)), "{host}");
        }
        for host in ["", "example.org", "127.0.0.1.example.org:8249", "localhost.example.org"] {
            assert!(!is_own_host(&headers("host", host)), "{host}");
        }
        assert!(!is_own_host(&HeaderMap::new()));
    }

    #[test]
    fn only_the_whole_token_permits() {
        let token = Token::random().unwrap();
        assert_eq!(token.as_str().len(), 32);
        assert!(token.is_in(&headers(TOKEN_HEADER, token.as_str())));
        assert!(!token.is_in(&headers(TOKEN_HEADER, &token.as_str()[1..])));
        assert!(!token.is_in(&headers(TOKEN_HEADER, Token::random().unwrap().as_str())));
        assert!(!token.is_in(&HeaderMap::new()));
    }

    #[test]
    fn url_of_all_addresses_is_the_loopback_address() {
        assert_eq!(url("[::]:1".parse().unwrap(), None), "http://[::1]:1/");
        assert_eq!(url("192.0.2.1:1".parse().unwrap(), None), "http://192.0.2.1:1/");
        let token = Token("ab".to_owned());
        assert_eq!(url("0.0.0.0:1".parse().unwrap(), Some(&token)), "http://127.0.0.1:1/#token=ab");
    }
}
