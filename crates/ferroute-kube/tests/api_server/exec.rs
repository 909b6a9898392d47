//! Requests of users: programs in pods.

use std::{process::Command, time::Duration};

use ferroute_kube::{
    Cluster, ClusterError, ExecLimits, ExecOutput, PodContainer, UserAccess,
    testing::{ExecRequest, ExecResponse},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::credentials::{SecureServer, credential, fake_requiring, kubeconfig, plugin, write};

const LIMIT: Duration = Duration::from_secs(60);

fn container() -> PodContainer {
    PodContainer { namespace: "kube-system".into(), pod: "ferroute-x".into(), container: "ferroute".into() }
}

/// Returns the cluster behind TLS as a user with these credentials.
async fn cluster(directory: &TempDir, fake: &SecureServer, user: &str) -> Cluster {
    let kubeconfig = kubeconfig(directory, fake, user).kubeconfig.into();
    Cluster::new(UserAccess { kubeconfig: Some(kubeconfig), ..UserAccess::default() }, LIMIT).await.unwrap()
}

async fn exec(cluster: &Cluster, command: &[&str], time: Duration) -> Result<ExecOutput, ClusterError> {
    let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    cluster.exec(&container(), &command, ExecLimits { time, output: 1 << 20 }).await
}

#[tokio::test]
async fn programs_run_with_the_credentials_of_the_user() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(&directory.path().join("token"), "s3cret\n");
    let users = [
        "{token: s3cret}".to_owned(),
        format!("{{tokenFile: {}}}", file.display()),
        plugin(&directory, &format!("echo '{}'", credential("s3cret"))),
    ];
    for user in users {
        let fake = fake_requiring("s3cret").await;
        fake.set_exec(|request| ExecResponse::Print(format!("{request:?}").into_bytes()));
        let cluster = cluster(&directory, &fake, &user).await;
        let output = exec(&cluster, &["ferroute", "a&b=c d"], LIMIT).await.unwrap();
        let PodContainer { namespace, pod, container } = container();
        let command = vec!["ferroute".to_owned(), "a&b=c d".to_owned()];
        let request = ExecRequest { namespace, pod, container, command };
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{request:?}"), "{user}");
    }
    let fake = fake_requiring("another").await;
    fake.set_exec(|_| ExecResponse::Print(Vec::new()));
    let cluster = cluster(&directory, &fake, "{token: s3cret}").await;
    assert!(matches!(exec(&cluster, &["ferroute"], LIMIT).await, Err(ClusterError::Exec { .. })));
    let error = cluster.get::<Value>("/api/v1/namespaces/kube-system/pods").await.unwrap_err();
    assert!(matches!(&error, ClusterError::Status { status, .. } if status.as_u16() == 401), "{error:?}");
}

#[tokio::test]
async fn output_and_exit_status_of_a_program_arrive() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("s3cret").await);
    fake.set_exec(|request| {
        let mut command = Command::new("sh");
        command.arg("-c").args(&request.command);
        ExecResponse::Run(command)
    });
    let cluster = cluster(&directory, &fake, "{token: s3cret}").await;
    let output = exec(&cluster, &["head -c 300000 /dev/zero; echo oops >&2; exit 3"], LIMIT).await.unwrap();
    assert_eq!((output.status, output.stdout.len(), output.stderr.as_slice()), (3, 300_000, &b"oops\n"[..]));
    let output = exec(&cluster, &["true"], LIMIT).await.unwrap();
    assert_eq!(output, ExecOutput::default());
}

#[tokio::test]
async fn programs_that_give_no_result_are_errors() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("s3cret").await);
    let cluster = cluster(&directory, &fake, "{token: s3cret}").await;
    fake.set_exec(|_| ExecResponse::Hang);
    let late = exec(&cluster, &["ferroute"], Duration::from_millis(200)).await;
    assert!(matches!(late, Err(ClusterError::Late { .. })), "{late:?}");
    fake.set_exec(|_| ExecResponse::Cut(b"half".to_vec()));
    let cut = exec(&cluster, &["ferroute"], LIMIT).await;
    assert!(matches!(cut, Err(ClusterError::Exec { .. })), "{cut:?}");
    fake.set_exec(|_| ExecResponse::Status(403));
    let forbidden = exec(&cluster, &["ferroute"], LIMIT).await;
    assert!(matches!(&forbidden, Err(ClusterError::Exec { cause, .. }) if cause == "fake error 403"), "{forbidden:?}");
}

/// Peers that would use up memory: answers of any length, and pings whose answers they do not receive.
#[tokio::test]
async fn answers_of_peers_are_bounded() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), fake_requiring("s3cret").await);
    let cluster = cluster(&directory, &fake, "{token: s3cret}").await;
    for (response, problem) in [
        (ExecResponse::Print(vec![b'x'; (1 << 20) + 1]), "the output is longer than 1048576 bytes"),
        (ExecResponse::Pings, "the peer sends too many pings"),
    ] {
        let response = std::sync::Mutex::new(Some(response));
        fake.set_exec(move |_| response.lock().unwrap().take().unwrap());
        let failed = exec(&cluster, &["ferroute"], LIMIT).await;
        assert!(matches!(&failed, Err(ClusterError::Exec { cause, .. }) if cause == problem), "{:?}", failed.err());
    }
}
