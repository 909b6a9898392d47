use std::{
    fs,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use ferroute_config::ClientConnectionConfiguration;
use ferroute_kube::{ApiServer, testing::FakeApiServer};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ConfigBuilder, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
        client::danger::HandshakeSignatureValid,
        pki_types::{CertificateDer, PrivateKeyDer, UnixTime},
        server::{
            WantsServerCert, WebPkiClientVerifier,
            danger::{ClientCertVerified, ClientCertVerifier},
        },
    },
};

use crate::{Consumer, NODE, connection, timing};

/// A certificate authority.
struct Pki {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self { issuer: CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap() }
    }

    /// Issues a certificate for a name.
    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        (CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Starts a TLS server of this name that requires client certificates, in front of the fake API server.
    async fn serve(&self, fake: &FakeApiServer, name: &str) -> (SocketAddr, JoinHandle<()>) {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let clients = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
        self.serve_with(fake, name, ServerConfig::builder().with_client_cert_verifier(clients)).await
    }

    async fn serve_with(
        &self,
        fake: &FakeApiServer,
        name: &str,
        config: ConfigBuilder<ServerConfig, WantsServerCert>,
    ) -> (SocketAddr, JoinHandle<()>) {
        let (certificate, key) = self.issue(name);
        serve_as(fake, &certificate, &key, config).await
    }
}

/// Starts a TLS server with this certificate in front of the fake API server.
async fn serve_as(
    fake: &FakeApiServer,
    certificate: &rcgen::Certificate,
    key: &KeyPair,
    config: ConfigBuilder<ServerConfig, WantsServerCert>,
) -> (SocketAddr, JoinHandle<()>) {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = config.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, to) = (listener.local_addr().unwrap(), fake.address());
    let task = tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // Some clients are rejected.
                let Ok(mut plain) = acceptor.accept(socket).await else { return };
                let mut server = TcpStream::connect(to).await.unwrap();
                let _ = copy_bidirectional(&mut plain, &mut server).await;
            });
        }
    });
    (address, task)
}

/// Starts a proxy that is reached by TLS, and reports the requests that it gets.
async fn serve_proxy(pki: &Pki) -> (SocketAddr, Arc<Mutex<Vec<String>>>, JoinHandle<()>) {
    let (certificate, key) = pki.issue("127.0.0.1");
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, requests) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let log = requests.clone();
    let task = tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let (acceptor, log) = (acceptor.clone(), log.clone());
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(socket).await else { return };
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(client.read_u8().await.unwrap());
                }
                let request = String::from_utf8(request).unwrap();
                let to = request.split(' ').nth(1).unwrap().to_owned();
                log.lock().unwrap().push(request);
                let mut server = TcpStream::connect(to).await.unwrap();
                client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (address, requests, task)
}

/// Starts a TLS server that requires no client certificate, in front of the fake API server.
pub(crate) async fn serve_without_client_certificates(fake: &FakeApiServer) -> (SocketAddr, JoinHandle<()>) {
    Pki::new().serve_with(fake, "127.0.0.1", ServerConfig::builder().with_no_client_auth()).await
}

/// Turns a certificate into one of X.509 version 1, by removing its version and its extensions. The signature is no
/// longer valid.
fn version_1(certificate: &[u8]) -> Vec<u8> {
    let [body, algorithm, signature] = elements(contents(certificate)).try_into().unwrap();
    let kept = elements(contents(body)).into_iter().filter(|element| !matches!(element[0], 0xa0 | 0xa3));
    let body = sequence(&kept.collect::<Vec<_>>().concat());
    sequence(&[&body, algorithm, signature].concat())
}

/// Returns the contents of a DER element.
fn contents(element: &[u8]) -> &[u8] {
    &element[element.len() - element_length(element).1..]
}

/// Splits a series of DER elements.
fn elements(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut elements = Vec::new();
    while !bytes.is_empty() {
        let (header, contents) = element_length(bytes);
        let (element, rest) = bytes.split_at(header + contents);
        elements.push(element);
        bytes = rest;
    }
    elements
}

/// Returns the lengths of the header and the contents of a DER element.
fn element_length(element: &[u8]) -> (usize, usize) {
    match element[1] {
        length @ ..=0x7f => (2, length.into()),
        0x81 => (3, element[2].into()),
        _ => (4, u16::from_be_bytes([element[2], element[3]]).into()),
    }
}

fn sequence(contents: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(contents.len()).unwrap().to_be_bytes();
    [&[0x30, 0x82, high, low], contents].concat()
}

