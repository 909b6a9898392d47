//! The owners of contested frontends while rules are refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ferroute_config::{KubeProxyConfiguration, ModeName};
use ferroute_core::{
    Frontend, NodePortAddresses, Rejection, ServicePortEntry, ServicePortName,
    testing::{Cluster, Edit, arbitrary},
};
use ferroute_host::{AddressError, HostAddresses};
use ferroute_modes::{REGISTRY, Simulation};
use ferroute_nftables::{
    NftablesDataplane, Value,
    kernel::{ErrorKind, InterceptedKernel, Kernel, MemoryError, MemoryKernel},
    model::{Change as KernelChange, Data, Transaction},
    plan::NftablesSettings,
};
use proptest::{collection::vec, prelude::*};

use super::*;

const NODE: [u8; 4] = [192, 168, 0, 1];

/// Endpoints whose rules are refused.
type Refused = Arc<Mutex<BTreeSet<IpAddr>>>;

/// A dataplane that refuses the rules of service ports with some endpoints.
trait Refusing: Send {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError>;
    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError>;
}

/// Dataplane of a mode with an in-memory kernel. If rules are refused, it applies no rules and names the service port.
struct SimulatedMode {
    simulation: Box<dyn Simulation>,
    refused: Refused,
}

impl SimulatedMode {
    fn check<'a>(
        &self,
        table: &ServiceTable,
        mut names: impl Iterator<Item = &'a ServicePortName>,
    ) -> Result<(), DataplaneError> {
        let refused = self.refused.lock().unwrap();
        let is_refused = |name: &&ServicePortName| {
            let entry = table.entries.get(*name);
            entry.is_some_and(|entry| entry.endpoints.iter().any(|endpoint| refused.contains(&endpoint.address)))
        };
        match names.find(is_refused) {
            None => Ok(()),
            Some(name) => Err(DataplaneError::Rejected {
                rules: "rules".to_owned(),
                service_port: name.clone(),
                source: "refused".into(),
            }),
        }
    }
}

impl Refusing for SimulatedMode {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        self.check(table, changes.previous.keys())?;
        let sync = self.simulation.sync(table, changes).unwrap();
        Ok(SyncReport { written: sync.written, removed: sync.removed, ..SyncReport::default() })
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        self.check(table, table.entries.keys())?;
        let sync = self.simulation.resync(table).unwrap();
        Ok(SyncReport { written: sync.written, removed: sync.removed, ..SyncReport::default() })
    }
}

/// nftables mode, with a kernel that refuses endpoints. It applies all other changes itself.
impl<K: Kernel> Refusing for NftablesDataplane<K> {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        Dataplane::sync(self, table, changes)
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        Dataplane::resync(self, table)
    }
}

struct NodeAddresses;

impl HostAddresses for NodeAddresses {
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        Ok(vec![NODE.into()])
    }
}

fn refusing_kernel(refused: Refused) -> impl Kernel<Error = MemoryError> {
    InterceptedKernel::new(MemoryKernel::new(), move |kernel: &mut MemoryKernel, transaction: &Transaction| {
        let refused = refused.lock().unwrap();
        let is_refused = |change: &&KernelChange| {
            let KernelChange::AddElement(_, element) = change else { return false };
            let Some(Data::Values(values)) = &element.data else { return false };
            matches!(values.first(), Some(Value::Address(address)) if refused.contains(address))
        };
        match transaction.changes.iter().find(is_refused) {
            None => kernel.commit(transaction),
            Some(change) => Err(MemoryError {
                change: change.text(&transaction.table),
                kind: ErrorKind::Other,
                refused: Some(Box::new(change.clone())),
            }),
        }
    })
}

/// A dataplane and the entries whose rules it has accepted.
struct Recorder {
    inner: Box<dyn Refusing>,
    applied: BTreeMap<ServicePortName, ServicePortEntry>,
    host_addresses: Vec<IpAddr>,
}

#[derive(Clone)]
struct SharedRecorder(Arc<Mutex<Recorder>>);

impl Recorder {
    fn record<'a>(
        &mut self,
        table: &ServiceTable,
        names: impl Iterator<Item = &'a ServicePortName>,
        report: &SyncReport,
    ) {
        let is_rejected =
            |name: &ServicePortName| report.rejected.iter().any(|Rejection { service_port, .. }| service_port == name);
        for name in names.filter(|name| !is_rejected(name)) {
            match table.entries.get(name) {
                Some(entry) => self.applied.insert(name.clone(), entry.clone()),
                None => self.applied.remove(name),
            };
        }
    }
}

impl Dataplane for SharedRecorder {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        let mut recorder = self.0.lock().unwrap();
        for (name, previous) in &changes.previous {
            assert_eq!(recorder.applied.get(name), previous.as_ref(), "{name}: not the applied entry");
        }
        let report = recorder.inner.sync(table, changes)?;
        recorder.record(table, changes.previous.keys(), &report);
        Ok(report)
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        let mut recorder = self.0.lock().unwrap();
        let report = recorder.inner.resync(table)?;
        recorder.applied.clear();
        recorder.record(table, table.entries.keys(), &report);
        Ok(report)
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        Ok(false)
    }

    fn set_host_addresses(&mut self, addresses: &[IpAddr]) {
        self.0.lock().unwrap().host_addresses = addresses.to_vec();
    }
}

