//! Shows how the requests of many nodes are distributed over time after events of the API server.
//!
//! ```text
//! cargo run -p ferroute-kube --example fleet -- [NODES [SERVICES [FIGURES.csv]]]
//! ```
//!
//! All nodes follow one fake API server, each with a separate client and the delays of the daemon. The server restarts,
//! loses its history, and is overloaded. Its responses are counted every tenth of a second; the numbers are printed by
//! second, and written as CSV, from which `make plots` draws. The program takes as long as the events, about two minutes.

#![expect(clippy::print_stdout, reason = "the program prints its results")]

use std::{env, fmt::Write as _, fs, thread, time::Duration};

use ferroute_config::ClientConnectionConfiguration;
use ferroute_kube::{ApiServer, testing::FakeApiServer};
use ferroute_source::Resource;
use serde_json::json;
use tokio::{
    runtime::Builder,
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

type Error = Box<dyn std::error::Error>;

/// An event of the server.
struct Event {
    name: &'static str,
    begin: Change,
    /// End of the event, with its time; `None` for events without an end.
    end: Option<(Duration, Change)>,
}

/// Changes the server's behaviour.
type Change = fn(&FakeApiServer);

/// Totals of the server at some time.
#[derive(Clone, Copy, Default)]
struct Sample {
    begun: u64,
    open: u64,
    bytes: u64,
}

/// The number of lists per second, the lists that were open at once, and the bytes, each by second.
struct Course {
    name: &'static str,
    seconds: Vec<Sample>,
}

const EVENTS: [Event; 3] = [
    Event {
        name: "restart: 20 s without an answer",
        begin: |server| {
            server.behave(|behaviour| behaviour.down = true);
            lose_history(server);
            server.cut_watches();
        },
        end: Some((Duration::from_secs(20), |server| server.behave(|behaviour| behaviour.down = false))),
    },
    Event {
        name: "history lost: watches end with 410",
        begin: |server| {
            lose_history(server);
            server.fail_watches(410);
        },
        end: None,
    },
    Event {
        name: "overload: 429 for 10 s and then 410",
        begin: |server| {
            server.behave(|behaviour| behaviour.status = Some((429, Some(1))));
            lose_history(server);
            server.fail_watches(410);
        },
        end: Some((Duration::from_secs(10), |server| server.behave(|behaviour| behaviour.status = None))),
    },
];

/// Changes an object and discards the history, so that no watch can resume from a version of the nodes.
fn lose_history(server: &FakeApiServer) {
    server.apply(Resource::Nodes, json!({"metadata": {"name": "another"}}));
    server.compact();
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |index: usize, default| arguments.get(index).map_or(Ok(default), |text| text.parse::<usize>());
    let (nodes, services) = (number(0, 500)?, number(1, 50)?);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let server = runtime.block_on(FakeApiServer::start());
    for number in 0..services {
        server.apply(
            Resource::Services,
            json!({"metadata": {"namespace": "default", "name": format!("service-{number}")},
                   "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}),
        );
    }
    let url = server.url();
    // The nodes have a separate thread, so that they do not delay the server.
    thread::spawn(move || follow(&url, nodes));
    let courses = runtime.block_on(observe(&server, nodes));
    println!("{nodes} nodes, {services} Services");
    for Course { name, seconds } in &courses {
        println!("\n{name}\nsecond\tlists\topen at once\tkB");
        for (second, Sample { begun, open, bytes }) in seconds.iter().enumerate() {
            println!("{second}\t{begun}\t{open}\t{}", bytes / 1000);
        }
    }
    Ok(arguments.get(2).map_or(Ok(()), |path| fs::write(path, csv(&courses)))?)
}

/// Runs the nodes on the calling thread.
fn follow(url: &str, nodes: usize) {
    let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
    runtime.block_on(async {
        let (sender, mut events) = mpsc::channel(1000);
        for number in 0..nodes {
            let connection = ClientConnectionConfiguration { qps: -1.0, ..ClientConnectionConfiguration::default() };
            let server = ApiServer::new(&connection, Some(url), &format!("node-{number}")).await;
            let Ok(server) = server else { return };
            tokio::spawn(server.follow(sender.clone()));
        }
        while events.recv().await.is_some() {}
    });
}

async fn observe(server: &FakeApiServer, nodes: usize) -> Vec<Course> {
    // Services, slices, the Node and ServiceCIDRs of each node.
    let all = 4 * nodes as u64;
    while server.lists().1 < all {
        sleep(Duration::from_millis(100)).await;
    }
    let mut courses = Vec::new();
    for Event { name, begin, end } in EVENTS {
        sleep(Duration::from_secs(2)).await;
        begin(server);
        let start = Instant::now();
        let mut end = end;
        let mut seconds = Vec::new();
        let mut before = server.lists().0;
        let mut sent = server.bytes_sent();
        for second in 1..=SECONDS {
            let mut most = 0;
            for tenth in 0..10 {
                sleep_until(start + Duration::from_secs(second - 1) + Duration::from_millis(100 * (tenth + 1))).await;
                let (begun, ended) = server.lists();
                most = most.max(begun - ended);
                if let Some((_, stop)) = end.take_if(|(after, _)| start.elapsed() >= *after) {
                    stop(server);
                }
            }
            let (begun, bytes) = (server.lists().0, server.bytes_sent());
            seconds.push(Sample { begun: begun - before, open: most, bytes: bytes - sent });
            (before, sent) = (begun, bytes);
        }
        courses.push(Course { name, seconds });
    }
    courses
}

/// Returns the figures of each second, for the plot of docs/performance.md.
fn csv(courses: &[Course]) -> String {
    let mut text = "event,second,lists,open,kilobytes\n".to_owned();
    for Course { name, seconds } in courses {
        for (second, Sample { begun, open, bytes }) in seconds.iter().enumerate() {
            writeln!(text, "{name},{second},{begun},{open},{}", bytes / 1000).expect("strings accept everything");
        }
    }
    text
}

/// Period for which each event is observed.
const SECONDS: u64 = 40;