/// Accepts all client certificates, and keeps the last one.
#[derive(Debug, Default)]
struct AcceptAll(Mutex<Vec<u8>>);

impl ClientCertVerifier for AcceptAll {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        *self.0.lock().unwrap() = end_entity.to_vec();
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

#[tokio::test]
async fn client_certificate_of_version_1_is_for_the_server_to_judge() {
    let (fake, pki) = (FakeApiServer::start().await, Pki::new());
    let verifier = Arc::new(AcceptAll::default());
    let config = ServerConfig::builder().with_client_cert_verifier(verifier.clone());
    let (address, server) = pki.serve_with(&fake, "127.0.0.1", config).await;
    let setup = Setup { fake, pki, address, directory: tempfile::tempdir().unwrap(), _server: server };
    let (certificate, key) = setup.pki.issue("node");
    let certificate = version_1(certificate.der());
    let mut consumer = setup.start_as("certificate-authority: ca.crt", &certificate, &key).await;
    consumer.until_synced().await;
    assert_eq!(*verifier.0.lock().unwrap(), certificate);
}

struct Setup {
    fake: FakeApiServer,
    pki: Pki,
    address: SocketAddr,
    directory: TempDir,
    _server: JoinHandle<()>,
}

impl Setup {
    async fn new(name: &str) -> Self {
        let (fake, pki) = (FakeApiServer::start().await, Pki::new());
        let (address, server) = pki.serve(&fake, name).await;
        Self { fake, pki, address, directory: tempfile::tempdir().unwrap(), _server: server }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).unwrap();
    }

    /// Starts with a kubeconfig with these fields of the cluster, and a client certificate.
    async fn start(&self, cluster: &str) -> Consumer {
        let (certificate, key) = self.pki.issue("node");
        self.start_as(cluster, certificate.der(), &key).await
    }

    /// Starts with a kubeconfig with these fields of the cluster, and this client certificate.
    async fn start_as(&self, cluster: &str, certificate: &[u8], key: &KeyPair) -> Consumer {
        self.write("ca.crt", &self.pki.issuer.pem());
        self.write("node.crt", &pem::encode(&pem::Pem::new("CERTIFICATE", certificate)));
        self.write("node.key", &key.serialize_pem());
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://{}', {cluster}}}}}]\n\
             users: [{{name: u, user: {{client-certificate: node.crt, client-key: node.key}}}}]\n",
            self.address
        );
        self.write("kubeconfig", &text);
        let kubeconfig = self.directory.path().join("kubeconfig").to_str().unwrap().to_owned();
        let connection = ClientConnectionConfiguration { kubeconfig, ..connection() };
        Consumer::from_source(ApiServer::new(&connection, None, NODE).await.unwrap().with_timing(timing()))
    }

    /// Returns the cause of the failure to connect.
    async fn failure(&self, cluster: &str) -> String {
        let mut consumer = self.start(cluster).await;
        consumer.until("a problem", |observed| !observed.problems.is_empty()).await;
        assert_eq!(self.fake.requests(), [""; 0]);
        let problem = consumer.observed.problems.pop_first().unwrap();
        let cause = problem.strip_prefix(&format!("cannot reach the API server at https://{}: ", self.address));
        cause.unwrap_or_else(|| panic!("another problem: {problem}")).to_owned()
    }
}

#[tokio::test]
async fn client_and_server_certificates_are_verified() {
    let setup = Setup::new("127.0.0.1").await;
    let mut consumer = setup.start("certificate-authority: ca.crt").await;
    consumer.until_synced().await;
    assert_eq!(consumer.take_log(), [""; 0]);
}

#[tokio::test]
async fn server_certificate_of_another_authority_is_rejected() {
    let setup = Setup::new("127.0.0.1").await;
    setup.write("other.crt", &Pki::new().issuer.pem());
    let failure = setup.failure("certificate-authority: other.crt").await;
    assert!(failure.starts_with("invalid peer certificate: "), "{failure}");
    // Without an authority, those of the host are used, if it has any.
    let mut consumer = setup.start("disable-compression: true").await;
    consumer.until("a problem", |observed| !observed.problems.is_empty()).await;
    assert_eq!(setup.fake.requests(), [""; 0]);
}

