use std::{fs, net::SocketAddr, sync::Arc};

use ferroute_config::ClientConnectionConfiguration;
use ferroute_kube::{ApiServer, testing::ApiDouble};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{RootCertStore, ServerConfig, pki_types::PrivateKeyDer, server::WebPkiClientVerifier},
};

use crate::{Following, NODE, connection, timing};

/// Certificates of a cluster of its own.
struct Pki {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self { issuer: CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap() }
    }

    /// A certificate for a name, and its key.
    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        (CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Puts TLS in front of the double, as a server of this name that asks clients for certificates.
    async fn serve(&self, double: &ApiDouble, name: &str) -> (SocketAddr, JoinHandle<()>) {
        let (certificate, key) = self.issue(name);
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let clients = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder().with_client_cert_verifier(clients);
        let config = config.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, to) = (listener.local_addr().unwrap(), double.address());
        let task = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // That some clients are turned away is what this is for.
                    let Ok(mut plain) = acceptor.accept(socket).await else { return };
                    let mut server = TcpStream::connect(to).await.unwrap();
                    let _ = copy_bidirectional(&mut plain, &mut server).await;
                });
            }
        });
        (address, task)
    }
}

struct Setup {
    double: ApiDouble,
    pki: Pki,
    address: SocketAddr,
    directory: TempDir,
    _server: JoinHandle<()>,
}

impl Setup {
    async fn new(name: &str) -> Self {
        let (double, pki) = (ApiDouble::start().await, Pki::new());
        let (address, server) = pki.serve(&double, name).await;
        Self { double, pki, address, directory: tempfile::tempdir().unwrap(), _server: server }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).unwrap();
    }

    /// Follows by a kubeconfig with these fields of the cluster and a client's certificate.
    async fn follow(&self, cluster: &str) -> Following {
        let (certificate, key) = self.pki.issue("node");
        self.write("ca.crt", &self.pki.issuer.pem());
        self.write("node.crt", &certificate.pem());
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
        Following::of(ApiServer::new(&connection, None, NODE).await.unwrap().with_timing(timing()))
    }

    /// The reason that the server cannot be reached.
    async fn refusal(&self, cluster: &str) -> String {
        let mut following = self.follow(cluster).await;
        following.until("a problem", |told| !told.problems.is_empty()).await;
        assert_eq!(self.double.requests(), [""; 0]);
        let problem = following.told.problems.pop_first().unwrap();
        let reason = problem.strip_prefix(&format!("cannot reach the API server at https://{}: ", self.address));
        reason.unwrap_or_else(|| panic!("another problem: {problem}")).to_owned()
    }
}

#[tokio::test]
async fn certificates_on_both_sides_are_checked_and_shown() {
    let setup = Setup::new("127.0.0.1").await;
    let mut following = setup.follow("certificate-authority: ca.crt").await;
    following.until_synced().await;
    assert_eq!(following.news(), [""; 0]);
}

#[tokio::test]
async fn a_server_that_the_authority_does_not_vouch_for_is_not_spoken_to() {
    let setup = Setup::new("127.0.0.1").await;
    setup.write("other.crt", &Pki::new().issuer.pem());
    let refusal = setup.refusal("certificate-authority: other.crt").await;
    assert!(refusal.starts_with("invalid peer certificate: "), "{refusal}");
    // Without an authority it is those of the host that count, if it has any.
    let mut following = setup.follow("disable-compression: true").await;
    following.until("a problem", |told| !told.problems.is_empty()).await;
    assert_eq!(setup.double.requests(), [""; 0]);
}

#[tokio::test]
async fn a_server_with_a_certificate_for_another_name_is_not_spoken_to() {
    let setup = Setup::new("kubernetes.example").await;
    let refusal = setup.refusal("certificate-authority: ca.crt").await;
    assert!(refusal.contains("not valid for"), "{refusal}");
    let mut following = setup.follow("certificate-authority: ca.crt, tls-server-name: kubernetes.example").await;
    following.until_synced().await;
}

#[tokio::test]
async fn an_unknown_server_is_spoken_to_only_where_the_kubeconfig_asks_for_that() {
    let setup = Setup::new("kubernetes.example").await;
    let mut following = setup.follow("insecure-skip-tls-verify: true").await;
    following.until_synced().await;
}
