//! The address of the API server and the credentials: from a kubeconfig, the pod's service account, or `--master`.

mod check;
mod file;
mod in_cluster;

use std::path::{Path, PathBuf};

use ferroute_config::ClientConnectionConfiguration;
use http::{Uri, uri::Scheme};
use kube_client::{
    Config,
    config::{AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use percent_encoding::percent_decode_str;
use secrecy::ExposeSecret;

use crate::{
    client_certificate::{is_unset_path, without_white_space},
    error::Cause,
    plugin::Plugin,
};

/// The configuration of the connection. Its files are read again after a failure, because certificates, keys and
/// addresses change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A kubeconfig; `master` takes precedence over its address.
    Kubeconfig { path: PathBuf, master: Option<String> },
    /// An address without credentials, as for `kubectl proxy`.
    Address(String),
    /// The service account of this pod.
    InCluster,
    /// The kubeconfig of a user, as kubectl finds it.
    User(UserAccess),
}

/// The access of a user, by the flags of kubectl.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserAccess {
    /// The file; by default, those in the variable `KUBECONFIG`, or `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// The context, instead of the current one.
    pub context: Option<String>,
    /// The cluster, instead of that of the context.
    pub cluster: Option<String>,
    /// The user, instead of that of the context.
    pub user: Option<String>,
    /// The user to impersonate.
    pub impersonate: Option<String>,
    /// The groups to impersonate.
    pub impersonate_groups: Vec<String>,
}

impl UserAccess {
    /// Returns the file or files, for error messages.
    fn path(&self) -> PathBuf {
        let default = || std::env::var_os("KUBECONFIG").unwrap_or_else(|| "~/.kube/config".into()).into();
        self.kubeconfig.clone().unwrap_or_else(default)
    }

    async fn load(&self) -> Result<Parsed, Cause> {
        let kubeconfig = match &self.kubeconfig {
            Some(path) => file::read(path),
            None => Kubeconfig::read(),
        };
        let kubeconfig = kubeconfig.map_err(cause)?;
        let options =
            KubeConfigOptions { context: self.context.clone(), cluster: self.cluster.clone(), user: self.user.clone() };
        let mut parsed = from_parsed(kubeconfig, None, &options).await?;
        let user = &mut parsed.config.auth_info;
        if self.impersonate.is_some() {
            user.impersonate.clone_from(&self.impersonate);
        }
        if !self.impersonate_groups.is_empty() {
            user.impersonate_groups = Some(self.impersonate_groups.clone());
        }
        Ok(parsed)
    }
}

/// The contents of the files.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// Addresses, certificates and credentials, without the proxy.
    pub(crate) config: Config,
    /// The name of the user in the kubeconfig, for error messages.
    pub(crate) user: String,
    /// The proxy of the kubeconfig.
    pub(crate) proxy: Option<String>,
    /// Credential plugin, whose credentials are not in `config`.
    pub(crate) plugin: Option<Plugin>,
    /// The file with the bearer token.
    pub(crate) token_file: Option<PathBuf>,
    /// What is configured but not used, and why.
    pub(crate) warning: Option<String>,
}

/// The connection to the API server cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig is invalid.
    #[error("cannot load the kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// The address is invalid.
    #[error("invalid API server address {address:?}")]
    Address {
        /// The address.
        address: String,
        /// The cause.
        #[source]
        source: http::uri::InvalidUri,
    },
    /// There is no configuration, and no service account.
    #[error("no kubeconfig or API server address is configured, and this is not a pod with a service account")]
    InCluster(#[source] Cause),
}

impl Access {
    /// Returns the access of the configuration and `--master`; empty values count as unset.
    pub(crate) fn new(connection: &ClientConnectionConfiguration, master: Option<&str>) -> Self {
        let master = master.filter(|master| !master.is_empty()).map(str::to_owned);
        match (connection.kubeconfig.as_str(), master) {
            ("", None) => Self::InCluster,
            ("", Some(address)) => Self::Address(address),
            (path, master) => Self::Kubeconfig { path: path.into(), master },
        }
    }

    /// Returns the error for a kubeconfig that can be read.
    fn invalid(&self, source: Cause) -> AccessError {
        let path = match self {
            Self::Kubeconfig { path, .. } => path.clone(),
            Self::User(user) => user.path(),
            Self::InCluster | Self::Address(_) => PathBuf::new(),
        };
        AccessError::Kubeconfig { path, source }
    }

