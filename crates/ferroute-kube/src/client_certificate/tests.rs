use data_encoding::BASE64;
use rcgen::{CertificateParams, KeyPair};

use super::*;

/// A certificate, and its key in PKCS #8.
fn issue() -> (String, Vec<u8>) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["node".to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_der())
}

fn pem(label: &str, der: &[u8]) -> String {
    pem::encode(&pem::Pem::new(label, der))
}

/// Returns the SEC 1 key inside a PKCS #8 key: the octet string that is its last element.
fn sec1(pkcs8: &[u8]) -> &[u8] {
    let start = pkcs8.windows(7).position(|window| window[0] == 0x30 && window[2..5] == [0x02, 0x01, 0x01]).unwrap();
    &pkcs8[start..]
}

fn load(certificate: &str, key: &str) -> Result<Arc<dyn ResolvesClientCert>, CertificateError> {
    let mut user = AuthInfo {
        client_certificate_data: Some(BASE64.encode(certificate.as_bytes())),
        client_key_data: Some(BASE64.encode(key.as_bytes()).into()),
        ..AuthInfo::default()
    };
    let certificate = ClientCertificate::take_from(&mut user)?.unwrap();
    assert!(user.client_certificate_data.is_none() && user.client_key_data.is_none());
    certificate.resolver(&rustls::crypto::ring::default_provider())
}

#[test]
fn keys_have_any_form_and_label_among_other_sections() {
    let (certificate, key) = issue();
    let with_parameters = format!("{}{}", pem("EC PARAMETERS", &[6, 0]), pem("EC PRIVATE KEY", sec1(&key)));
    for key in [
        pem("PRIVATE KEY", &key),
        pem("EC PRIVATE KEY", sec1(&key)),
        pem("PRIVATE KEY", sec1(&key)),
        pem("RSA PRIVATE KEY", &key),
        with_parameters,
        format!("{certificate}{}", pem("PRIVATE KEY", &key)),
        format!("Bag Attributes\n    friendlyName: x\nKey Attributes: <No Attributes>\n{}", pem("PRIVATE KEY", &key)),
    ] {
        let resolver = load(&certificate, &key).unwrap_or_else(|error| panic!("{error}: {key}"));
        assert!(resolver.has_certs());
    }
    let (other, _) = issue();
    let chain = format!("{}{certificate}{other}", pem("PRIVATE KEY", &key));
    let resolved = load(&chain, &chain).unwrap().resolve(&[], &[]).unwrap();
    assert_eq!(resolved.cert.len(), 2);
}

#[test]
fn unusable_keys_are_named_with_what_to_do() {
    let (certificate, key) = issue();
    let identified = |identifier: &[u8]| {
        let length = u8::try_from(identifier.len()).unwrap();
        pem("PRIVATE KEY", &[&[0x30, length][..], identifier].concat())
    };
    let [p521, _, _, ed448, _, rsa] = IDENTIFIERS.map(|(identifier, _)| identified(identifier));
    let legacy =
        pem("RSA PRIVATE KEY", &key).replacen('\n', "\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n", 1);
    for (text, expected) in [
        (p521, "ECDSA with P-521"),
        (ed448, "Ed448"),
        (rsa, "RSA of another length"),
        (pem("DSA PRIVATE KEY", &[0x30, 0]), "DSA"),
        (pem("PRIVATE KEY", &[0x30, 0]), "damaged"),
        (pem("ENCRYPTED PRIVATE KEY", &key), "is encrypted"),
        (legacy, "is encrypted"),
        (certificate.clone(), "is not PEM"),
        ("no PEM".to_owned(), "is not PEM"),
        (pem("PRIVATE KEY", &issue().1), "does not belong"),
    ] {
        let error = load(&certificate, &text).err().unwrap_or_else(|| panic!("{text} is accepted")).to_string();
        assert!(error.contains(expected) && error.contains("in client-key-data"), "{error}");
    }
    let error = load(&certificate, "").unwrap_err().to_string();
    assert_eq!(error, "the kubeconfig has a client certificate without a client key");
    let error = load(&pem("PRIVATE KEY", &key), &pem("PRIVATE KEY", &key)).unwrap_err().to_string();
    assert_eq!(error, "the client certificate in client-certificate-data is not PEM, or contains none");
}

#[test]
fn data_take_precedence_over_files() {
    let (certificate, key) = issue();
    let mut user = AuthInfo {
        client_certificate_data: Some(BASE64.encode(certificate.as_bytes())),
        client_certificate: Some("/no/such/certificate".to_owned()),
        client_key: Some("/no/such/key".to_owned()),
        ..AuthInfo::default()
    };
    let error = ClientCertificate::take_from(&mut user.clone()).unwrap_err().to_string();
    assert!(error.starts_with("cannot read the client key /no/such/key: "), "{error}");
    user.client_key_data = Some(BASE64.encode(pem("PRIVATE KEY", &key).as_bytes()).into());
    assert!(ClientCertificate::take_from(&mut user).unwrap().is_some());
}
