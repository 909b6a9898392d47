use std::{
    fs,
    net::SocketAddr,
    ops::Deref,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use ferroute_config::ClientConnectionConfiguration;
use ferroute_kube::{ApiServer, Timing, testing::FakeApiServer};
use ferroute_source::Event;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{Consumer, NODE, Observed, connection, timing, tls::serve_without_client_certificates};

/// A fake API server behind TLS, without which no credentials are sent.
pub(crate) struct SecureServer {
    fake: FakeApiServer,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl SecureServer {
    async fn start() -> Self {
        let fake = FakeApiServer::start().await;
        let (address, task) = serve_without_client_certificates(&fake).await;
        Self { fake, address, task }
    }

    fn url(&self) -> String {
        format!("https://{}", self.address)
    }
}

impl Deref for SecureServer {
    type Target = FakeApiServer;

    fn deref(&self) -> &FakeApiServer {
        &self.fake
    }
}

impl Drop for SecureServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes a kubeconfig for the server with these fields of the user.
pub(crate) fn kubeconfig(directory: &TempDir, server: &SecureServer, user: &str) -> ClientConnectionConfiguration {
    kubeconfig_at(directory, &format!("server: '{}', insecure-skip-tls-verify: true", server.url()), user)
}

/// Writes a kubeconfig with these fields of the cluster and the user.
fn kubeconfig_at(directory: &TempDir, cluster: &str, user: &str) -> ClientConnectionConfiguration {
    let path = directory.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {user}}}]\n"
    );
    fs::write(&path, text).unwrap();
    ClientConnectionConfiguration { kubeconfig: path.to_str().unwrap().to_owned(), ..connection() }
}

async fn start(connection: &ClientConnectionConfiguration) -> Consumer {
    Consumer::from_source(ApiServer::new(connection, None, NODE).await.unwrap().with_timing(timing()))
}

pub(crate) async fn fake_requiring(token: &str) -> SecureServer {
    let fake = SecureServer::start().await;
    require(&fake, token);
    fake
}

/// Makes the server accept this token only.
fn require(fake: &FakeApiServer, token: &str) {
    fake.behave(|behaviour| behaviour.authorization = Some(format!("Bearer {token}")));
}

/// Writes a credential plugin that runs this shell command. Returns the user of a kubeconfig.
pub(crate) fn plugin(directory: &TempDir, line: &str) -> String {
    let plugin = write(&directory.path().join("plugin"), &format!("#!/bin/sh\n{line}\n"));
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: {}, interactiveMode: IfAvailable}}}}",
        plugin.display()
    )
}

/// Returns the output of a credential plugin with this token.
pub(crate) fn credential(token: &str) -> String {
    format!(
        r#"{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"{token}"}}}}"#
    )
}

pub(crate) fn write(path: &Path, text: &str) -> PathBuf {
    fs::write(path, text).unwrap();
    path.to_owned()
}

#[tokio::test]
async fn token_in_the_kubeconfig_is_sent() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("s3cret").await);
    let mut consumer = start(&kubeconfig(&directory, &fake, "{token: s3cret}")).await;
    consumer.until_synced().await;
    assert_eq!(consumer.take_log(), [""; 0]);
}

#[tokio::test]
async fn user_name_and_password_are_sent() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), SecureServer::start().await);
    // `admin:open sesame`.
    fake.behave(|behaviour| behaviour.authorization = Some("Basic YWRtaW46b3BlbiBzZXNhbWU=".to_owned()));
    let mut consumer = start(&kubeconfig(&directory, &fake, "{username: admin, password: open sesame}")).await;
    consumer.until_synced().await;
    assert_eq!(consumer.take_log(), [""; 0]);
}

#[tokio::test]
async fn token_in_the_kubeconfig_takes_precedence_over_that_of_a_plugin() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("inline").await);
    let user = plugin(&directory, &format!("echo '{}'", credential("from-a-plugin")));
    let user = user.replacen('{', "{token: inline, ", 1);
    let mut consumer = start(&kubeconfig(&directory, &fake, &user)).await;
    consumer.until_synced().await;
    assert_eq!(consumer.take_log(), [""; 0]);
}

