use std::fs;

use super::*;
use crate::client_certificate::ClientCertificate;

async fn load(cluster: &str, user: &str, master: Option<&str>) -> Result<Loaded, AccessError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: other, cluster: {{proxy-url: 'http://no'}}}}, {{name: k, cluster: {cluster}}}]\n\
         users: [{{name: u, user: {user}}}]\n"
    );
    fs::write(&path, text).unwrap();
    Access::Kubeconfig { path, master: master.map(str::to_owned) }.load().await
}

async fn url(cluster: &str, master: Option<&str>) -> String {
    load(cluster, "{}", master).await.unwrap().config.cluster_url.to_string()
}

fn connection(kubeconfig: &str) -> ClientConnectionConfiguration {
    ClientConnectionConfiguration { kubeconfig: kubeconfig.to_owned(), ..ClientConnectionConfiguration::default() }
}

#[test]
fn kubeconfig_takes_precedence_over_address_and_that_over_service_account() {
    assert_eq!(Access::new(&connection(""), None), Access::InCluster);
    assert_eq!(Access::new(&connection(""), Some("")), Access::InCluster);
    assert_eq!(Access::new(&connection(""), Some("http://a")), Access::Address("http://a".to_owned()));
    let path = PathBuf::from("/f");
    assert_eq!(Access::new(&connection("/f"), None), Access::Kubeconfig { path: path.clone(), master: None });
    let master = Some("http://a".to_owned());
    assert_eq!(Access::new(&connection("/f"), Some("http://a")), Access::Kubeconfig { path, master });
}

#[tokio::test]
async fn tls_certificates_are_verified_unless_the_kubeconfig_disables_it() {
    let accepts = async |cluster| load(cluster, "{}", None).await.unwrap().config.accept_invalid_certs;
    assert!(!accepts("{server: 'https://a'}").await);
    assert!(accepts("{server: 'https://a', insecure-skip-tls-verify: true}").await);
}

#[tokio::test]
async fn address_without_scheme_has_no_tls() {
    assert_eq!(url("{server: 'a:6443'}", None).await, "http://a:6443/");
    assert_eq!(url("{server: 'a:6443', insecure-skip-tls-verify: true}", None).await, "http://a:6443/");
    assert_eq!(url("{server: 'https://a', insecure-skip-tls-verify: true}", Some("b:1")).await, "http://b:1/");
}

#[tokio::test]
async fn master_suffices_if_the_kubeconfig_has_no_address() {
    assert_eq!(url("{}", Some("https://b:1")).await, "https://b:1/");
    assert!(load("{}", "{}", None).await.is_err());
}

#[tokio::test]
async fn proxy_is_that_of_the_current_cluster() {
    let proxy = async |cluster| {
        let Loaded { config, proxy, .. } = load(cluster, "{}", None).await.unwrap();
        // The library's stack is not used.
        assert_eq!(config.proxy_url, None);
        proxy
    };
    assert_eq!(proxy("{server: 'https://a'}").await, None);
    assert_eq!(proxy("{server: 'https://a', proxy-url: ''}").await, None);
    assert_eq!(
        proxy("{server: 'https://a', proxy-url: 'http://u:p@ss@p:1'}").await.as_deref(),
        Some("http://u:p@ss@p:1")
    );
}

#[tokio::test]
async fn empty_values_count_as_unset() {
    let cluster =
        "{server: 'https://a', certificate-authority: '', certificate-authority-data: '', tls-server-name: ''}";
    let user = "{client-certificate: '', client-certificate-data: '', client-key: '', client-key-data: '', token: '', \
                tokenFile: '', username: '', password: '', as: ''}";
    let Loaded { mut config, token_file, .. } = load(cluster, user, None).await.unwrap();
    assert!(ClientCertificate::take_from(&mut config.auth_info).unwrap().is_none());
    assert!(!has_credentials(&config.auth_info) && token_file.is_none());
    assert!(config.root_cert.is_none() && config.tls_server_name.is_none());
    assert!(load("{server: ''}", "{}", None).await.is_err());
}

