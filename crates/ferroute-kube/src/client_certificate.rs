//! The client certificate of the kubeconfig, and its key.
//!
//! The API server decides whether a certificate is valid, as with client-go: a certificate of X.509 version 1, which
//! `openssl x509 -req` without extensions creates before OpenSSL 3.2, is presented like any other. Only the key is
//! parsed, to sign with it.

use std::{fs, path::Path, sync::Arc};

use data_encoding::BASE64;
use kube_client::config::AuthInfo;
use rustls::{
    client::ResolvesClientCert,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer},
    sign::{CertifiedKey, SigningKey, SingleCertAndKey},
};
use secrecy::ExposeSecret;

/// A client certificate with its chain, and its key.
#[derive(Debug)]
pub(crate) struct ClientCertificate {
    chain: Source,
    key: Source,
}

/// Origin of a part of the kubeconfig, for error messages, and its text.
struct Source {
    origin: String,
    text: Vec<u8>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The text is secret.
        f.debug_tuple("Source").field(&self.origin).finish()
    }
}

/// The client certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("cannot read the {what} {path}: {source}")]
    Read { what: &'static str, path: String, source: std::io::Error },
    #[error("the {field} in the kubeconfig is not base64: {source}")]
    Base64 { field: &'static str, source: data_encoding::DecodeError },
    #[error("the kubeconfig has a client certificate without a client key")]
    NoKey,
    #[error("the {what} {origin} is not PEM, or contains none")]
    NoPem { what: &'static str, origin: String },
    #[error(
        "the client key {origin} is encrypted, and there is nobody who could enter its password: remove it with \
         `openssl pkey -in KEY -out NEW-KEY`"
    )]
    Encrypted { origin: String },
    #[error(
        "cannot sign with the client key {origin}, which is {kind}: use RSA with 2048 to 4096 bits, ECDSA with P-256 or P-384, or \
         Ed25519, and have the certificate issued again for the new key"
    )]
    Unsupported { origin: String, kind: &'static str },
    #[error("the client key {origin} does not belong to the client certificate {certificate}")]
    OtherKey { origin: String, certificate: String },
}

impl ClientCertificate {
    /// Takes the certificate out of a user, and reads its files.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or the certificate or the key is missing.
    pub(crate) fn take_from(user: &mut AuthInfo) -> Result<Option<Self>, CertificateError> {
        let (key_data, key_file) = (user.client_key_data.take(), user.client_key.take());
        let (data, file) = (user.client_certificate_data.take(), user.client_certificate.take());
        let chain = Source::of(CERTIFICATE, "client-certificate-data", data.as_deref(), file.as_deref())?;
        // As in client-go, a key alone has no effect.
        let Some(chain) = chain else { return Ok(None) };
        let key_data = key_data.as_ref().map(|data| data.expose_secret());
        let key = Source::of(KEY, "client-key-data", key_data, key_file.as_deref())?;
        Ok(Some(Self { chain, key: key.ok_or(CertificateError::NoKey)? }))
    }

    /// Returns the resolver that presents the certificate in handshakes.
    ///
    /// # Errors
    ///
    /// The key is not supported, or does not belong to the certificate.
    pub(crate) fn resolver(self, provider: &CryptoProvider) -> Result<Arc<dyn ResolvesClientCert>, CertificateError> {
        let Self { chain: certificate, key } = self;
        let chain: Vec<CertificateDer<'static>> = certificate
            .sections(CERTIFICATE)?
            .into_iter()
            .filter(|section| section.tag() == "CERTIFICATE")
            .map(|section| section.into_contents().into())
            .collect();
        let no_pem = || CertificateError::NoPem { what: CERTIFICATE, origin: certificate.origin.clone() };
        let leaf = chain.first().ok_or_else(no_pem)?;
        let signing_key = key.signing_key(provider)?;
        // rustls would parse the certificate to compare the keys, and rejects version 1. In any version the certificate contains its
        // public key in this encoding.
        if signing_key.public_key().is_some_and(|public_key| !contains(leaf, &public_key)) {
            return Err(CertificateError::OtherKey { origin: key.origin, certificate: certificate.origin });
        }
        Ok(Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, signing_key))))
    }
}