    /// Reads the files. Credential plugins are not run yet.
    ///
    /// # Errors
    ///
    /// A file is missing or invalid.
    pub(crate) async fn load(&self) -> Result<Loaded, AccessError> {
        let Parsed { mut config, user, proxy, mut warning } = match self {
            Self::InCluster => in_cluster::load(|name| std::env::var(name).ok(), &in_cluster::directory())
                .map_err(AccessError::InCluster)?,
            Self::Address(address) => {
                let url = with_scheme(address).parse();
                let url = url.map_err(|source| AccessError::Address { address: address.clone(), source })?;
                Parsed::of(Config::new(url))
            }
            Self::Kubeconfig { path, master } => from_kubeconfig(path, master.as_deref())
                .await
                .map_err(|source| AccessError::Kubeconfig { path: path.clone(), source })?,
            Self::User(user) => {
                user.load().await.map_err(|source| AccessError::Kubeconfig { path: user.path(), source })?
            }
        };
        check::check(&config, &user).map_err(|cause| self.invalid(cause))?;
        // As in client-go, credentials are for servers that TLS identifies.
        if config.cluster_url.scheme() != Some(&Scheme::HTTPS) {
            if has_credentials(&config.auth_info) {
                warning = Some(
                    "the credentials of the kubeconfig are not used, because the server's URL is not https".into(),
                );
            }
            config.auth_info = without_credentials(config.auth_info);
        }
        // As in Go, these take precedence, and the URL is not printed with them.
        if let Some((username, password)) = take_user_info(&mut config.cluster_url) {
            config.auth_info.username = Some(username);
            config.auth_info.password = Some(password.into());
            config.auth_info.token_file = None;
        }
        // Requests are few, so the token is read for each of them; see `TokenFile`.
        let token_file = config.auth_info.token_file.take();
        // The reflectors retry.
        config.default_retry = false;
        let plugin = Plugin::take_from(&mut config.auth_info);
        Ok(Loaded { config, user, proxy, plugin, token_file: token_file.map(PathBuf::from), warning })
    }
}

/// The parts of a kubeconfig that are in use.
struct Parsed {
    config: Config,
    /// The name of the user; empty if there is none.
    user: String,
    /// The proxy of the kubeconfig.
    proxy: Option<String>,
    /// What is not used, and why.
    warning: Option<String>,
}

impl Parsed {
    /// Returns a configuration that is not from a kubeconfig.
    fn of(config: Config) -> Self {
        Self { config, user: String::new(), proxy: None, warning: None }
    }
}

async fn from_kubeconfig(path: &Path, master: Option<&str>) -> Result<Parsed, Cause> {
    from_parsed(file::read(path).map_err(cause)?, master, &KubeConfigOptions::default()).await
}

async fn from_parsed(
    mut kubeconfig: Kubeconfig,
    master: Option<&str>,
    options: &KubeConfigOptions,
) -> Result<Parsed, Cause> {
    check::check_names(&kubeconfig)?;
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        normalize_cluster(cluster);
        let server = master.map(str::to_owned).or_else(|| cluster.server.clone());
        cluster.server = server.map(|server| with_scheme(&server));
    }
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        normalize_user(user);
    }
    let proxy = proxy_url(&kubeconfig, options);
    let user = user_name(&kubeconfig, options);
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        // Keeps the library from parsing the proxy of the environment; see `crate::proxy`.
        cluster.proxy_url = Some("http://unused".to_owned());
    }
    let authority = authority(&kubeconfig, options);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, options).await.map_err(cause)?;
    config.proxy_url = None;
    if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
        return Err(Cause::text(format!("{authority} contains no certificate in PEM")));
    }
    Ok(Parsed { config, user, proxy, warning: None })
}

/// Treats empty values as unset and accepts wrapped base64, as client-go does.
fn normalize_cluster(cluster: &mut Cluster) {
    let Cluster { server, certificate_authority, certificate_authority_data, tls_server_name, .. } = cluster;
    for text in [server, &mut *certificate_authority_data, tls_server_name] {
        text.take_if(|text| text.is_empty());
    }
    certificate_authority.take_if(|path| is_unset_path(path));
    if let Some(data) = certificate_authority_data {
        *data = without_white_space(data);
    }
}

