//! The client library's parts put together as a proxy needs them.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use http::{HeaderValue, Uri};
use hyper::rt::{Read, Write};
use hyper_util::{
    client::legacy::{
        self,
        connect::{
            Connection, HttpConnector,
            proxy::{SocksV5, Tunnel},
        },
    },
    rt::TokioExecutor,
};
use kube_client::{
    Client, Config,
    client::{Body, ConfigExt},
};
use tower::{BoxError, Service, ServiceBuilder};

use crate::proxy;

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    /// The credentials, the CA or the server's name are not good.
    #[error(transparent)]
    Library(#[from] kube_client::Error),
    /// The proxy on the way to the server is to be spoken to in a way that is not known, such as `https`.
    #[error(
        "cannot speak to the proxy {0}: give one as http:// (which then sees only TLS), socks5:// or socks5h://, in the \
         kubeconfig's proxy-url or HTTPS_PROXY, or list the server in NO_PROXY"
    )]
    Proxy(Uri),
}

/// Makes a client. Runs the program that gives credentials if the kubeconfig names one, so it may take a while. Needs
/// tokio's context.
pub(crate) fn build(config: &Config) -> Result<Client, BuildError> {
    let mut http = HttpConnector::new();
    // The scheme is `https` where TLS comes on top.
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    // Most of the time nothing is sent for minutes. So a server that has vanished shows in about a minute.
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE / 3));
    http.set_keepalive_retries(Some(3));
    http.set_tcp_user_timeout(Some(2 * KEEPALIVE));
    let environment = |name: &str| std::env::var(name).ok();
    let Some(found) = proxy::find(&config.cluster_url, config.proxy_url.as_ref(), environment) else {
        return stack(config, http);
    };
    let uri = found.uri().clone();
    match uri.scheme_str() {
        Some("http") => {
            let tunnel = Tunnel::new(uri, http);
            stack(config, found.basic_auth().into_iter().cloned().fold(tunnel, Tunnel::with_auth))
        }
        Some("socks5" | "socks5h") => {
            let socks = SocksV5::new(uri, http);
            let auth = found.raw_auth().map(|(user, password)| (user.to_owned(), password.to_owned()));
            stack(config, auth.into_iter().fold(socks, |socks, (user, password)| socks.with_auth(user, password)))
        }
        _ => Err(BuildError::Proxy(uri)),
    }
}

/// The library's own stack also logs each failure as an error and retries by itself; both are done better by who knows
/// what the request was for.
fn stack<C>(config: &Config, connector: C) -> Result<Client, BuildError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let https = config.rustls_https_connector_with_connector(connector)?;
    let hyper: legacy::Client<_, Body> =
        legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(BUFFER).build(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(hyper);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// A token in a file that somebody renews, as the kubelet does for service accounts. It is read for every request, of
/// which there are a few per minute.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    /// Used while the file cannot be read.
    last: Mutex<Option<HeaderValue>>,
}

/// The token cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What the file holds is no token.
    #[error("the token file {} holds no token", path.display())]
    NoToken {
        /// The file.
        path: PathBuf,
    },
}

impl TokenFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, last: Mutex::new(None) }
    }

    /// The value of the header `authorization`.
    ///
    /// # Errors
    ///
    /// The file cannot be read or holds no token, and never did.
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

/// Longest time for a TCP connection to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// Quiet time after which the kernel asks whether the other side is still there; client-go's value.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Bytes read at a time. Objects may be longer.
const BUFFER: usize = 64 << 10;
