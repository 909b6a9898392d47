//! HTTP and SOCKS proxies on the way to the API server, as the kubeconfig or the environment names them.
//!
//! kubeadm hands the environment's proxy settings on to kube-proxy. The client library holds `NO_PROXY` against the
//! proxy's address instead of the API server's, and passes over the environment inside a cluster; so this is done here.

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// The proxy for `url`, if any. The kubeconfig's goes before those of the environment, and no exceptions apply to it.
pub(crate) fn find(
    url: &Uri,
    kubeconfig: Option<&Uri>,
    environment: impl Fn(&str) -> Option<String>,
) -> Option<Intercept> {
    if let Some(proxy) = kubeconfig {
        return Matcher::builder().all(proxy.to_string()).build().intercept(url);
    }
    if is_this_host(url.host()?) {
        return None;
    }
    let variable = |name: &str| environment(name).or_else(|| environment(&name.to_lowercase())).unwrap_or_default();
    Matcher::builder()
        .http(variable("HTTP_PROXY"))
        .https(variable("HTTPS_PROXY"))
        .no(variable("NO_PROXY"))
        .build()
        .intercept(url)
}

/// As in Go, the environment's proxies are never asked for the host itself.
fn is_this_host(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The proxy for `url` with these variables set.
    fn proxy(url: &str, kubeconfig: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        let environment =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let kubeconfig = kubeconfig.map(|proxy| proxy.parse().unwrap());
        find(&url.parse().unwrap(), kubeconfig.as_ref(), environment).map(|found| found.uri().to_string())
    }

    #[test]
    fn the_environment_names_a_proxy_per_scheme_in_either_spelling() {
        let variables = [("HTTPS_PROXY", "http://secure:1"), ("http_proxy", "plain:2")];
        assert_eq!(proxy("https://10.0.0.1:6443", None, &variables).as_deref(), Some("http://secure:1/"));
        assert_eq!(proxy("http://10.0.0.1:8001", None, &variables).as_deref(), Some("http://plain:2/"));
        assert_eq!(proxy("https://10.0.0.1:6443", None, &[]), None);
    }

    #[test]
    fn no_proxy_is_for_the_address_of_the_server() {
        let variables = [("HTTPS_PROXY", "http://proxy:1"), ("NO_PROXY", ".cluster.local,10.0.0.0/8")];
        assert_eq!(proxy("https://10.0.0.1:6443", None, &variables), None);
        assert_eq!(proxy("https://api.cluster.local", None, &variables), None);
        assert_eq!(proxy("https://192.0.2.1", None, &variables).as_deref(), Some("http://proxy:1/"));
    }

    #[test]
    fn the_host_itself_needs_no_proxy() {
        let variables = [("HTTPS_PROXY", "http://proxy:1")];
        for url in ["https://localhost:6443", "https://127.0.0.1:6443", "https://[::1]:6443"] {
            assert_eq!(proxy(url, None, &variables), None, "{url}");
        }
    }

    #[test]
    fn the_kubeconfig_goes_before_the_environment() {
        let variables = [("HTTPS_PROXY", "http://proxy:1"), ("NO_PROXY", "*")];
        let found = proxy("https://10.0.0.1:6443", Some("socks5://other:1080"), &variables);
        assert_eq!(found.as_deref(), Some("socks5://other:1080/"));
    }
}