/// The syncs of IPv4 rules in one mode.
struct Case {
    mode: String,
    tracker: Tracker,
    sync: FamilySync,
    recorder: Arc<Mutex<Recorder>>,
    refused: Refused,
}

impl Case {
    /// Returns a case for each mode of the registry, and one for nftables mode with a kernel that refuses elements.
    fn all() -> Vec<Self> {
        let nftables = |refused: &Refused| {
            let settings = NftablesSettings { proxy: settings(), ..NftablesSettings::default() };
            let kernel = refusing_kernel(refused.clone());
            Box::new(NftablesDataplane::with_kernel(kernel, IpFamily::V4, settings, Box::new(NodeAddresses)))
        };
        let mut cases = vec![Self::new("refusing kernel".to_owned(), |refused| nftables(refused))];
        cases.extend(REGISTRY.names().into_iter().map(Self::of_mode));
        cases
    }

    fn of_mode(mode: ModeName) -> Self {
        let mut config = KubeProxyConfiguration::default().defaulted();
        config.mode = mode.as_str().into();
        config.node_port_addresses = vec!["192.168.0.0/24".into()];
        let resolved = REGISTRY.resolve(&config).unwrap();
        let simulation = REGISTRY.active(resolved.mode).simulate(IpFamily::V4, &resolved, vec![NODE.into()]);
        Self::new(mode.to_string(), |refused| Box::new(SimulatedMode { simulation, refused: refused.clone() }))
    }

    fn new(mode: String, dataplane: impl FnOnce(&Refused) -> Box<dyn Refusing>) -> Self {
        let refused = Refused::default();
        let recorder = Recorder { inner: dataplane(&refused), applied: BTreeMap::new(), host_addresses: Vec::new() };
        let recorder = Arc::new(Mutex::new(recorder));
        let sync = FamilySync::new(IpFamily::V4, Box::new(SharedRecorder(recorder.clone())), settings());
        Self { mode, tracker: Cluster::new(arbitrary::NODE).tracker(), sync, recorder, refused }
    }

    fn refuse(&self, endpoints: &[&str]) {
        *self.refused.lock().unwrap() = endpoints.iter().map(|address| address.parse().unwrap()).collect();
    }

    /// Syncs, and compares the kernel with the owners of the table.
    fn sync(&mut self) {
        let mut conntrack = FakeConntrack::default();
        let mut attempts = 0;
        let outcome = loop {
            match self.sync.sync(&mut self.tracker, &mut conntrack, &[NODE.into()], &|_| HashSet::new()) {
                Ok(outcome) => break outcome,
                // The next sync finds more service ports that are refused.
                Err(DataplaneError::Rejected { .. }) if attempts < 4 => attempts += 1,
                Err(error) => panic!("{}: {error:?}", self.mode),
            }
        };
        let table = self.tracker.table(IpFamily::V4);
        let mut recorder = self.recorder.lock().unwrap();
        assert_eq!(recorder.host_addresses, [IpAddr::from(NODE)], "not those by which the tracker decided");
        let waiting = table.entries.iter().filter(|(name, entry)| recorder.applied.get(*name) != Some(*entry)).count();
        let isolated = outcome.counts.isolated;
        assert!(waiting <= isolated, "{}: {waiting} service ports are not applied, {isolated} isolated", self.mode);
        for (name, applied) in &recorder.applied {
            let lost = &frontends(name, Some(applied)) - &frontends(name, table.entries.get(name));
            assert!(lost.is_empty(), "{}: {name} does not own {lost:?}", self.mode);
        }
        // The kernel has the rules of these entries, and no others.
        let refused = std::mem::take(&mut *self.refused.lock().unwrap());
        let expected = ServiceTable { entries: recorder.applied.clone(), ..table.clone() };
        let again = recorder.inner.sync(&expected, &Changes { node: true, ..Changes::default() }).unwrap();
        assert_eq!((again.written, again.removed), (0, 0), "{}", self.mode);
        *self.refused.lock().unwrap() = refused;
    }

    /// Returns the service port whose rules have a frontend, and its endpoints.
    fn owner(&self, frontend: &str) -> (String, Vec<String>) {
        let recorder = self.recorder.lock().unwrap();
        let has = |(name, entry): &(&ServicePortName, &ServicePortEntry)| {
            frontends(name, Some(entry)).iter().any(|it| it.to_string() == frontend)
        };
        let (name, entry) = recorder.applied.iter().find(has).unwrap_or_else(|| panic!("{}: {frontend}", self.mode));
        (name.service.to_string(), entry.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect())
    }
}

fn frontends(name: &ServicePortName, entry: Option<&ServicePortEntry>) -> BTreeSet<Frontend> {
    let frontends = entry.into_iter().flat_map(|entry| entry.service.frontends(name.protocol));
    frontends.map(|(_, frontend)| frontend).collect()
}

