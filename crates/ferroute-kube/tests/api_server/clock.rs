//! The API server's clock.

use std::time::{Duration, SystemTime};

use ferroute_kube::{ApiServer, ClockError, testing::ApiDouble};

use crate::{NODE, connection, timing};

#[tokio::test]
async fn the_time_is_told_also_to_those_who_are_refused() {
    let double = ApiDouble::start().await;
    // Nobody may ask for anything without it.
    double.behave(|behaviour| behaviour.authorization = Some("Bearer secret".to_owned()));
    let server = ApiServer::new(&connection(), Some(&double.url()), NODE).await.unwrap().with_timing(timing());
    let theirs = server.clock().await.unwrap();
    // Both are this machine's; a day is more than any test takes.
    let apart = theirs.duration_since(SystemTime::now()).unwrap_or_else(|behind| behind.duration());
    assert!(apart < Duration::from_secs(86_400), "{apart:?}");
}

#[tokio::test]
async fn a_server_that_is_away_tells_no_time() {
    let double = ApiDouble::start().await;
    let url = double.url();
    drop(double);
    let server = ApiServer::new(&connection(), Some(&url), NODE).await.unwrap().with_timing(timing());
    let error = server.clock().await.unwrap_err();
    assert!(matches!(error, ClockError::Unanswered(_)), "{error}");
    assert!(error.to_string().contains(&url), "{error}");
}