#[tokio::test]
async fn base64_may_be_wrapped() {
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let encoded = data_encoding::BASE64.encode(pem.as_bytes());
    let (first, rest) = encoded.split_at(40);
    for separator in ["\\n", "\\r\\n", " "] {
        let cluster = format!("{{server: 'https://a', certificate-authority-data: \"{first}{separator}{rest}\\n\"}}");
        let loaded = load(&cluster, "{}", None).await.unwrap();
        assert_eq!(loaded.config.root_cert, Some(vec![vec![0; 3]]), "{separator:?}");
    }
}

#[tokio::test]
async fn users_that_client_go_rejects_are_errors() {
    let exec = |fields: &str| format!("{{exec: {{{fields}}}}}");
    let pem = data_encoding::BASE64.encode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let secure = "{server: 'https://a'}".to_owned();
    for (cluster, user, part) in [
        (
            format!("{{server: 'https://a', insecure-skip-tls-verify: true, certificate-authority-data: {pem}}}"),
            "{}".to_owned(),
            "insecure-skip-tls-verify excludes",
        ),
        (secure.clone(), "{token: t, username: u, password: p}".into(), "both a token and a user name"),
        (secure.clone(), "{as-groups: [g]}".into(), "without as"),
        (secure.clone(), "{as-uid: '7'}".into(), "without as"),
        (secure.clone(), exec("apiVersion: client.authentication.k8s.io/v1, command: c"), "without interactiveMode"),
        (
            secure.clone(),
            exec("apiVersion: client.authentication.k8s.io/v1, command: '', interactiveMode: Never"),
            "without a command",
        ),
        (
            secure.clone(),
            exec("apiVersion: client.authentication.k8s.io/v1alpha1, command: c, interactiveMode: Never"),
            "apiVersion",
        ),
        (secure.clone(), exec("command: c, interactiveMode: Never"), "apiVersion"),
    ] {
        let error = load(&cluster, &user, None).await.expect_err(part);
        let text = ferroute_core::error_chain(&error);
        assert!(text.contains(part) && text.contains("/kubeconfig"), "{text}");
    }
    let old = exec("apiVersion: client.authentication.k8s.io/v1beta1, command: c");
    for user in ["{username: u}", "{password: p}", "{as: a, as-groups: [g]}", "{as-groups: []}", &old] {
        load(&secure, user, None).await.expect(user);
    }
}

#[tokio::test]
async fn names_are_unique() {
    let text = "clusters: [{name: k, cluster: {server: 'https://a'}}]\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
                current-context: c\nusers: [{name: u, user: {token: first}}, {name: u, user: {token: second}}]\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let error = Access::Kubeconfig { path: file.path().to_owned(), master: None }.load().await.unwrap_err();
    let text = ferroute_core::error_chain(&error);
    assert!(text.ends_with("the list of users contains the name \"u\" twice"), "{text}");
}

#[tokio::test]
async fn user_to_impersonate_is_no_secret() {
    let loaded = load("{server: 'http://a'}", "{token: t, as: a, as-groups: [g]}", None).await.unwrap();
    assert!(loaded.config.auth_info.token.is_none() && loaded.warning.is_some());
    assert_eq!(loaded.config.auth_info.impersonate.as_deref(), Some("a"));
    assert_eq!(loaded.config.auth_info.impersonate_groups, Some(vec!["g".to_owned()]));
    let loaded = load("{server: 'http://a'}", "{as: a}", None).await.unwrap();
    assert_eq!(loaded.warning, None);
}

#[tokio::test]
async fn client_key_without_a_certificate_has_no_effect() {
    let mut config = load("{server: 'https://a'}", "{client-key: /nope}", None).await.unwrap().config;
    assert!(ClientCertificate::take_from(&mut config.auth_info).unwrap().is_none());
    let mut config = load("{server: 'https://a'}", "{client-certificate: /dev/null}", None).await.unwrap().config;
    assert!(ClientCertificate::take_from(&mut config.auth_info).is_err());
}