fn settings() -> ProxySettings {
    ProxySettings {
        node_port_addresses: NodePortAddresses::Within(vec!["192.168.0.0/24".parse().unwrap()]),
        ..ProxySettings::default()
    }
}

fn is_owner((owner, endpoints): (String, Vec<String>), name: &str, endpoint: &str) -> bool {
    owner == name && endpoints == [endpoint]
}

const CONTESTED: &str = "203.0.113.1:80/tcp";
const OWN: &str = "10.96.0.66:80/tcp";

#[tokio::test(start_paused = true)]
async fn refused_service_port_keeps_no_address_of_another_one() {
    let evil = service("aaa/evil").cluster_ip("10.96.0.66").port("http", 80).external_ip("203.0.113.1").build();
    let good = service("bbb/good").cluster_ip("10.96.0.2").port("http", 80).load_balancer("203.0.113.1").build();
    let endpoint = |name: &str, service: &str, address: &str| {
        Edit::SetSlice(slice(name, service).port("http", 8080).pod(pod(address)).build())
    };
    let refusal = endpoint("aaa/evil-a", "evil", "10.0.0.66");
    let appearance = [Edit::SetService(Box::new(good)), endpoint("bbb/good-a", "good", "10.0.0.2")];
    // The owner appears during the refusal, or in the same sync.
    for together in [false, true] {
        for mut case in Case::all() {
            let mode = case.mode.clone();
            let first = [Edit::SetService(Box::new(evil.clone())), endpoint("aaa/evil-a", "evil", "10.0.0.1")];
            first.iter().for_each(|edit| edit.apply_to(&mut case.tracker));
            case.sync();
            case.refuse(&["10.0.0.66"]);
            refusal.apply_to(&mut case.tracker);
            if !together {
                case.sync();
                assert!(is_owner(case.owner(CONTESTED), "aaa/evil", "10.0.0.1"), "{mode}");
            }
            appearance.iter().for_each(|edit| edit.apply_to(&mut case.tracker));
            case.sync();
            assert!(is_owner(case.owner(CONTESTED), "bbb/good", "10.0.0.2"), "{mode}: {:?}", case.owner(CONTESTED));
            assert!(is_owner(case.owner(OWN), "aaa/evil", "10.0.0.1"), "{mode}: {:?}", case.owner(OWN));
            case.refuse(&[]);
            tokio::time::advance(Duration::from_secs(600)).await;
            case.sync();
            assert!(is_owner(case.owner(OWN), "aaa/evil", "10.0.0.66"), "{mode}: {:?}", case.owner(OWN));
        }
    }
}

/// Changes of contested Services, and the endpoints that are refused from then on.
#[derive(Clone, Debug)]
struct Step {
    cluster: Cluster,
    /// The Services that become as in the cluster.
    changed: u8,
    /// The Services whose endpoints are refused.
    refused: u8,
    seconds: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let refused = prop_oneof![1 => Just(0), 2 => any::<u8>()];
    (arbitrary::contested_cluster(), any::<u8>(), refused, 0..30_u64)
        .prop_map(|(cluster, changed, refused, seconds)| Step { cluster, changed, refused, seconds })
}

fn numbers(mask: u8) -> impl Iterator<Item = usize> {
    (0..arbitrary::CONTESTED).filter(move |number| mask >> number & 1 == 1)
}

fn edits(step: &Step) -> Vec<Edit> {
    let mut edits = Vec::new();
    for name in numbers(step.changed).map(arbitrary::contested_name) {
        let service = step.cluster.services.iter().find(|service| format!("shop/{}", service.metadata.name) == name);
        edits.push(match service {
            Some(service) => Edit::SetService(Box::new(service.clone())),
            None => Edit::RemoveService(namespaced_name(&name)),
        });
        let is_of_service = |slice: &&ferroute_api::EndpointSlice| {
            let slice = &slice.metadata.name;
            name.strip_prefix("shop/").is_some_and(|name| slice.starts_with(name))
        };
        edits.extend(step.cluster.slices.iter().filter(is_of_service).cloned().map(Edit::SetSlice));
    }
    edits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// For any refused rules, a service port has no frontend that it does not own, and the kernel has the rules of all
    /// other service ports.
    #[test]
    fn kernel_has_the_owners_of_the_table_whatever_is_refused(steps in vec(step(), 1..8)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            for mut case in Case::all() {
                for step in &steps {
                    edits(step).iter().for_each(|edit| edit.apply_to(&mut case.tracker));
                    let refused: Vec<String> = numbers(step.refused).map(|n| format!("10.244.1.{n}")).collect();
                    case.refuse(&refused.iter().map(String::as_str).collect::<Vec<_>>());
                    tokio::time::advance(Duration::from_secs(step.seconds)).await;
                    case.sync();
                }
                case.refuse(&[]);
                tokio::time::advance(Duration::from_secs(600)).await;
                case.sync();
                let applied = case.recorder.lock().unwrap().applied.clone();
                prop_assert_eq!(&applied, &case.tracker.table(IpFamily::V4).entries, "{}", case.mode);
            }
            Ok(())
        })?;
    }
}