impl Source {
    /// Decodes the data or else reads the file. As in client-go, empty values count as unset.
    fn of(
        what: &'static str,
        field: &'static str,
        data: Option<&str>,
        file: Option<&str>,
    ) -> Result<Option<Self>, CertificateError> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let text = BASE64.decode(without_white_space(data).as_bytes());
            let text = text.map_err(|source| CertificateError::Base64 { field, source })?;
            return Ok(Some(Self { origin: format!("in {field}"), text }));
        }
        let Some(path) = file.filter(|path| !is_unset_path(path)) else { return Ok(None) };
        let text = fs::read(Path::new(path));
        let text = text.map_err(|source| CertificateError::Read { what, path: path.to_owned(), source })?;
        Ok(Some(Self { origin: path.to_owned(), text }))
    }

    /// Returns the PEM sections, ignoring any text between them.
    fn sections(&self, what: &'static str) -> Result<Vec<pem::Pem>, CertificateError> {
        pem::parse_many(&self.text).map_err(|_| CertificateError::NoPem { what, origin: self.origin.clone() })
    }

    /// Returns the first private key. Like client-go, this goes by the contents rather than by the label.
    fn signing_key(&self, provider: &CryptoProvider) -> Result<Arc<dyn SigningKey>, CertificateError> {
        let origin = || self.origin.clone();
        let section = self.sections(KEY)?.into_iter().find(|section| section.tag().ends_with("PRIVATE KEY"));
        let section = section.ok_or_else(|| CertificateError::NoPem { what: KEY, origin: origin() })?;
        let is_encrypted = |info: &str| info.contains("ENCRYPTED");
        if is_encrypted(section.tag()) || section.headers().get("Proc-Type").is_some_and(is_encrypted) {
            return Err(CertificateError::Encrypted { origin: origin() });
        }
        let is_dsa = section.tag() == "DSA PRIVATE KEY";
        let der = section.into_contents();
        let forms = [
            PrivateKeyDer::Pkcs8(der.clone().into()),
            PrivateKeyDer::Pkcs1(der.clone().into()),
            PrivateKeyDer::Sec1(der.clone().into()),
        ];
        let loaded = forms.into_iter().find_map(|form| provider.key_provider.load_private_key(form).ok());
        loaded.ok_or_else(|| {
            let kind = if is_dsa { "DSA" } else { kind(&der) };
            CertificateError::Unsupported { origin: origin(), kind }
        })
    }
}

/// Removes the line breaks of wrapped base64.
pub(crate) fn without_white_space(text: &str) -> String {
    text.split_ascii_whitespace().collect()
}

/// Reports whether a path is empty, or was before it was made absolute.
pub(crate) fn is_unset_path(path: &str) -> bool {
    path.is_empty() || path.ends_with('/')
}

/// Returns the kind of a private key that is not supported, by the identifier of its algorithm or curve.
fn kind(der: &[u8]) -> &'static str {
    let known = IDENTIFIERS.iter().find(|(identifier, _)| contains(der, identifier));
    known.map_or("of an unknown kind or damaged", |(_, kind)| kind)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

const CERTIFICATE: &str = "client certificate";
const KEY: &str = "client key";

/// DER encodings of object identifiers.
const IDENTIFIERS: [(&[u8], &str); 6] = [
    (&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23], "ECDSA with P-521"),
    (&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x21], "ECDSA with P-224"),
    (&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x0a], "ECDSA with secp256k1"),
    (&[0x06, 0x03, 0x2b, 0x65, 0x71], "Ed448"),
    (&[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x38, 0x04, 0x01], "DSA"),
    (&[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01], "RSA of another length"),
];

#[cfg(test)]
mod tests;
