use std::fs;

use super::*;

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
fn a_kubeconfig_goes_before_an_address_and_that_before_the_service_account() {
    assert_eq!(Access::new(&connection(""), None), Access::InCluster);
    assert_eq!(Access::new(&connection(""), Some("")), Access::InCluster);
    assert_eq!(Access::new(&connection(""), Some("http://a")), Access::Address("http://a".to_owned()));
    let path = PathBuf::from("/f");
    assert_eq!(Access::new(&connection("/f"), None), Access::Kubeconfig { path: path.clone(), master: None });
    let master = Some("http://a".to_owned());
    assert_eq!(Access::new(&connection("/f"), Some("http://a")), Access::Kubeconfig { path, master });
}

#[tokio::test]
async fn tls_certificates_are_checked_unless_the_kubeconfig_says_otherwise() {
    let accepts = async |cluster| load(cluster, "{}", None).await.unwrap().config.accept_invalid_certs;
    assert!(!accepts("{server: 'https://a'}").await);
    assert!(accepts("{server: 'https://a', insecure-skip-tls-verify: true}").await);
}

#[tokio::test]
async fn an_address_without_a_scheme_has_tls_where_tls_is_spoken_of() {
    assert_eq!(url("{server: 'a:6443'}", None).await, "http://a:6443/");
    assert_eq!(url("{server: 'a:6443', insecure-skip-tls-verify: true}", None).await, "https://a:6443/");
    assert_eq!(url("{server: 'https://a'}", Some("b:1")).await, "http://b:1/");
}

#[tokio::test]
async fn master_will_do_where_the_kubeconfig_has_no_address() {
    assert_eq!(url("{}", Some("https://b:1")).await, "https://b:1/");
    assert!(load("{}", "{}", None).await.is_err());
}

#[tokio::test]
async fn the_proxy_is_that_of_the_cluster_in_use() {
    let proxy = async |cluster| load(cluster, "{}", None).await.unwrap().config.proxy_url.map(|url| url.to_string());
    assert_eq!(proxy("{server: 'https://a'}").await, None);
    assert_eq!(proxy("{server: 'https://a', proxy-url: 'http://p:1'}").await.as_deref(), Some("http://p:1/"));
}

#[tokio::test]
async fn a_token_file_stands_in_for_a_token() {
    let loaded = load("{server: 'https://a'}", "{token: t, tokenFile: /tokens/a}", None).await.unwrap();
    assert_eq!(loaded.token_file, Some(PathBuf::from("/tokens/a")));
    assert!(loaded.config.auth_info.token.is_none());
    let loaded = load("{server: 'https://a'}", "{token: t}", None).await.unwrap();
    assert_eq!(loaded.token_file, None);
    assert!(loaded.config.auth_info.token.is_some());
}

#[tokio::test]
async fn programs_that_give_credentials_are_not_to_ask_anybody() {
    let user = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: IfAvailable}}";
    let exec = load("{server: 'https://a'}", user, None).await.unwrap().config.auth_info.exec;
    assert_eq!(exec.unwrap().interactive_mode, Some(ExecInteractiveMode::Never));
}

#[tokio::test]
async fn an_address_that_is_none_is_an_error() {
    let error = Access::Address("http://a b".to_owned()).load().await.unwrap_err();
    assert_eq!(error.to_string(), "\"http://a b\" is no address of an API server");
}
