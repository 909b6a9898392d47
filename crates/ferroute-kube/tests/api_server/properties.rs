use std::{collections::BTreeMap, time::Duration};

use ferroute_kube::testing::{FakeApiServer, Fault, Streaming};
use ferroute_source::Resource;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{Consumer, MEDIA_TYPES, NODE, node, service, service_cidr, slice};

/// A step of a scenario.
#[derive(Clone, Debug)]
enum Step {
    Apply(Resource, u8, u8),
    /// Applies an object with an invalid field.
    ApplyInvalid(Resource, u8),
    /// Applies an object that the label selector excludes.
    Exclude(Resource, u8),
    Delete(Resource, u8),
    Bookmark,
    Cut,
    End,
    Fail(u16),
    Compact,
    Inject(Fault),
    Streaming(Streaming),
    MaxPage(usize),
    Pages(bool),
    Repeats(bool),
    ExpiresInWatch(bool),
    UnknownFields(bool),
    Gzip(bool),
    Lag(usize),
    Chunk(usize),
    /// Receives events for this many milliseconds.
    Wait(u64),
}

fn resource() -> impl Strategy<Value = Resource> {
    prop::sample::select(Resource::ALL.to_vec())
}

fn step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![
        prop::sample::select(vec![401, 403, 404, 410, 422, 429, 500, 503, 504]).prop_map(Fault::Status),
        (1usize..2000).prop_map(Fault::Cut),
        Just(Fault::Html),
        Just(Fault::RetryAfter(0)),
    ];
    let streaming = prop::sample::select(vec![Streaming::Yes, Streaming::Rejected]);
    prop_oneof![
        12 => (resource(), 0u8..6, any::<u8>()).prop_map(|(resource, name, value)| Step::Apply(resource, name, value)),
        1 => (resource(), 0u8..6).prop_map(|(resource, name)| Step::ApplyInvalid(resource, name)),
        1 => (resource(), 0u8..6).prop_map(|(resource, name)| Step::Exclude(resource, name)),
        6 => (resource(), 0u8..6).prop_map(|(resource, name)| Step::Delete(resource, name)),
        14 => (0u64..12).prop_map(Step::Wait),
        2 => Just(Step::Bookmark),
        2 => Just(Step::Cut),
        2 => Just(Step::End),
        2 => prop::sample::select(vec![400, 410, 500]).prop_map(Step::Fail),
        2 => Just(Step::Compact),
        4 => fault.prop_map(Step::Inject),
        1 => streaming.prop_map(Step::Streaming),
        1 => prop::sample::select(vec![1, 2, 3, 100]).prop_map(Step::MaxPage),
        1 => any::<bool>().prop_map(Step::Pages),
        1 => any::<bool>().prop_map(Step::Repeats),
        1 => any::<bool>().prop_map(Step::ExpiresInWatch),
        1 => any::<bool>().prop_map(Step::UnknownFields),
        1 => any::<bool>().prop_map(Step::Gzip),
        1 => (0usize..8).prop_map(Step::Lag),
        1 => prop::sample::select(vec![3, 50, usize::MAX]).prop_map(Step::Chunk),
    ]
}

fn name_of(resource: Resource, number: u8) -> (&'static str, String) {
    match resource {
        Resource::Nodes if number == 0 => ("", NODE.to_owned()),
        Resource::Nodes => ("", format!("other-{number}")),
        Resource::ServiceCidrs => ("", format!("x{number}")),
        Resource::Services | Resource::EndpointSlices => ("default", format!("x{number}")),
    }
}

fn object(resource: Resource, number: u8, value: u8) -> Value {
    let (_, name) = name_of(resource, number);
    let value = format!("10.0.0.{value}");
    match resource {
        Resource::Services => service(&name, &value),
        Resource::EndpointSlices => slice(&name, &value),
        Resource::Nodes => node(&name, &value),
        Resource::ServiceCidrs => service_cidr(&name, &value),
    }
}

