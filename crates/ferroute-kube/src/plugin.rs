//! Credential plugins: programs named by the kubeconfig that print a token or a client certificate.
//!
//! `kube-client` can also run them, but without a deadline, twice for each connection, and while other requests wait.
//! The protocol is that of [client-go's credential
//! plugins](https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins).

use std::{
    io::{self, Read},
    process::Command,
    time::{Duration, SystemTime},
};

use data_encoding::BASE64;
use ferroute_core::rfc3339;
use ferroute_host::program::{Program, ProgramError, Stream};
use kube_client::config::{AuthInfo, ExecConfig};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{authorization::bearer, client_certificate::is_unset_path};

/// A credential plugin.
#[derive(Clone, Debug)]
pub(crate) struct Plugin(ExecConfig);

/// Output of a plugin.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Credentials {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// The object that a plugin prints.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default)]
    api_version: String,
    status: Option<Credentials>,
}

/// A plugin has returned no credentials. A retry may succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PluginError {
    /// The kubeconfig does not name a program.
    #[error("the kubeconfig names no command of the credential plugin")]
    NoCommand,
    /// The program is not installed.
    #[error("the credential plugin {command} is not installed{}", hint(install_hint.as_deref()))]
    NotInstalled { command: String, install_hint: Option<String>, source: ProgramError },
    /// The program cannot be run, or hangs.
    #[error("cannot run the credential plugin")]
    Run(#[from] ProgramError),
    /// The program has failed.
    #[error("the credential plugin {command} failed with {status}: {stderr}")]
    Failed { command: String, status: std::process::ExitStatus, stderr: String },
    /// The output of the program is not an `ExecCredential`. The text of the cause may show secrets.
    #[error("the credential plugin {command} printed no valid ExecCredential")]
    Invalid { command: String },
    /// The version is another one than in the kubeconfig.
    #[error("the credential plugin {command} printed an ExecCredential of version {got:?} (want {want:?})")]
    Version { command: String, got: String, want: String },
    /// The time of expiration is not RFC 3339.
    #[error("the credential plugin {command} printed the invalid expirationTimestamp {text:?}")]
    Expiration { command: String, text: String },
    /// The token cannot be sent.
    #[error("the credential plugin {command} printed a token that contains a line break or another control character")]
    Unsendable { command: String },
    /// The output has neither a token nor a certificate with its key.
    #[error("the credential plugin {command} printed neither a token nor a client certificate with its key")]
    Incomplete { command: String },
}

impl Plugin {
    /// Takes the plugin out of a user.
    pub(crate) fn take_from(user: &mut AuthInfo) -> Option<Self> {
        user.exec.take().map(Self)
    }

    /// Runs the plugin on the calling thread. It may be inactive for `patience`.
    ///
    /// # Errors
    /// If the plugin fails, hangs or prints no credentials.
    pub(crate) fn run(&self, patience: Duration) -> Result<Credentials, PluginError> {
        let Self(exec) = self;
        let command = exec.command.clone().ok_or(PluginError::NoCommand)?;
        let mut program =
            Program::start_with(self.command(&command), Stream::Output, patience).map_err(|error| match &error {
                ProgramError::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                    let install_hint = exec.install_hint.clone();
                    PluginError::NotInstalled { command: command.clone(), install_hint, source: error }
                }
                _ => error.into(),
            })?;
        let mut output = Vec::new();
        // The limit is far above any credentials.
        let read = (&mut program).take(MAX_OUTPUT).read_to_end(&mut output).map(|_| ());
        let exit = program.finish(read)?;
        if !exit.status.success() {
            return Err(PluginError::Failed { command, status: exit.status, stderr: exit.stderr });
        }
        // YAML contains JSON. client-go accepts both.
        let parsed: Result<ExecCredential, _> = serde_saphyr::from_slice(&output);
        let Ok(ExecCredential { api_version, status: Some(credentials) }) = parsed else {
            return Err(PluginError::Invalid { command });
        };
        if let Some(want) = exec.api_version.as_ref().filter(|want| **want != api_version) {
            return Err(PluginError::Version { command, got: api_version, want: want.clone() });
        }
        let is_complete = credentials.token.is_some() || credentials.certificate().is_some();
        match &credentials.expiration_timestamp {
            Some(text) if rfc3339::parse(text).is_none() => {
                Err(PluginError::Expiration { command, text: text.clone() })
            }
            _ if credentials.token.as_deref().is_some_and(|token| bearer(token).is_none()) => {
                Err(PluginError::Unsendable { command })
            }
            _ if !is_complete => Err(PluginError::Incomplete { command }),
            _ => Ok(credentials),
        }
    }

    fn command(&self, program: &str) -> Command {
        let Self(exec) = self;
        let mut command = Command::new(program);
        command.args(exec.args.iter().flatten());
        let variables = exec.env.iter().flatten().filter_map(|entry| Some((entry.get("name")?, entry.get("value")?)));
        command.envs(variables);
        // There is no terminal.
        let mut spec = json!({ "interactive": false });
        if exec.provide_cluster_info {
            spec["cluster"] = exec.cluster.as_ref().and_then(|cluster| serde_json::to_value(cluster).ok()).into();
        }
        let info: Value = json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec });
        command.env("KUBERNETES_EXEC_INFO", info.to_string());
        command
    }
}

impl Credentials {
    /// Returns the client certificate and its key, both in PEM.
    fn certificate(&self) -> Option<(&str, &str)> {
        self.client_certificate_data.as_deref().zip(self.client_key_data.as_deref())
    }

    /// Returns the time until they expire, if they do.
    pub(crate) fn lifetime(&self) -> Option<Duration> {
        let expiration = rfc3339::parse(self.expiration_timestamp.as_deref()?)?;
        Some(expiration.duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// Makes them the credentials of a user. As in client-go, a token and a client certificate in the kubeconfig take
    /// precedence.
    pub(crate) fn set_for(self, user: &mut AuthInfo) {
        let has_certificate = user.client_certificate.as_ref().is_some_and(|path| !is_unset_path(path))
            || user.client_certificate_data.as_ref().is_some_and(|data| !data.is_empty());
        if let Some((certificate, key)) = self.certificate().filter(|_| !has_certificate) {
            user.client_certificate_data = Some(BASE64.encode(certificate.as_bytes()));
            user.client_key_data = Some(BASE64.encode(key.as_bytes()).into());
        }
        if user.token.is_none() {
            user.token = self.token.map(Into::into);
        }
    }
}

/// Returns the `installHint` of the kubeconfig as the end of a sentence.
fn hint(text: Option<&str>) -> String {
    text.map(|text| format!("; the kubeconfig says how to install it: {}", text.trim())).unwrap_or_default()
}

/// Maximum length of a plugin's output in bytes.
const MAX_OUTPUT: u64 = 1 << 20;
