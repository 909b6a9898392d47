//! The HTTP client: `kube-client`'s parts with Ferroute's connection settings, proxies and token files.
//!
//! kubeadm passes the environment's proxy settings to kube-proxy. `kube-client` matches `NO_PROXY` against the proxy's
//! address instead of the API server's, and ignores the environment inside a cluster, so proxies are chosen here.

use std::{
    fs, io,
    net::{SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use ferroute_host::run_blocking;
use http::{HeaderValue, Uri};
use hyper::rt::{Read, Write};
use hyper_util::{
    client::{
        legacy::{
            self,
            connect::{
                Connection, HttpConnector,
                dns::Name,
                proxy::{SocksV5, Tunnel},
            },
        },
        proxy::matcher::{Intercept, Matcher},
    },
    rt::TokioExecutor,
};
use kube_client::{
    Client, Config,
    client::{Body, ConfigExt},
};
use tower::{BoxError, Service, ServiceBuilder};

/// The HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    /// The credentials, the CA or the server name are invalid.
    #[error(transparent)]
    Library(#[from] kube_client::Error),
    /// The scheme of the proxy is not supported, such as `https`.
    #[error(
        "unsupported proxy {0}: use http:// (which sees only TLS), socks5:// or socks5h:// in the kubeconfig's proxy-url \
         or HTTPS_PROXY, or list the server in NO_PROXY"
    )]
    UnsupportedProxy(Uri),
}

/// Builds a client. It reads certificates from files. Needs tokio's context.
pub(crate) fn build(config: &Config, keepalive: Duration) -> Result<Client, BuildError> {
    let mut http = HttpConnector::new_with_resolver(tower::service_fn(resolve));
    // TLS comes on top, so the scheme may be `https`.
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    // Watches are idle for minutes; keepalives detect a dead server in twice the time.
    http.set_keepalive(Some(keepalive));
    http.set_keepalive_interval(Some(keepalive / 3));
    http.set_keepalive_retries(Some(3));
    http.set_tcp_user_timeout(Some(2 * keepalive));
    let environment = |name: &str| std::env::var(name).ok();
    let Some(proxy) = find_proxy(&config.cluster_url, config.proxy_url.as_ref(), environment) else {
        return stack(config, http);
    };
    let uri = proxy.uri().clone();
    match uri.scheme_str() {
        Some("http") => {
            let tunnel = Tunnel::new(uri, http);
            stack(config, proxy.basic_auth().into_iter().cloned().fold(tunnel, Tunnel::with_auth))
        }
        Some("socks5" | "socks5h") => {
            let socks = SocksV5::new(uri, http);
            let auth = proxy.raw_auth().map(|(user, password)| (user.to_owned(), password.to_owned()));
            stack(config, auth.into_iter().fold(socks, |socks, (user, password)| socks.with_auth(user, password)))
        }
        _ => Err(BuildError::UnsupportedProxy(uri)),
    }
}

/// Resolves a host name. The library's resolver uses tokio's blocking pool, which panics where no thread can be started.
async fn resolve(name: Name) -> io::Result<std::vec::IntoIter<SocketAddr>> {
    run_blocking("resolver", move || (name.as_str(), 0).to_socket_addrs()).await?
}

/// Replaces the library's own stack, which also retries and logs each failure as an error; both depend on what the
/// request is for.
fn stack<C>(config: &Config, connector: C) -> Result<Client, BuildError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let https = config.rustls_https_connector_with_connector(connector)?;
    let hyper: legacy::Client<_, Body> =
        legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(READ_BUFFER).build(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(hyper);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Returns the proxy for `url`, if any. That of the kubeconfig takes precedence over the environment, and `NO_PROXY` does
/// not apply to it.
fn find_proxy(url: &Uri, kubeconfig: Option<&Uri>, environment: impl Fn(&str) -> Option<String>) -> Option<Intercept> {
    if let Some(proxy) = kubeconfig {
        return Matcher::builder().all(proxy.to_string()).build().intercept(url);
    }
    if is_loopback(url.host()?) {
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

/// As in Go, the environment's proxies do not apply to the loopback interface.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// A token in a file that is renewed, as the kubelet does for service accounts. It is read for every request, of which
/// there are a few per minute.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    /// The last valid token, used while the file cannot be read.
    last: Mutex<Option<HeaderValue>>,
}

/// The token cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token file {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The contents of the file are not a token.
    #[error("the token file {} contains no token", path.display())]
    NoToken { path: PathBuf },
}

impl TokenFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, last: Mutex::new(None) }
    }

    /// Returns the header `authorization`.
    ///
    /// # Errors
    ///
    /// The file cannot be read or contains no token, and never did.
    pub(crate) fn header(&self) -> Result<HeaderValue, TokenError> {
        let mut last = self.last.lock().expect("no code that holds it panics");
        match (read(&self.path), &*last) {
            (Ok(token), _) => Ok(last.insert(token).clone()),
            (Err(_), Some(token)) => Ok(token.clone()),
            (Err(error), None) => Err(error),
        }
    }
}

fn read(path: &Path) -> Result<HeaderValue, TokenError> {
    let text = fs::read_to_string(path).map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
    let no_token = || TokenError::NoToken { path: path.to_owned() };
    let token = Some(text.trim()).filter(|token| !token.is_empty()).ok_or_else(no_token)?;
    let mut header = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| no_token())?;
    header.set_sensitive(true);
    Ok(header)
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes read at a time. Objects may be longer.
const READ_BUFFER: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// The proxy for `url` with these environment variables.
    fn proxy(url: &str, kubeconfig: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        let environment =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let kubeconfig = kubeconfig.map(|proxy| proxy.parse().unwrap());
        find_proxy(&url.parse().unwrap(), kubeconfig.as_ref(), environment).map(|proxy| proxy.uri().to_string())
    }

    #[test]
    fn environment_names_a_proxy_per_scheme_in_upper_or_lower_case() {
        let variables = [("HTTPS_PROXY", "http://secure:1"), ("http_proxy", "plain:2")];
        assert_eq!(proxy("https://10.0.0.1:6443", None, &variables).as_deref(), Some("http://secure:1/"));
        assert_eq!(proxy("http://10.0.0.1:8001", None, &variables).as_deref(), Some("http://plain:2/"));
        assert_eq!(proxy("https://10.0.0.1:6443", None, &[]), None);
    }

    #[test]
    fn no_proxy_is_matched_against_the_api_server() {
        let variables = [("HTTPS_PROXY", "http://proxy:1"), ("NO_PROXY", ".cluster.local,10.0.0.0/8")];
        assert_eq!(proxy("https://10.0.0.1:6443", None, &variables), None);
        assert_eq!(proxy("https://api.cluster.local", None, &variables), None);
        assert_eq!(proxy("https://192.0.2.1", None, &variables).as_deref(), Some("http://proxy:1/"));
    }

    #[test]
    fn loopback_needs_no_proxy() {
        let variables = [("HTTPS_PROXY", "http://proxy:1")];
        for url in ["https://localhost:6443", "https://127.0.0.1:6443", "https://[::1]:6443"] {
            assert_eq!(proxy(url, None, &variables), None, "{url}");
        }
    }

    #[test]
    fn kubeconfig_takes_precedence_over_the_environment() {
        let variables = [("HTTPS_PROXY", "http://proxy:1"), ("NO_PROXY", "*")];
        let proxy = proxy("https://10.0.0.1:6443", Some("socks5://other:1080"), &variables);
        assert_eq!(proxy.as_deref(), Some("socks5://other:1080/"));
    }
}