async fn run(fake: &FakeApiServer, consumer: &mut Consumer, step: Step) {
    match step {
        Step::Apply(resource, number, value) => {
            fake.apply(resource, object(resource, number, value));
        }
        Step::ApplyInvalid(resource, number) => {
            let mut object = object(resource, number, 0);
            object["status"] = json!("bad");
            object["endpoints"] = json!("bad");
            object["spec"] = json!("bad");
            fake.apply(resource, object);
        }
        Step::Exclude(Resource::Nodes | Resource::ServiceCidrs, _) => {}
        Step::Exclude(resource, number) => {
            let mut object = object(resource, number, 0);
            let label = match resource {
                Resource::Services => "service.kubernetes.io/service-proxy-name",
                _ => "service.kubernetes.io/headless",
            };
            object["metadata"]["labels"] = json!({label: ""});
            fake.apply(resource, object);
        }
        Step::Delete(resource, number) => {
            let (namespace, name) = name_of(resource, number);
            fake.delete(resource, namespace, &name);
        }
        Step::Bookmark => fake.bookmark(),
        Step::Cut => fake.cut_watches(),
        Step::End => fake.end_watches(),
        Step::Fail(code) => fake.fail_watches(code),
        Step::Compact => fake.compact(),
        Step::Inject(fault) => fake.inject(fault),
        Step::Streaming(streaming) => fake.behave(|behaviour| behaviour.streaming = streaming),
        Step::MaxPage(most) => fake.behave(|behaviour| behaviour.max_page = most),
        Step::Pages(pages) => fake.behave(|behaviour| behaviour.pages = pages),
        Step::Repeats(repeats) => fake.behave(|behaviour| behaviour.repeats = repeats),
        Step::ExpiresInWatch(in_watch) => fake.behave(|behaviour| behaviour.expires_in_watch = in_watch),
        Step::UnknownFields(unknown) => fake.behave(|behaviour| behaviour.unknown_fields = unknown),
        Step::Gzip(gzip) => fake.behave(|behaviour| behaviour.gzip = gzip),
        Step::Lag(lag) => fake.behave(|behaviour| behaviour.lag = lag),
        Step::Chunk(chunk) => fake.behave(|behaviour| behaviour.chunk = chunk),
        Step::Wait(milliseconds) => consumer.receive_for(Duration::from_millis(milliseconds)).await,
    }
}

fn is_invalid(object: &Value) -> bool {
    object["status"].is_string()
}

/// Returns the state of the server as the consumer should observe it; `None` for invalid objects.
fn truth(fake: &FakeApiServer) -> BTreeMap<(Resource, String), Option<(u64, String)>> {
    let all = Resource::ALL.into_iter().flat_map(|resource| {
        let objects = fake.objects(resource);
        objects.into_iter().map(move |object| (resource, object))
    });
    let selected = all.filter(|(resource, object)| *resource != Resource::Nodes || object["metadata"]["name"] == NODE);
    selected
        .map(|(resource, object)| {
            let name = object["metadata"]["name"].as_str().unwrap();
            let name = match resource {
                Resource::Nodes | Resource::ServiceCidrs => name.to_owned(),
                Resource::Services | Resource::EndpointSlices => format!("default/{name}"),
            };
            let version = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            let value = match resource {
                Resource::Services => &object["spec"]["clusterIP"],
                Resource::EndpointSlices => &object["endpoints"][0]["addresses"][0],
                Resource::Nodes => &object["status"]["addresses"][0]["address"],
                Resource::ServiceCidrs => &object["spec"]["cidrs"][0],
            };
            let valid = (!is_invalid(&object)).then(|| (version, value.as_str().unwrap().to_owned()));
            ((resource, name), valid)
        })
        .collect()
}

/// Reports whether the consumer has observed exactly the state of the server; of invalid objects it may have an older one.
fn agrees(observed: &crate::Observed, truth: &BTreeMap<(Resource, String), Option<(u64, String)>>) -> bool {
    observed.objects.keys().all(|key| truth.contains_key(key))
        && truth.iter().all(|(key, valid)| valid.is_none() || observed.objects.get(key) == valid.as_ref())
        && observed.problems.len() == truth.values().filter(|valid| valid.is_none()).count()
        && observed.problems.len() == observed.invalid_objects
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// `Observed` also checks that no event is redundant.
    #[test]
    fn consumer_observes_the_state_of_the_server_after_any_scenario(
        media_type in prop::sample::select(MEDIA_TYPES.to_vec()),
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let fake = FakeApiServer::start().await;
            // Real servers have no version 0, from which a watch starts with all objects.
            fake.apply(Resource::Nodes, node("other", "192.0.2.1"));
            let mut consumer = Consumer::start_in(media_type, &fake).await;
            if let [.., Step::Wait(_)] = *steps {
                consumer.until_synced().await;
            }
            for step in steps {
                run(&fake, &mut consumer, step).await;
            }
            fake.clear_faults();
            fake.behave(|behaviour| behaviour.repeats = false);
            let truth = truth(&fake);
            consumer.until(&format!("{truth:#?}"), |observed| observed.is_synced(1) && agrees(observed, &truth)).await;
            // Changes that were still under way have no effect.
            fake.delete(Resource::Nodes, "", NODE);
            consumer.catch_up(&fake).await;
            let mut truth = truth;
            truth.retain(|(resource, _), _| *resource != Resource::Nodes);
            // A list after an earlier fault may return the marks before it ends.
            let is_unchanged = |observed: &crate::Observed| {
                let mut observed = observed.clone();
                observed.objects.retain(|(resource, name), _| *resource != Resource::Nodes && !name.ends_with("mark"));
                agrees(&observed, &truth)
            };
            consumer.until(&format!("{truth:#?}"), is_unchanged).await;
        });
    }
}