#[tokio::test]
async fn token_in_the_kubeconfig_is_used_while_the_token_file_is_missing() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("inline").await);
    let file = directory.path().join("token");
    let user = format!("{{token: inline, tokenFile: {}}}", file.display());
    let mut consumer = start(&kubeconfig(&directory, &fake, &user)).await;
    consumer.until_synced().await;
    write(&file, "of-file");
    require(&fake, "of-file");
    fake.end_watches();
    consumer.catch_up(&fake).await;
    assert_eq!(consumer.take_log(), [""; 0]);
}

#[tokio::test]
async fn credentials_in_the_url_are_sent_and_not_printed() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), SecureServer::start().await);
    // `admin:p@ss`.
    fake.behave(|behaviour| behaviour.authorization = Some("Basic YWRtaW46cEBzcw==".to_owned()));
    let cluster = format!("server: 'https://admin:p%40ss@{}', insecure-skip-tls-verify: true", fake.address);
    let mut consumer = start(&kubeconfig_at(&directory, &cluster, "{token: unused}")).await;
    consumer.until_synced().await;
    fake.behave(|behaviour| behaviour.authorization = Some("Basic bm8=".to_owned()));
    fake.end_watches();
    consumer.until("a problem", |observed| !observed.problems.is_empty()).await;
    let problems = &consumer.observed.problems;
    assert!(problems.iter().all(|text| text.contains(&fake.url()) && !text.contains("ss@")), "{problems:?}");
}

#[tokio::test]
async fn plugin_of_another_version_is_reported() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("t").await);
    let output = credential("t").replace("/v1", "/v1beta1");
    let mut consumer = start(&kubeconfig(&directory, &fake, &plugin(&directory, &format!("echo '{output}'")))).await;
    consumer.until("a problem", |observed| observed.problems.iter().any(|text| text.contains("v1beta1"))).await;
}

#[tokio::test]
async fn credentials_are_not_sent_without_tls() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(&directory.path().join("token"), "s3cret");
    let marker = directory.path().join("plugin-has-run");
    let users = [
        "{token: s3cret}".to_owned(),
        format!("{{tokenFile: {}}}", file.display()),
        "{username: admin, password: s3cret}".to_owned(),
        plugin(&directory, &format!("touch {}; echo '{}'", marker.display(), credential("s3cret"))),
    ];
    for user in users {
        let fake = FakeApiServer::start().await;
        let connection = kubeconfig_at(&directory, &format!("server: '{}'", fake.url()), &user);
        let mut consumer = start(&connection).await;
        consumer.until_synced().await;
        assert_eq!(fake.authorization_headers(), [""; 0], "{user}");
        // The same applies to the address of the command line.
        let connection = kubeconfig_at(&directory, "server: 'https://192.0.2.1'", &user);
        let source = ApiServer::new(&connection, Some(&fake.url()), NODE).await.unwrap();
        Consumer::from_source(source.with_timing(timing())).until_synced().await;
        assert_eq!(fake.authorization_headers(), [""; 0], "{user}");
    }
    assert!(!marker.exists(), "the plugin is not needed");
}

#[tokio::test]
async fn host_name_of_the_server_is_resolved() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("s3cret").await);
    let cluster = format!("server: 'https://localhost:{}', insecure-skip-tls-verify: true", fake.address.port());
    let mut consumer = start(&kubeconfig_at(&directory, &cluster, "{token: s3cret}")).await;
    consumer.until_synced().await;
    assert_eq!(consumer.take_log(), [""; 0]);
    let port = fake.address.port();
    let resolved = |observed: &Observed| observed.addresses.contains(&([127, 0, 0, 1], port).into());
    consumer.until("the address that the name stands for", resolved).await;
}

#[tokio::test]
async fn address_of_the_server_is_reported_before_any_object() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("t").await);
    let source = ApiServer::new(&kubeconfig(&directory, &fake, "{token: t}"), None, NODE).await.unwrap();
    let mut consumer = Consumer::from_source(source.with_timing(timing()));
    let batch = consumer.batches.recv().await.unwrap();
    let [Event::ApiServer(addresses)] = &batch[..] else { panic!("{batch:?}") };
    assert_eq!(addresses, &[fake.address]);
}

