//! Verification of the server's certificate against those in the kubeconfig.
//!
//! As in client-go, certificates that cannot be parsed are skipped, and a server may present one that the kubeconfig contains, whether
//! it is a certificate of an authority or not: `openssl req -x509` creates both.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        VerifierBuilderError, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

/// Removes certificates that cannot be parsed, unless none is left.
pub(crate) fn retain_parsable(certificates: &mut Vec<Vec<u8>>) {
    let check = |certificate: &Vec<u8>| RootCertStore::empty().add(CertificateDer::from(certificate.as_slice()));
    if certificates.iter().all(|certificate| check(certificate).is_err()) {
        return;
    }
    certificates.retain(|certificate| {
        check(certificate)
            .inspect_err(|error| tracing::warn!("skipping a certificate authority that cannot be parsed: {error}"))
            .is_ok()
    });
}

/// Makes a client trust these certificates, of authorities and of servers.
///
/// # Errors
///
/// No certificate can be parsed.
pub(crate) fn trust(client: &mut ClientConfig, certificates: Vec<Vec<u8>>) -> Result<(), VerifierBuilderError> {
    let trusted: Vec<CertificateDer<'static>> = certificates.into_iter().map(CertificateDer::from).collect();
    let mut authorities = RootCertStore::empty();
    authorities.add_parsable_certificates(trusted.iter().cloned());
    let provider = Arc::clone(client.crypto_provider());
    let issued = WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), provider).build()?;
    client.dangerous().set_certificate_verifier(Arc::new(Verifier { issued, trusted }));
    Ok(())
}

#[derive(Debug)]
struct Verifier {
    /// Verifies certificates that the authorities issued.
    issued: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.issued.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // No authority issued it, or it is of an authority. Its period was checked before.
            Err(Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature | CertificateError::Other(_),
            )) if self.trusted.iter().any(|trusted| trusted == end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issued.supported_verify_schemes()
    }
}
