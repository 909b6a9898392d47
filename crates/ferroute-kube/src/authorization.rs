//! The header `authorization`, and the check of other headers whose values come from the kubeconfig.
//!
//! `kube-client` also adds this header, but panics if the token contains a line break.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Mutex,
};

use data_encoding::BASE64;
use http::HeaderValue;
use kube_client::config::AuthInfo;
use secrecy::ExposeSecret;

/// The source of the header.
#[derive(Debug)]
pub(crate) enum Authorization {
    /// The kubeconfig or a credential plugin.
    Fixed(HeaderValue),
    /// A file.
    File(TokenFile),
}

/// The credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    /// A value cannot be sent.
    #[error("the {field} of user {user:?} in the kubeconfig contains a line break or another control character")]
    Unsendable { field: &'static str, user: String },
    /// The provider is part of neither Ferroute nor kube-proxy.
    #[error(
        "the auth-provider {name:?} of user {user:?} in the kubeconfig is not supported; use a credential plugin (exec)"
    )]
    Provider { name: String, user: String },
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
    /// The file is empty.
    #[error("the token file {} contains no token", path.display())]
    NoToken { path: PathBuf },
    /// The token cannot be sent.
    #[error("the token in the file {} contains a line break or another control character", path.display())]
    Unsendable { path: PathBuf },
}

impl Authorization {
    /// Returns the header for a user, or for the file if there is one; `None` if the user has neither a token nor a
    /// password. `name` is that of the user.
    ///
    /// # Errors
    ///
    /// A value cannot be sent, or an `auth-provider` is configured that is not supported.
    pub(crate) fn new(
        user: &AuthInfo,
        token_file: Option<PathBuf>,
        name: &str,
    ) -> Result<Option<Self>, CredentialsError> {
        let unsendable = |field| CredentialsError::Unsendable { field, user: name.to_owned() };
        if let Some(path) = token_file {
            // As in client-go, the token in the kubeconfig is used until the file can be read.
            let initial = user.token.as_ref().and_then(|token| bearer(token.expose_secret()));
            return Ok(Some(Self::File(TokenFile { path, last: Mutex::new(initial) })));
        }
        if let Some(provider) = &user.auth_provider {
            let token = provider.config.get("id-token").filter(|_| provider.name == "oidc");
            let unsupported = || CredentialsError::Provider { name: provider.name.clone(), user: name.to_owned() };
            let header = bearer(token.ok_or_else(unsupported)?).ok_or_else(|| unsendable("id-token"))?;
            return Ok(Some(Self::Fixed(header)));
        }
        // As in client-go, the password may be missing.
        if let Some(username) = &user.username {
            let password = user.password.as_ref().map_or("", |password| password.expose_secret());
            return Ok(Some(Self::Fixed(basic(username, password))));
        }
        let Some(token) = &user.token else { return Ok(None) };
        let header = bearer(token.expose_secret()).ok_or_else(|| unsendable("token"))?;
        Ok(Some(Self::Fixed(header)))
    }

    /// Returns the value of the header.
    ///
    /// # Errors
    ///
    /// The file cannot be read or contains no token, and was never valid.
    pub(crate) fn header(&self) -> Result<HeaderValue, TokenError> {
        match self {
            Self::Fixed(header) => Ok(header.clone()),
            Self::File(file) => file.header(),
        }
    }
}

/// Checks the values of the headers for impersonation, whose errors would not name the field otherwise.
///
/// # Errors
///
/// A value cannot be sent.
pub(crate) fn check_impersonation(user: &AuthInfo, name: &str) -> Result<(), CredentialsError> {
    let groups = user.impersonate_groups.iter().flatten().map(|group| ("as-groups", group));
    let extra = user.impersonate_user_extra.iter().flatten();
    let extra = extra.flat_map(|(_, values)| values).map(|value| ("as-user-extra", value));
    let values = user.impersonate.iter().map(|value| ("as", value));
    let mut values =
        values.chain(user.impersonate_uid.iter().map(|value| ("as-uid", value))).chain(groups).chain(extra);
    match values.find(|(_, value)| HeaderValue::from_str(value).is_err()) {
        Some((field, _)) => Err(CredentialsError::Unsendable { field, user: name.to_owned() }),
        None => Ok(()),
    }
}

/// Returns the header for a token; `None` if it contains a control character.
pub(crate) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_bytes(format!("Bearer {token}").as_bytes()).ok()?;
    header.set_sensitive(true);
    Some(header)
}

fn basic(username: &str, password: &str) -> HeaderValue {
    let text = format!("Basic {}", BASE64.encode(format!("{username}:{password}").as_bytes()));
    let mut header = HeaderValue::from_str(&text).expect("base64 is ASCII");
    header.set_sensitive(true);
    header
}

impl TokenFile {
    fn header(&self) -> Result<HeaderValue, TokenError> {
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
    bearer(token).ok_or_else(|| TokenError::Unsendable { path: path.to_owned() })
}
