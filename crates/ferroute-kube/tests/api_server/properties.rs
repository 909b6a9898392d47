use std::{collections::BTreeMap, time::Duration};

use ferroute_kube::testing::{ApiDouble, Fault, Streaming};
use ferroute_source::Resource;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{FORMS, Following, NODE, node, service, service_cidr, slice};

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Apply(Resource, u8, u8),
    /// An object that is wrong in a field.
    Spoil(Resource, u8),
    /// An object that this proxy has nothing to do with.
    GiveAway(Resource, u8),
    Delete(Resource, u8),
    Bookmark,
    Cut,
    End,
    EndWith(u16),
    Forget,
    Meet(Fault),
    Streaming(Streaming),
    MostInPage(usize),
    Pages(bool),
    Repeats(bool),
    ExpiresInWatch(bool),
    UnknownFields(bool),
    Lag(usize),
    Piece(usize),
    /// Milliseconds for the follower.
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
        Just(Fault::Wait(0)),
    ];
    let streaming = prop::sample::select(vec![Streaming::Yes, Streaming::Refused]);
    prop_oneof![
        12 => (resource(), 0u8..6, any::<u8>()).prop_map(|(resource, name, value)| Step::Apply(resource, name, value)),
        1 => (resource(), 0u8..6).prop_map(|(resource, name)| Step::Spoil(resource, name)),
        1 => (resource(), 0u8..6).prop_map(|(resource, name)| Step::GiveAway(resource, name)),
        6 => (resource(), 0u8..6).prop_map(|(resource, name)| Step::Delete(resource, name)),
        14 => (0u64..12).prop_map(Step::Wait),
        2 => Just(Step::Bookmark),
        2 => Just(Step::Cut),
        2 => Just(Step::End),
        2 => prop::sample::select(vec![400, 410, 500]).prop_map(Step::EndWith),
        2 => Just(Step::Forget),
        4 => fault.prop_map(Step::Meet),
        1 => streaming.prop_map(Step::Streaming),
        1 => prop::sample::select(vec![1, 2, 3, 100]).prop_map(Step::MostInPage),
        1 => any::<bool>().prop_map(Step::Pages),
        1 => any::<bool>().prop_map(Step::Repeats),
        1 => any::<bool>().prop_map(Step::ExpiresInWatch),
        1 => any::<bool>().prop_map(Step::UnknownFields),
        1 => (0usize..8).prop_map(Step::Lag),
        1 => prop::sample::select(vec![3, 50, usize::MAX]).prop_map(Step::Piece),
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

async fn take(double: &ApiDouble, following: &mut Following, step: Step) {
    match step {
        Step::Apply(resource, number, value) => {
            double.apply(resource, object(resource, number, value));
        }
        Step::Spoil(resource, number) => {
            let mut object = object(resource, number, 0);
            object["status"] = json!("bad");
            object["endpoints"] = json!("bad");
            object["spec"] = json!("bad");
            double.apply(resource, object);
        }
        Step::GiveAway(Resource::Nodes | Resource::ServiceCidrs, _) => {}
        Step::GiveAway(resource, number) => {
            let mut object = object(resource, number, 0);
            object["metadata"]["labels"] = json!({"service.kubernetes.io/headless": ""});
            double.apply(resource, object);
        }
        Step::Delete(resource, number) => {
            let (namespace, name) = name_of(resource, number);
            double.delete(resource, namespace, &name);
        }
        Step::Bookmark => double.bookmark(),
        Step::Cut => double.cut(),
        Step::End => double.end_watches(),
        Step::EndWith(code) => double.end_watches_with(code),
        Step::Forget => double.forget(),
        Step::Meet(fault) => double.fault(fault),
        Step::Streaming(streaming) => double.behave(|behaviour| behaviour.streaming = streaming),
        Step::MostInPage(most) => double.behave(|behaviour| behaviour.most_in_page = most),
        Step::Pages(pages) => double.behave(|behaviour| behaviour.pages = pages),
        Step::Repeats(repeats) => double.behave(|behaviour| behaviour.repeats = repeats),
        Step::ExpiresInWatch(in_watch) => double.behave(|behaviour| behaviour.expires_in_watch = in_watch),
        Step::UnknownFields(unknown) => double.behave(|behaviour| behaviour.unknown_fields = unknown),
        Step::Lag(lag) => double.behave(|behaviour| behaviour.lag = lag),
        Step::Piece(piece) => double.behave(|behaviour| behaviour.piece = piece),
        Step::Wait(milliseconds) => following.take_for(Duration::from_millis(milliseconds)).await,
    }
}

fn is_bad(object: &Value) -> bool {
    object["status"].is_string()
}

/// What the double shows, in the form in which the follower knows it. `None` for objects that are bad.
fn truth(double: &ApiDouble) -> BTreeMap<(Resource, String), Option<(u64, String)>> {
    let all = Resource::ALL.into_iter().flat_map(|resource| {
        let objects = double.objects(resource);
        objects.into_iter().map(move |object| (resource, object))
    });
    let seen = all.filter(|(resource, object)| *resource != Resource::Nodes || object["metadata"]["name"] == NODE);
    seen.map(|(resource, object)| {
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
        let good = (!is_bad(&object)).then(|| (version, value.as_str().unwrap().to_owned()));
        ((resource, name), good)
    })
    .collect()
}

/// Whether the follower knows exactly what is there; of bad objects it may know an older state.
fn agrees(told: &crate::Told, truth: &BTreeMap<(Resource, String), Option<(u64, String)>>) -> bool {
    told.objects.keys().all(|key| truth.contains_key(key))
        && truth.iter().all(|(key, good)| good.is_none() || told.objects.get(key) == good.as_ref())
        && told.problems.len() == truth.values().filter(|good| good.is_none()).count()
        && works(told)
}

/// Whether nothing is wrong but objects.
fn works(told: &crate::Told) -> bool {
    told.problems.iter().all(|problem| problem.contains(" is passed over"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// `Told` checks on the way that nothing is told twice, and nothing deleted that was not told.
    #[test]
    fn whatever_happens_the_end_is_as_the_server_has_it(
        media_type in prop::sample::select(FORMS.to_vec()),
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let double = ApiDouble::start().await;
            let mut following = Following::start_in(media_type, &double).await;
            if let [.., Step::Wait(_)] = *steps {
                following.until_synced().await;
            }
            for step in steps {
                take(&double, &mut following, step).await;
            }
            double.clear_faults();
            double.behave(|behaviour| behaviour.repeats = false);
            let truth = truth(&double);
            following.until(&format!("{truth:#?}"), |told| told.is_synced(1) && agrees(told, &truth)).await;
            // What was under way has come by now, and has changed nothing.
            double.delete(Resource::Nodes, "", NODE);
            following.settle(&double).await;
            // A list that an earlier fault has led to may show the marks before its end.
            following.until("all works", works).await;
            let mut told = std::mem::take(&mut following.told);
            told.objects.retain(|(resource, name), _| *resource != Resource::Nodes && !name.ends_with("mark"));
            let mut truth = truth;
            truth.retain(|(resource, _), _| *resource != Resource::Nodes);
            assert!(agrees(&told, &truth), "{told:#?} is not {truth:#?}");
        });
    }
}