/// Treats empty values as unset, as client-go does. Those of the client certificate are handled where they are read.
fn normalize_user(user: &mut AuthInfo) {
    let AuthInfo { username, password, token, token_file, impersonate, .. } = user;
    for text in [username, impersonate] {
        text.take_if(|text| text.is_empty());
    }
    for secret in [password, token] {
        secret.take_if(|secret| secret.expose_secret().is_empty());
    }
    token_file.take_if(|path| is_unset_path(path));
}

/// Returns the selected context, or the current one.
fn context<'a>(kubeconfig: &'a Kubeconfig, options: &KubeConfigOptions) -> Option<&'a Context> {
    let name = options.context.as_deref().or(kubeconfig.current_context.as_deref())?;
    kubeconfig.contexts.iter().find(|context| context.name == name)?.context.as_ref()
}

/// Returns the name of the selected user, or of that of the current context; empty if there is none.
fn user_name(kubeconfig: &Kubeconfig, options: &KubeConfigOptions) -> String {
    let of_context = || context(kubeconfig, options)?.user.clone();
    options.user.clone().or_else(of_context).unwrap_or_default()
}

/// Returns the error of the library with its causes, which its text contains already.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn cause(error: KubeconfigError) -> Cause {
    Cause::whole(&error)
}

/// Returns the certificates among the sections of a file in PEM, or why there are none.
fn certificates(text: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let sections = pem::parse_many(text).map_err(|error| error.to_string())?;
    let certificates = sections.into_iter().filter(|section| section.tag() == "CERTIFICATE");
    let certificates: Vec<_> = certificates.map(pem::Pem::into_contents).collect();
    if certificates.is_empty() { Err("it contains no certificate in PEM".to_owned()) } else { Ok(certificates) }
}

/// Returns the origin of the certificate authority of the selected cluster, for error messages.
fn authority(kubeconfig: &Kubeconfig, options: &KubeConfigOptions) -> String {
    match cluster(kubeconfig, options) {
        Some(Cluster { certificate_authority: Some(path), certificate_authority_data: None, .. }) => {
            format!("the certificate-authority {path}")
        }
        _ => "the certificate-authority-data".to_owned(),
    }
}

/// Returns the selected cluster, or that of the current context.
fn cluster<'a>(kubeconfig: &'a Kubeconfig, options: &KubeConfigOptions) -> Option<&'a Cluster> {
    let of_context = || Some(context(kubeconfig, options)?.cluster.as_str());
    let name = options.cluster.as_deref().or_else(of_context)?;
    kubeconfig.clusters.iter().find(|cluster| cluster.name == name)?.cluster.as_ref()
}

/// Returns the `proxy-url` of the selected cluster, or that of the current context.
fn proxy_url(kubeconfig: &Kubeconfig, options: &KubeConfigOptions) -> Option<String> {
    cluster(kubeconfig, options)?.proxy_url.clone().filter(|url| !url.is_empty())
}

/// Adds the scheme to an address without one: as in client-go, `http`, also if the kubeconfig configures TLS.
fn with_scheme(address: &str) -> String {
    if address.contains("://") { address.to_owned() } else { format!("http://{address}") }
}

/// Takes the user name and the password out of a URL.
fn take_user_info(url: &mut Uri) -> Option<(String, String)> {
    let mut parts = url.clone().into_parts();
    let authority = parts.authority.as_ref()?.as_str();
    let (user_info, host) = authority.rsplit_once('@')?;
    let (username, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let user_info = (decode(username), decode(password));
    parts.authority = Some(host.parse().ok()?);
    *url = Uri::from_parts(parts).ok()?;
    Some(user_info)
}

/// Returns what is sent without TLS: the user to impersonate.
fn without_credentials(user: AuthInfo) -> AuthInfo {
    let AuthInfo { impersonate, impersonate_uid, impersonate_groups, impersonate_user_extra, .. } = user;
    AuthInfo { impersonate, impersonate_uid, impersonate_groups, impersonate_user_extra, ..AuthInfo::default() }
}

/// Reports whether a user has secrets.
fn has_credentials(user: &AuthInfo) -> bool {
    let AuthInfo { username, password, token, token_file, auth_provider, exec, .. } = user;
    username.is_some()
        || password.is_some()
        || token.is_some()
        || token_file.is_some()
        || auth_provider.is_some()
        || exec.is_some()
}

#[cfg(test)]
mod tests;
