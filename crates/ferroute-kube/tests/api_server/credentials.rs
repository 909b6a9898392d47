use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use ferroute_config::ClientConnectionConfiguration;
use ferroute_kube::{ApiServer, testing::ApiDouble};
use tempfile::TempDir;

use crate::{Following, NODE, connection, timing};

/// A kubeconfig for the double with a user of these fields.
fn kubeconfig(directory: &TempDir, double: &ApiDouble, user: &str) -> ClientConnectionConfiguration {
    let path = directory.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: \"{}\"}}}}]\nusers: [{{name: u, user: {user}}}]\n",
        double.url()
    );
    fs::write(&path, text).unwrap();
    ClientConnectionConfiguration { kubeconfig: path.to_str().unwrap().to_owned(), ..connection() }
}

async fn follow(connection: &ClientConnectionConfiguration) -> Following {
    Following::of(ApiServer::new(connection, None, NODE).await.unwrap().with_timing(timing()))
}

async fn double_for(token: &str) -> ApiDouble {
    let double = ApiDouble::start().await;
    want(&double, token);
    double
}

/// From now on the double wants this token and no other.
fn want(double: &ApiDouble, token: &str) {
    double.behave(|behaviour| behaviour.authorization = Some(format!("Bearer {token}")));
}

/// A program that runs this line of shell, as the `exec` of a kubeconfig's user.
fn program(directory: &TempDir, line: &str) -> String {
    let program = write(&directory.path().join("plugin"), &format!("#!/bin/sh\n{line}\n"));
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: {}, interactiveMode: IfAvailable}}}}",
        program.display()
    )
}

/// What a program prints that gives a token.
fn credential(token: &str) -> String {
    format!(
        r#"{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"{token}"}}}}"#
    )
}

fn write(path: &Path, text: &str) -> PathBuf {
    fs::write(path, text).unwrap();
    path.to_owned()
}

#[tokio::test]
async fn a_token_in_the_kubeconfig_is_shown() {
    let (directory, double) = (tempfile::tempdir().unwrap(), double_for("s3cret").await);
    let mut following = follow(&kubeconfig(&directory, &double, "{token: s3cret}")).await;
    following.until_synced().await;
    assert_eq!(following.news(), [""; 0]);
}

#[tokio::test]
async fn a_name_and_a_password_are_shown() {
    let (directory, double) = (tempfile::tempdir().unwrap(), ApiDouble::start().await);
    // `admin:open sesame`.
    double.behave(|behaviour| behaviour.authorization = Some("Basic YWRtaW46b3BlbiBzZXNhbWU=".to_owned()));
    let mut following = follow(&kubeconfig(&directory, &double, "{username: admin, password: open sesame}")).await;
    following.until_synced().await;
    assert_eq!(following.news(), [""; 0]);
}

#[tokio::test]
async fn a_token_in_a_file_goes_before_it_and_is_followed_when_it_changes() {
    let (directory, double) = (tempfile::tempdir().unwrap(), double_for("first").await);
    let file = write(&directory.path().join("token"), "first\n");
    let user = format!("{{token: other, tokenFile: {}}}", file.display());
    let mut following = follow(&kubeconfig(&directory, &double, &user)).await;
    following.until_synced().await;
    write(&file, "second\n");
    want(&double, "second");
    double.end_watches();
    following.settle(&double).await;
    assert_eq!(following.news(), [""; 0]);
}

#[tokio::test]
async fn a_token_file_that_vanishes_leaves_the_last_token() {
    let (directory, double) = (tempfile::tempdir().unwrap(), double_for("only").await);
    let file = write(&directory.path().join("token"), "only");
    let user = format!("{{tokenFile: {}}}", file.display());
    let mut following = follow(&kubeconfig(&directory, &double, &user)).await;
    following.until_synced().await;
    fs::remove_file(&file).unwrap();
    double.end_watches();
    following.settle(&double).await;
    assert_eq!(following.news(), [""; 0]);
}

#[tokio::test]
async fn a_missing_token_file_is_told_and_waited_for() {
    let (directory, double) = (tempfile::tempdir().unwrap(), double_for("late").await);
    let file = directory.path().join("token");
    let mut following = follow(&kubeconfig(&directory, &double, &format!("{{tokenFile: {}}}", file.display()))).await;
    let problem = format!(
        "cannot prepare requests to the API server at {}: cannot read the token file {}: No such file or directory \
         (os error 2)",
        double.url(),
        file.display()
    );
    following.until("a problem", |told| told.problems.contains(&problem)).await;
    write(&file, "late");
    following.until_synced().await;
    following.settle(&double).await;
    assert_eq!(following.news(), [format!("problem: {problem}"), format!("solved: {problem}")]);
}

#[tokio::test]
async fn a_kubeconfig_that_changes_is_read_again_when_its_credentials_fail() {
    let (directory, double) = (tempfile::tempdir().unwrap(), double_for("old").await);
    let mut following = follow(&kubeconfig(&directory, &double, "{token: old}")).await;
    following.until_synced().await;
    kubeconfig(&directory, &double, "{token: new}");
    want(&double, "new");
    double.end_watches();
    following.settle(&double).await;
    assert_eq!(following.news(), [""; 0], "nobody needs to hear of that");
}

#[tokio::test]
async fn a_program_gives_the_token() {
    let (directory, double) = (tempfile::tempdir().unwrap(), double_for("from-a-program").await);
    let user = program(&directory, &format!("echo '{}'", credential("from-a-program")));
    let mut following = follow(&kubeconfig(&directory, &double, &user)).await;
    following.until_synced().await;
    assert_eq!(following.news(), [""; 0]);
}

#[tokio::test]
async fn a_program_is_asked_again_when_its_token_is_not_accepted_any_more() {
    let (directory, double) = (tempfile::tempdir().unwrap(), double_for("first").await);
    let answer = write(&directory.path().join("answer"), &credential("first"));
    let user = program(&directory, &format!("cat {}", answer.display()));
    let mut following = follow(&kubeconfig(&directory, &double, &user)).await;
    following.until_synced().await;
    write(&answer, &credential("second"));
    want(&double, "second");
    double.end_watches();
    following.settle(&double).await;
    assert_eq!(following.news(), [""; 0], "nobody needs to hear of that");
}

#[tokio::test]
async fn a_program_that_fails_is_told_with_its_complaint() {
    let (directory, double) = (tempfile::tempdir().unwrap(), double_for("any").await);
    let user = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, args: [-c, 'echo no luck >&2; exit \
                3']}}";
    let mut following = follow(&kubeconfig(&directory, &double, user)).await;
    following.until("a problem", |told| told.problems.iter().any(|text| text.contains("no luck"))).await;
}

#[tokio::test]
async fn master_goes_before_the_address_in_the_kubeconfig() {
    let (directory, double, other) =
        (tempfile::tempdir().unwrap(), double_for("t").await, double_for("nobody asks this one").await);
    let connection = kubeconfig(&directory, &other, "{token: t}");
    let source = ApiServer::new(&connection, Some(&double.url()), NODE).await.unwrap();
    let mut following = Following::of(source.with_timing(timing()));
    following.until_synced().await;
    assert_eq!(other.requests(), [""; 0]);
}

#[tokio::test]
async fn a_kubeconfig_that_is_missing_is_an_error_at_once() {
    let connection = ClientConnectionConfiguration {
        kubeconfig: "/does/not/exist".to_owned(),
        ..ClientConnectionConfiguration::default()
    };
    let error = ApiServer::new(&connection, None, NODE).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot use the kubeconfig /does/not/exist");
}