#[tokio::test]
async fn invalid_address_is_an_error() {
    let error = Access::Address("http://a b".to_owned()).load().await.unwrap_err();
    assert_eq!(error.to_string(), "invalid API server address \"http://a b\"");
}

#[test]
fn service_account_needs_only_its_token_and_the_address_of_the_server() {
    let environment = |host: &'static str, port: &'static str| {
        move |name: &str| Some(if name.ends_with("HOST") { host } else { port }.to_owned())
    };
    let directory = tempfile::tempdir().unwrap();
    let load = |host, port| in_cluster::load(environment(host, port), directory.path());
    let parsed = load("127.0.0.1", "6443").unwrap();
    assert_eq!(parsed.config.cluster_url.to_string(), "https://127.0.0.1:6443/");
    assert_eq!(parsed.config.auth_info.token_file, directory.path().join("token").to_str().map(str::to_owned));
    assert!(parsed.config.root_cert.is_none() && parsed.warning.unwrap().contains("ca.crt"));
    for (host, port, url) in [
        ("fd00::1", "443", "https://[fd00::1]/"),
        ("fd00::1", "1", "https://[fd00::1]:1/"),
        ("a.b", "443", "https://a.b/"),
    ] {
        assert_eq!(load(host, port).unwrap().config.cluster_url.to_string(), url);
    }
    for (host, port) in [("", "443"), ("a", ""), ("a", "x"), ("a b", "443")] {
        assert!(load(host, port).is_err(), "{host:?} {port:?}");
    }
    assert!(in_cluster::load(|_| None, directory.path()).is_err());

    fs::write(directory.path().join("ca.crt"), "no certificate").unwrap();
    assert!(load("a", "443").unwrap().warning.unwrap().contains("no certificate in PEM"));
    fs::write(directory.path().join("ca.crt"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .unwrap();
    fs::write(directory.path().join("namespace"), "kube-system").unwrap();
    let parsed = load("a", "443").unwrap();
    assert_eq!(parsed.config.root_cert, Some(vec![vec![0; 3]]));
    assert_eq!((parsed.config.default_namespace.as_str(), parsed.warning), ("kube-system", None));
}

#[tokio::test]
async fn errors_name_their_cause_once() {
    let error = load("{server: 'https://a', certificate-authority: /nope}", "{}", None).await.unwrap_err();
    let text = ferroute_core::error_chain(&error);
    assert_eq!(text.matches("No such file or directory").count(), 1, "{text}");
}

#[tokio::test]
async fn authority_without_a_certificate_is_an_error_that_names_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
    let path = file.path().display().to_string();
    for (field, name) in [
        (format!("certificate-authority: {path}"), format!("the certificate-authority {path}")),
        ("certificate-authority-data: aGVsbG8=".to_owned(), "the certificate-authority-data".to_owned()),
    ] {
        let error = load(&format!("{{server: 'https://a', {field}}}"), "{}", None).await.unwrap_err();
        let text = ferroute_core::error_chain(&error);
        assert!(text.ends_with(&format!("{name} contains no certificate in PEM")), "{text}");
    }
}

#[tokio::test]
async fn endless_kubeconfig_is_an_error() {
    let error = Access::Kubeconfig { path: "/dev/zero".into(), master: None }.load().await.err().unwrap();
    let text = ferroute_core::error_chain(&error);
    assert!(text.contains("/dev/zero") && text.contains("16 MiB"), "{text}");
}

#[tokio::test]
async fn last_of_duplicate_fields_applies() {
    let user = "{token: first, tokenFile: a, client-key: a, token: second, tokenFile: b, exec: {command: ./p, \
                apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}}";
    let loaded = load("{server: 'https://a', server: 'https://b'}", user, None).await.unwrap();
    assert_eq!(loaded.config.cluster_url, "https://b/");
    assert_eq!(loaded.config.auth_info.token.unwrap().expose_secret(), "second");
    let file = loaded.token_file.unwrap();
    assert!(file.is_absolute() && file.ends_with("b"), "{}", file.display());
    assert!(load("{server: 'https://a', server: [}", "{}", None).await.is_err());
}
