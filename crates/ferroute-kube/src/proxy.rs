//! The proxy between this node and the API server: of the kubeconfig, or of the environment, which kubeadm passes to kube-proxy.
//!
//! Both are read like in Go's `net/http` and `golang.org/x/net/http/httpproxy`, so that settings for kube-proxy work
//! unchanged. The matcher of hyper-util, which follows curl, has no `*` for addresses and no ports in `NO_PROXY`.

mod exceptions;

use data_encoding::BASE64;
use http::{HeaderValue, Uri, uri::Authority};
use percent_encoding::percent_decode_str;

use self::exceptions::Exceptions;

/// A proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) scheme: Scheme,
    /// Scheme, host and port.
    pub(crate) uri: Uri,
    credentials: Option<Credentials>,
}

/// Method to connect through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// `CONNECT` of HTTP, by TLS if the URI's scheme is `https`.
    Http,
    /// SOCKS 5; the proxy resolves names.
    Socks5,
}

/// User and password.
struct Credentials {
    user: String,
    password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The proxy cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    /// The scheme is not supported.
    #[error(
        "unsupported proxy {0}: use http://, https://, socks5:// or socks5h:// in the kubeconfig's proxy-url or HTTPS_PROXY, or \
         list the server in NO_PROXY"
    )]
    Scheme(String),
    /// The proxy is not a URL. The text may contain a password.
    #[error("the proxy of the kubeconfig is not a URL with a host, such as http://proxy.example:3128")]
    Invalid,
}

impl Proxy {
    /// Returns the proxy for `url`, if any. The proxy in the kubeconfig takes precedence over the environment, and
    /// `NO_PROXY` does not apply to it.
    ///
    /// # Errors
    ///
    /// The proxy in the kubeconfig is not a URL, or its scheme is not supported.
    pub(crate) fn find(
        url: &Uri,
        kubeconfig: Option<&str>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, ProxyError> {
        if let Some(text) = kubeconfig {
            return Self::parse(text).map(Some);
        }
        let variable = |name: &str| {
            let value = |name: &str| environment(name).filter(|value| !value.is_empty());
            value(name).or_else(|| value(&name.to_lowercase()))
        };
        let (name, default_port) = match url.scheme_str() {
            Some("https") => ("HTTPS_PROXY", 443),
            _ => ("HTTP_PROXY", 80),
        };
        let Some(text) = variable(name) else { return Ok(None) };
        let exceptions = Exceptions::parse(&variable("NO_PROXY").unwrap_or_default());
        if exceptions.contains(url.host().unwrap_or_default(), url.port_u16().unwrap_or(default_port)) {
            return Ok(None);
        }
        // As in Go, text that is not a URL without a scheme is parsed with `http`.
        let text = if text.contains("://") { text } else { format!("http://{text}") };
        match Self::parse(&text) {
            // Go ignores it without a word.
            Err(ProxyError::Invalid) => {
                tracing::warn!("{name} is not a URL with a host, such as http://proxy.example:3128; using no proxy");
                Ok(None)
            }
            proxy => proxy.map(Some),
        }
    }

    fn parse(text: &str) -> Result<Self, ProxyError> {
        let (scheme, rest) = text.trim().split_once("://").ok_or(ProxyError::Invalid)?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        // Passwords may contain an unescaped `@`.
        let (user_info, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        let host: Authority = host.parse().map_err(|_| ProxyError::Invalid)?;
        if host.host().is_empty() {
            return Err(ProxyError::Invalid);
        }
        let (scheme, name, default_port) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (Scheme::Http, "http", 80),
            "https" => (Scheme::Http, "https", 443),
            "socks5" | "socks5h" => (Scheme::Socks5, "socks5", 1080),
            other => return Err(ProxyError::Scheme(format!("{other}://{host}"))),
        };
        let port = match &host.as_str()[host.host().len()..] {
            "" | ":" => default_port,
            port => port[1..].parse().map_err(|_| ProxyError::Invalid)?,
        };
        let authority = format!("{}:{port}", host.host());
        let uri = Uri::builder().scheme(name).authority(authority).path_and_query("/").build();
        let uri = uri.map_err(|_| ProxyError::Invalid)?;
        Ok(Self { scheme, uri, credentials: user_info.map(Credentials::parse) })
    }

    /// Returns the header with user and password, if there are any.
    pub(crate) fn basic_auth(&self) -> Option<HeaderValue> {
        let Credentials { user, password } = self.credentials.as_ref()?;
        let text = format!("Basic {}", BASE64.encode(format!("{user}:{password}").as_bytes()));
        let mut header = HeaderValue::from_str(&text).ok()?;
        header.set_sensitive(true);
        Some(header)
    }

    /// Returns user and password, if there are any.
    pub(crate) fn raw_auth(&self) -> Option<(String, String)> {
        self.credentials.as_ref().map(|Credentials { user, password }| (user.clone(), password.clone()))
    }
}

impl Credentials {
    /// Parses `USER[:PASSWORD]`, where special characters may be escaped.
    fn parse(text: &str) -> Self {
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        Self { user: decode(user), password: decode(password) }
    }
}

#[cfg(test)]
mod tests;