#[tokio::test]
async fn token_file_takes_precedence_and_is_read_again() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("first").await);
    let file = write(&directory.path().join("token"), "first\n");
    let user = format!("{{token: other, tokenFile: {}}}", file.display());
    let mut consumer = start(&kubeconfig(&directory, &fake, &user)).await;
    consumer.until_synced().await;
    write(&file, "second\n");
    require(&fake, "second");
    fake.end_watches();
    consumer.catch_up(&fake).await;
    assert_eq!(consumer.take_log(), [""; 0]);
}

#[tokio::test]
async fn last_token_is_used_after_the_token_file_is_deleted() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("only").await);
    let file = write(&directory.path().join("token"), "only");
    let user = format!("{{tokenFile: {}}}", file.display());
    let mut consumer = start(&kubeconfig(&directory, &fake, &user)).await;
    consumer.until_synced().await;
    fs::remove_file(&file).unwrap();
    fake.end_watches();
    consumer.catch_up(&fake).await;
    assert_eq!(consumer.take_log(), [""; 0]);
}

#[tokio::test]
async fn missing_token_file_is_reported_until_it_exists() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("late").await);
    let file = directory.path().join("token");
    let mut consumer = start(&kubeconfig(&directory, &fake, &format!("{{tokenFile: {}}}", file.display()))).await;
    let problem = format!(
        "cannot prepare requests to the API server at {}: cannot read the token file {}: No such file or directory \
         (os error 2)",
        fake.url(),
        file.display()
    );
    consumer.until("a problem", |observed| observed.problems.contains(&problem)).await;
    write(&file, "late");
    consumer.until_synced().await;
    consumer.catch_up(&fake).await;
    assert_eq!(consumer.take_log(), [format!("problem: {problem}"), format!("resolved: {problem}")]);
}

#[tokio::test]
async fn kubeconfig_is_read_again_when_its_credentials_are_rejected() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("old").await);
    let mut consumer = start(&kubeconfig(&directory, &fake, "{token: old}")).await;
    consumer.until_synced().await;
    kubeconfig(&directory, &fake, "{token: new}");
    require(&fake, "new");
    fake.end_watches();
    consumer.catch_up(&fake).await;
    assert_eq!(consumer.take_log(), [""; 0], "renewed credentials are not a problem");
}

#[tokio::test]
async fn credential_plugin_returns_the_token() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("from-a-plugin").await);
    let user = plugin(&directory, &format!("echo '{}'", credential("from-a-plugin")));
    let mut consumer = start(&kubeconfig(&directory, &fake, &user)).await;
    consumer.until_synced().await;
    assert_eq!(consumer.take_log(), [""; 0]);
}

#[tokio::test]
async fn credential_plugin_runs_again_when_its_token_is_rejected() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("first").await);
    let output = write(&directory.path().join("output"), &credential("first"));
    let user = plugin(&directory, &format!("cat {}", output.display()));
    let mut consumer = start(&kubeconfig(&directory, &fake, &user)).await;
    consumer.until_synced().await;
    write(&output, &credential("second"));
    require(&fake, "second");
    fake.end_watches();
    consumer.catch_up(&fake).await;
    assert_eq!(consumer.take_log(), [""; 0], "renewed credentials are not a problem");
}

#[tokio::test]
async fn failing_credential_plugin_is_reported_with_its_standard_error() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("any").await);
    let user = "{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, \
                args: [-c, 'echo no luck >&2; exit 3']}}";
    let mut consumer = start(&kubeconfig(&directory, &fake, user)).await;
    consumer.until("a problem", |observed| observed.problems.iter().any(|text| text.contains("no luck"))).await;
}

