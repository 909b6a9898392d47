//! The HTTP client: `kube-client`'s parts with Ferroute's connection settings and proxies.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ferroute_host::run_blocking;
use http::{Request, Uri, uri};
use hyper::rt::{Read, Write};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        self,
        connect::{
            Connection, HttpConnector,
            dns::Name,
            proxy::{SocksV5, Tunnel},
        },
    },
    rt::TokioExecutor,
};
use kube_client::{
    Client, Config,
    client::{Body, ConfigExt},
    config::AuthInfo,
};
use rustls::pki_types::ServerName;
use tokio::sync::Notify;
use tower::{BoxError, Service, ServiceBuilder};

use crate::{
    client_certificate::{CertificateError, ClientCertificate},
    error::{ApiError, Cause},
    proxy::{Proxy, ProxyError, Scheme},
    server_certificate,
};

/// The HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    /// The CA is invalid.
    #[error(transparent)]
    Library(#[from] kube_client::Error),
    /// There is no CA to verify with.
    #[error(transparent)]
    Authorities(#[from] rustls::client::VerifierBuilderError),
    /// The client certificate or its key cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The name of the server is invalid.
    #[error("invalid tls-server-name {0:?} in the kubeconfig")]
    ServerName(String),
    /// The proxy cannot be used.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

/// Builds a client. It reads certificates from files. Needs tokio's context.
pub(crate) fn build(config: &Config, proxy: Option<&str>, keepalive: Duration) -> Result<Client, BuildError> {
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
    let Some(proxy) = Proxy::find(&config.cluster_url, proxy, environment)? else {
        return stack(config, http);
    };
    match proxy.scheme {
        Scheme::Http => {
            let tunnel = Tunnel::new(proxy.uri.clone(), https(&for_proxy(config, &proxy.uri), http)?);
            stack(config, proxy.basic_auth().into_iter().fold(tunnel, Tunnel::with_auth))
        }
        Scheme::Socks5 => {
            let socks = SocksV5::new(proxy.uri.clone(), http);
            let auth = proxy.raw_auth();
            stack(config, auth.into_iter().fold(socks, |socks, (user, password)| socks.with_auth(user, password)))
        }
    }
}

/// Returns the configuration of TLS to a proxy that is reached by `https`: as in kube-proxy, with the kubeconfig's
/// authorities. The configured server name and client certificate are only for the server.
fn for_proxy(config: &Config, proxy: &Uri) -> Config {
    let mut config = config.clone();
    config.cluster_url = proxy.clone();
    config.tls_server_name = None;
    config.auth_info = AuthInfo::default();
    config
}

/// Resolves a host name. The library's resolver uses tokio's blocking pool, which panics if no thread can be started.
#[expect(clippy::disallowed_methods, reason = "it has a thread of its own")]
async fn resolve(name: Name) -> io::Result<std::vec::IntoIter<SocketAddr>> {
    run_blocking("resolver", move || (name.as_str(), 0).to_socket_addrs()).await?
}

/// Replaces the library's stack, which also retries requests and logs each failure as an error; both depend on the
/// purpose of the request.
fn stack<C>(config: &Config, connector: C) -> Result<Client, BuildError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let https = https(config, connector)?;
    let hyper: legacy::Client<_, Body> =
        legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(READ_BUFFER).build(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(hyper);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Returns the addresses to which a client with this configuration connects: those of the proxy, or of the server.
#[expect(clippy::disallowed_methods, reason = "it has a thread of its own")]
pub(crate) async fn addresses(config: &Config, proxy: Option<&str>) -> io::Result<Vec<SocketAddr>> {
    let environment = |name: &str| std::env::var(name).ok();
    let proxy = Proxy::find(&config.cluster_url, proxy, environment).map_err(io::Error::other)?;
    let uri = proxy.map_or_else(|| config.cluster_url.clone(), |proxy| proxy.uri);
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let mut addresses: Vec<SocketAddr> =
        run_blocking("resolver", move || (host.as_str(), port).to_socket_addrs()).await??.collect();
    // Name servers rotate them.
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Returns a channel that is notified when a server has sent an unusual number of interim responses. They are not
/// passed on, so a server that sends only such responses would keep this process busy until the end of the request.
pub(crate) fn too_many_interim_responses<B>(request: &mut Request<B>) -> Arc<Notify> {
    let (too_many, received) = (Arc::new(Notify::new()), AtomicU64::new(0));
    let notified = Arc::clone(&too_many);
    hyper::ext::on_informational(request, move |_| {
        if received.fetch_add(1, Ordering::Relaxed) >= MAX_INTERIM_RESPONSES {
            too_many.notify_one();
        }
    });
    notified
}

pub(crate) fn endless_interim_responses(url: &str) -> ApiError {
    let cause = Cause::text(format!("it has sent {MAX_INTERIM_RESPONSES} interim responses (1xx), and no other one"));
    ApiError::Unreachable { url: url.to_owned(), cause }
}

/// Adds TLS to a connector, with the certificates of the kubeconfig. In a pod and without a CA, the library's verification applies.
fn https<C>(config: &Config, connector: C) -> Result<HttpsConnector<C>, BuildError> {
    let mut config = config.clone();
    let certificate = ClientCertificate::take_from(&mut config.auth_info)?;
    // The library would look for another certificate in them.
    config.auth_info = AuthInfo::default();
    let of_kubeconfig = config.root_cert.as_mut().filter(|_| config.root_cert_file.is_none());
    let trusted = of_kubeconfig.map(|certificates| {
        server_certificate::retain_parsable(certificates);
        certificates.clone()
    });
    let is_verified = config.cluster_url.scheme() == Some(&uri::Scheme::HTTPS) && !config.accept_invalid_certs;
    if !is_verified && config.root_cert_file.is_none() {
        // Without authorities, the library reads the system's, which a small image may lack.
        config.root_cert.get_or_insert_default();
    }
    let mut tls = config.rustls_client_config()?;
    if let Some(trusted) = trusted {
        server_certificate::trust(&mut tls, trusted)?;
    }
    if let Some(certificate) = certificate {
        tls.client_auth_cert_resolver = certificate.resolver(tls.crypto_provider())?;
    }
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = config.tls_server_name {
        let name = ServerName::try_from(name.clone()).map_err(|_| BuildError::ServerName(name))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_http1().wrap_connector(connector))
}

/// Maximum number of interim responses; API servers send none.
const MAX_INTERIM_RESPONSES: u64 = 100;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes read at a time. Objects may be longer.
const READ_BUFFER: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Runs itself in a process where the system has no certificates.
    #[tokio::test]
    async fn certificates_of_the_system_are_read_only_to_verify() {
        const NONE: [(&str, &str); 2] = [("SSL_CERT_FILE", "/dev/null"), ("SSL_CERT_DIR", "/dev/null")];
        if std::env::var_os(NONE[0].0).is_none_or(|file| file != NONE[0].1) {
            let test = "http_client::tests::certificates_of_the_system_are_read_only_to_verify";
            let mut command = Command::new(std::env::current_exe().unwrap());
            let output = command.args(["--exact", test]).envs(NONE).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        let is_built = |url: &str, accept_invalid_certs, proxy| {
            let mut config = Config::new(url.parse().unwrap());
            config.accept_invalid_certs = accept_invalid_certs;
            build(&config, proxy, Duration::from_secs(30)).is_ok()
        };
        assert!(is_built("http://192.0.2.1", false, None));
        assert!(is_built("https://192.0.2.1", true, None));
        assert!(is_built("http://192.0.2.1", false, Some("http://192.0.2.2")));
        assert!(!is_built("https://192.0.2.1", false, None));
        assert!(!is_built("http://192.0.2.1", false, Some("https://192.0.2.2")));
    }
}
