//! The time of the API server.

use std::time::{Duration, SystemTime};

use ferroute_kube::{ApiServer, ServerTimeError, testing::FakeApiServer};

use crate::{NODE, connection, timing};

#[tokio::test]
async fn server_time_is_known_without_valid_credentials() {
    let fake = FakeApiServer::start().await;
    fake.behave(|behaviour| behaviour.authorization = Some("Bearer secret".to_owned()));
    let server = ApiServer::new(&connection(), Some(&fake.url()), NODE).await.unwrap().with_timing(timing());
    let time = server.server_time().await.unwrap();
    // Both clocks are this machine's.
    let difference = time.duration_since(SystemTime::now()).unwrap_or_else(|behind| behind.duration());
    assert!(difference < Duration::from_secs(86_400), "{difference:?}");
}

#[tokio::test]
async fn server_time_of_an_unreachable_server_is_an_error() {
    let fake = FakeApiServer::start().await;
    let url = fake.url();
    drop(fake);
    let server = ApiServer::new(&connection(), Some(&url), NODE).await.unwrap().with_timing(timing());
    let error = server.server_time().await.unwrap_err();
    assert!(matches!(error, ServerTimeError::NoResponse(_)), "{error}");
    assert!(error.to_string().contains(&url), "{error}");
}