#[tokio::test]
async fn token_that_no_header_can_contain_is_reported_until_it_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(&directory.path().join("token"), "two\nlines\n");
    let problem = |cause: &str, fake: &SecureServer| {
        format!(
            "cannot prepare requests to the API server at {}: {cause} contains a line break or another control character",
            fake.url()
        )
    };
    let output = credential("one\\nline");
    for (user, cause) in [
        (r#"{token: "s3cret\n"}"#.to_owned(), "the token of user \"u\" in the kubeconfig".to_owned()),
        (r#"{token: "s3cret", as: "a\nb"}"#.to_owned(), "the as of user \"u\" in the kubeconfig".to_owned()),
        (
            r#"{token: t, as: a, as-user-extra: {k: ["a\rb"]}}"#.to_owned(),
            "the as-user-extra of user \"u\" in the kubeconfig".to_owned(),
        ),
        (format!("{{tokenFile: {}}}", file.display()), format!("the token in the file {}", file.display())),
        (
            plugin(&directory, &format!("printf '%s' '{output}'")),
            format!("the credential plugin {}/plugin printed a token that", directory.path().display()),
        ),
    ] {
        let fake = fake_requiring("new").await;
        let mut consumer = start(&kubeconfig(&directory, &fake, &user)).await;
        let problem = problem(&cause, &fake);
        consumer.until(&problem, |observed| observed.problems.contains(&problem)).await;
        if user.contains("tokenFile") {
            write(&file, "new\n");
        } else {
            kubeconfig(&directory, &fake, "{token: new}");
        }
        consumer.until_synced().await;
    }
}

#[tokio::test]
async fn token_that_becomes_unsendable_does_not_end_the_source() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("old").await);
    let mut consumer = start(&kubeconfig(&directory, &fake, "{token: old}")).await;
    consumer.until_synced().await;
    kubeconfig(&directory, &fake, r#"{token: "new\n"}"#);
    require(&fake, "new");
    fake.end_watches();
    consumer.until("a problem", |observed| observed.problems.iter().any(|text| text.contains("line break"))).await;
    kubeconfig(&directory, &fake, "{token: new}");
    consumer.catch_up(&fake).await;
}

#[tokio::test]
async fn missing_credential_plugin_is_reported_with_its_install_hint() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("t").await);
    let user = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: no-such-plugin, interactiveMode: Never, \
                installHint: 'Run install-plugin.'}}";
    let connection = kubeconfig(&directory, &fake, user);
    let mut consumer =
        Consumer::from_source(ApiServer::new(&connection, None, NODE).await.unwrap().with_timing(timing()));
    consumer.until("a problem", |observed| !observed.problems.is_empty()).await;
    let problem = consumer.observed.problems.pop_first().unwrap();
    assert!(
        problem.contains("no-such-plugin is not installed; the kubeconfig says how to install it: Run install-plugin."),
        "{problem}"
    );
}

#[tokio::test]
async fn hung_credential_plugin_is_killed_and_run_again() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("late").await);
    let marker = directory.path().join("hung");
    let hang = format!("[ -e {0} ] || {{ touch {0}; exec sleep 100000; }}", marker.display());
    let user = plugin(&directory, &format!("{hang}; echo '{}'", credential("late")));
    let source = ApiServer::new(&kubeconfig(&directory, &fake, &user), None, NODE).await.unwrap();
    let timing = Timing { plugin_patience: Duration::from_secs(1), ..timing() };
    let mut consumer = Consumer::from_source(source.with_timing(timing));
    consumer.until("a problem", |observed| observed.problems.iter().any(|text| text.contains("killed"))).await;
    consumer.until_synced().await;
}

#[tokio::test]
async fn master_takes_precedence_over_the_address_in_the_kubeconfig() {
    let (directory, fake, other) =
        (tempfile::tempdir().unwrap(), fake_requiring("t").await, fake_requiring("unused").await);
    let connection = kubeconfig(&directory, &other, "{token: t}");
    let source = ApiServer::new(&connection, Some(&fake.url()), NODE).await.unwrap();
    let mut consumer = Consumer::from_source(source.with_timing(timing()));
    consumer.until_synced().await;
    assert_eq!(other.requests(), [""; 0]);
}

#[tokio::test]
async fn missing_kubeconfig_is_an_error_at_once() {
    let connection = ClientConnectionConfiguration {
        kubeconfig: "/does/not/exist".to_owned(),
        ..ClientConnectionConfiguration::default()
    };
    let error = ApiServer::new(&connection, None, NODE).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot load the kubeconfig /does/not/exist");
}