/// `openssl req -x509` creates certificates of authorities, which servers present, too.
#[tokio::test]
async fn server_certificate_in_the_kubeconfig_is_trusted_for_its_name_and_period() {
    let pki = Pki::new();
    let (own, cluster) = (KeyPair::generate().unwrap(), "certificate-authority: server.crt");
    let make = |change: fn(&mut CertificateParams)| {
        let mut parameters = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        change(&mut parameters);
        parameters
    };
    let authority = |parameters: &mut CertificateParams| {
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    };
    let expired = |parameters: &mut CertificateParams| {
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.not_after = rcgen::date_time_ymd(2020, 1, 1);
    };
    let of_another_name = |parameters: &mut CertificateParams| {
        *parameters = CertificateParams::new(["kubernetes.example".to_owned()]).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    };
    let certificates = [
        (make(authority).self_signed(&own).unwrap(), None),
        (make(|_| ()).self_signed(&own).unwrap(), None),
        (make(|_| ()).signed_by(&own, &pki.issuer).unwrap(), None),
        (make(expired).self_signed(&own).unwrap(), Some("expired")),
        (make(of_another_name).self_signed(&own).unwrap(), Some("not valid for")),
    ];
    for (certificate, problem) in certificates {
        let fake = FakeApiServer::start().await;
        let config = ServerConfig::builder().with_no_client_auth();
        let (address, server) = serve_as(&fake, &certificate, &own, config).await;
        let directory = tempfile::tempdir().unwrap();
        let setup = Setup { fake, pki: Pki::new(), address, directory, _server: server };
        setup.write("server.crt", &certificate.pem());
        if let Some(problem) = problem {
            let failure = setup.failure(cluster).await;
            assert!(failure.contains(problem), "{failure}");
        } else {
            setup.start(cluster).await.until_synced().await;
        }
    }
}

/// As of a server whose only key is ECDSA with P-521.
#[tokio::test]
async fn failed_handshake_is_reported_with_the_supported_keys() {
    const HANDSHAKE_FAILURE: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 40];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, fake) = (listener.local_addr().unwrap(), FakeApiServer::start().await);
    let server = tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut hello = [0; 1 << 14];
            let _ = socket.read(&mut hello).await;
            let _ = socket.write_all(&HANDSHAKE_FAILURE).await;
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let setup = Setup { fake, pki: Pki::new(), address, directory, _server: server };
    let failure = setup.failure("certificate-authority: ca.crt").await;
    assert!(failure.contains("HandshakeFailure") && failure.contains("P-384"), "{failure}");
}

#[tokio::test]
async fn certificates_of_authorities_that_cannot_be_parsed_are_skipped() {
    let setup = Setup::new("127.0.0.1").await;
    let damaged = pem::encode(&pem::Pem::new("CERTIFICATE", [0; 3]));
    setup.write("ca-and-other.crt", &format!("{damaged}{}", setup.pki.issuer.pem()));
    setup.start("certificate-authority: ca-and-other.crt").await.until_synced().await;
}

#[tokio::test]
async fn server_certificate_of_another_name_is_rejected() {
    let setup = Setup::new("kubernetes.example").await;
    let failure = setup.failure("certificate-authority: ca.crt").await;
    assert!(failure.contains("not valid for"), "{failure}");
    let mut consumer = setup.start("certificate-authority: ca.crt, tls-server-name: kubernetes.example").await;
    consumer.until_synced().await;
}

#[tokio::test]
async fn server_certificate_is_not_verified_if_the_kubeconfig_disables_it() {
    let setup = Setup::new("kubernetes.example").await;
    let mut consumer = setup.start("insecure-skip-tls-verify: true").await;
    consumer.until_synced().await;
}

#[tokio::test]
async fn proxy_is_reached_by_tls_and_its_certificate_verified() {
    let setup = Setup::new("kubernetes.example").await;
    let cluster = "certificate-authority: ca.crt, tls-server-name: kubernetes.example";
    let (proxy, requests, _task) = serve_proxy(&setup.pki).await;
    let mut consumer = setup.start(&format!("{cluster}, proxy-url: 'https://user:secret@{proxy}'")).await;
    consumer.until_synced().await;
    let request = requests.lock().unwrap().pop().unwrap();
    assert!(request.starts_with(&format!("CONNECT {} HTTP/1.1\r\n", setup.address)), "{request}");
    assert!(request.to_lowercase().contains("proxy-authorization: basic "), "{request}");
    let other = Pki::new();
    let (proxy, requests, _task) = serve_proxy(&other).await;
    let mut consumer = setup.start(&format!("{cluster}, proxy-url: 'https://{proxy}'")).await;
    consumer.until("a problem", |observed| !observed.problems.is_empty()).await;
    assert_eq!(*requests.lock().unwrap(), [""; 0]);
}
