use std::{fs, path::Path};

use tempfile::TempDir;

use super::*;

/// Returns the client of a server with a credential plugin whose tokens are valid for an hour. The plugin hangs while the
/// file `hang` exists, and then creates the file `hung`.
fn client(directory: &TempDir, timing: Timing) -> ApiClient {
    let path = |name: &str| directory.path().join(name);
    let expiration = ferroute_core::rfc3339::format(std::time::SystemTime::now() + HOUR, 0).unwrap();
    let script = format!(
        "[ -e {0} ] && {{ touch {1}; exec sleep 100000; }}; \
         echo \"{{apiVersion: client.authentication.k8s.io/v1beta1, status: {{token: abc, expirationTimestamp: '{expiration}'}}}}\"",
        path("hang").display(),
        path("hung").display()
    );
    fs::write(path("script"), script).unwrap();
    let kubeconfig = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}], \
         clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true}}}}], \
         users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1beta1, command: sh, args: [{}]}}}}}}]}}",
        path("script").display()
    );
    fs::write(path("kubeconfig"), kubeconfig).unwrap();
    let access = Access::Kubeconfig { path: path("kubeconfig"), master: None };
    ApiClient::new(access, RateLimiter::new(-1.0, 0), vec![MediaType::Json], timing, Arc::new(NoMetrics))
}

const HOUR: Duration = Duration::from_secs(3600);

/// Makes the credentials of the current connection due for renewal.
fn make_due(client: &ApiClient) {
    let mut connection = client.connection.lock().unwrap();
    connection.as_mut().unwrap().validity.as_mut().unwrap().renew_at = Instant::now();
}

async fn wait_for(file: &Path) {
    while !file.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn requests_use_valid_credentials_while_the_plugin_that_renews_them_hangs() {
    let directory = tempfile::tempdir().unwrap();
    let client = client(&directory, Timing { plugin_patience: Duration::from_secs(3), ..Timing::default() });
    let (first, is_new) = client.connection().await.unwrap();
    assert!(is_new && !first.expires_soon() && !first.is_expired());
    assert!(!client.connection().await.unwrap().1);

    fs::write(directory.path().join("hang"), "").unwrap();
    make_due(&client);
    let others = async {
        wait_for(&directory.path().join("hung")).await;
        // The plugin is not killed before this returns, because it does not wait.
        client.connection().await.unwrap()
    };
    let ((renewed, _), (other, is_new)) = tokio::join!(async { client.connection().await.unwrap() }, others);
    assert_eq!((other.number, is_new), (first.number, false));
    assert_eq!(renewed.number, first.number, "the renewal has failed and the credentials are valid");

    fs::remove_file(directory.path().join("hang")).unwrap();
    let (renewed, is_new) = client.connection().await.unwrap();
    assert!(is_new && renewed.number != first.number);
}

#[tokio::test]
async fn expired_credentials_are_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let client = client(&directory, Timing { plugin_patience: Duration::from_secs(1), ..Timing::default() });
    client.connection().await.unwrap();
    fs::write(directory.path().join("hang"), "").unwrap();
    client.connection.lock().unwrap().as_mut().unwrap().validity = Some(Validity::new(Duration::ZERO));
    let error = client.connection().await.unwrap_err();
    let error = error_chain(&error);
    assert!(error.contains("killed"), "{error}");
}
