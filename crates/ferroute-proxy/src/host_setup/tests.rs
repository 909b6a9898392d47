use std::{collections::BTreeMap, path::Path};

use ferroute_config::KubeProxyConfiguration;
use ferroute_modes::REGISTRY;
use tempfile::TempDir;

use super::*;

/// A directory in place of the kernel's settings.
struct FakeSettings(TempDir);

impl FakeSettings {
    fn new(settings: &[(&str, &str)]) -> Self {
        let kernel = Self(tempfile::tempdir().expect("a directory"));
        for (name, value) in settings {
            let path = kernel.0.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, format!("{value}\n")).expect("a file");
        }
        kernel
    }

    fn roots(&self) -> Roots {
        let root = |name: &str| Sysctls::with_root(self.0.path().join(name));
        Roots { sysctls: root("sys"), process: root("self"), modules: root("module"), cores: 8 }
    }

    fn values(&self, names: &[&str]) -> BTreeMap<String, String> {
        let read = |name: &&str| {
            let text = fs::read_to_string(Path::new(self.0.path()).join(name)).expect("a setting");
            ((*name).to_owned(), text.trim().to_owned())
        };
        names.iter().map(read).collect()
    }
}

fn resolve(change: impl FnOnce(&mut KubeProxyConfiguration)) -> Resolved {
    let mut config = KubeProxyConfiguration::default().defaulted();
    change(&mut config);
    config.resolve().expect("a valid configuration")
}

fn applied(roots: &Roots, resolved: &Resolved) -> HostSetup {
    apply_to(roots, resolved, REGISTRY.active(resolved.mode))
}

#[test]
fn timeouts_of_configuration_are_applied() {
    let seconds = ferroute_config::GoDuration::from_secs;
    let resolved = resolve(|config| {
        config.conntrack.udp_timeout = seconds(5);
        config.conntrack.udp_stream_timeout = seconds(6);
    });
    let netfilter = |name: &str| format!("net/netfilter/nf_conntrack_{name}");
    let expected = [
        (netfilter("tcp_timeout_established"), "86400"),
        (netfilter("tcp_timeout_close_wait"), "3600"),
        (netfilter("udp_timeout"), "5"),
        (netfilter("udp_timeout_stream"), "6"),
    ];
    assert_eq!(timeouts(&resolved), expected.each_ref().map(|(name, value)| (name.as_str(), (*value).to_owned())));
}

#[test]
fn all_modes_rely_on_switches_of_the_configuration() {
    let mut resolved = resolve(|config| config.conntrack.tcp_be_liberal = true);
    resolved.flags.count_traffic = true;
    let plain = resolve(|_| ());
    for mode in REGISTRY.names() {
        let (mode, more) = (REGISTRY.active(mode), [TCP_BE_LIBERAL, CONNTRACK_ACCT]);
        assert_eq!(relied_on(&resolved, mode), [relied_on(&plain, mode), more.to_vec()].concat(), "{}", mode.name());
    }
}

#[test]
fn zero_values_leave_settings_unchanged() {
    let resolved = resolve(|config| {
        config.conntrack.max_per_core = Some(0);
        config.conntrack.tcp_established_timeout = Some(Default::default());
        config.conntrack.tcp_close_wait_timeout = None;
        config.mode = "nftables".into();
    });
    assert_eq!(timeouts(&resolved), []);
}

#[test]
fn errors_do_not_affect_other_settings() {
    let kernel = FakeSettings::new(&[
        ("sys/net/netfilter/nf_conntrack_max", "65536"),
        ("sys/net/netfilter/nf_conntrack_tcp_timeout_established", "86400"),
        ("self/oom_score_adj", "0"),
        ("module/nf_conntrack/parameters/hashsize", "16384"),
    ]);
    let setup = applied(&kernel.roots(), &resolve(|_| ()));
    assert_eq!(
        setup.lines().collect::<Vec<_>>(),
        [
            "net/netfilter/nf_conntrack_tcp_timeout_established = 86400",
            "oom_score_adj = -999 (was 0)",
            "net/netfilter/nf_conntrack_max = 262144 (was 65536)",
            "nf_conntrack/parameters/hashsize = 65536 (was 16384)",
            "sysctl net/netfilter/nf_conntrack_tcp_timeout_close_wait does not exist",
            "sysctl net/ipv4/conf/all/route_localnet does not exist",
        ]
    );
    let expected = [
        ("sys/net/netfilter/nf_conntrack_max", "262144"),
        ("self/oom_score_adj", "-999"),
        ("module/nf_conntrack/parameters/hashsize", "65536"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(kernel.values(&expected.each_ref().map(|(name, _)| name.as_str())), BTreeMap::from(expected));
}

#[test]
fn larger_conntrack_table_is_kept() {
    let settings =
        [("module/nf_conntrack/parameters/hashsize", "1000000"), ("sys/net/netfilter/nf_conntrack_max", "4000000")];
    let kernel = FakeSettings::new(&settings);
    applied(&kernel.roots(), &resolve(|_| ()));
    let expected = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(kernel.values(&settings.map(|(name, _)| name)), BTreeMap::from(expected));
}

#[test]
fn buckets_are_kept_if_table_size_cannot_be_changed() {
    let kernel = FakeSettings::new(&[("module/nf_conntrack/parameters/hashsize", "16384")]);
    let setup = applied(&kernel.roots(), &resolve(|_| ()));
    assert!(setup.failed.iter().any(|error| error.to_string().contains(CONNTRACK_MAX)), "{setup:?}");
    let buckets = format!("module/{CONNTRACK_BUCKETS}");
    assert_eq!(kernel.values(&[&buckets]), BTreeMap::from([(buckets.clone(), "16384".to_owned())]));
}

/// Settings of the machine are read-only in the test's network namespace, or are in its directory.
#[test]
fn only_settings_of_network_namespace_are_changed() {
    let namespace = ferroute_testing::NetNs::new();
    let kernel = FakeSettings::new(&[("self/oom_score_adj", "0"), ("module/nf_conntrack/parameters/hashsize", "16")]);
    let roots = Roots { sysctls: Sysctls::from_kernel(), cores: 1, ..kernel.roots() };
    let seconds = ferroute_config::GoDuration::from_secs;
    let resolved = resolve(|config| {
        config.conntrack.tcp_be_liberal = true;
        config.conntrack.tcp_established_timeout = Some(seconds(1234));
        config.conntrack.udp_timeout = seconds(5);
        // The machine's table is always larger.
        config.conntrack.min = Some(1);
        config.conntrack.max_per_core = Some(1);
    });
    let setup = namespace.run(|| applied(&roots, &resolved));
    assert_eq!(setup.failed.iter().map(|error| error_chain(error)).collect::<Vec<_>>(), [""; 0]);
    for (name, value) in [
        ("net.netfilter.nf_conntrack_tcp_timeout_established", "1234\n"),
        ("net.netfilter.nf_conntrack_tcp_timeout_close_wait", "3600\n"),
        ("net.netfilter.nf_conntrack_udp_timeout", "5\n"),
        ("net.netfilter.nf_conntrack_tcp_be_liberal", "1\n"),
        ("net.ipv4.conf.all.route_localnet", "1\n"),
    ] {
        assert_eq!(namespace.command("sysctl", &["-n", name]), value, "{name}");
    }
    let buckets = format!("module/{CONNTRACK_BUCKETS}");
    assert_eq!(kernel.values(&[&buckets]), BTreeMap::from([(buckets.clone(), "16".to_owned())]));
}

#[test]
fn cpu_list_is_counted() {
    for (list, cores) in [("0\n", Some(1)), ("0-3\n", Some(4)), ("0-3,8,10-11", Some(7)), ("", None), ("3-0", None)] {
        assert_eq!(count(list), cores, "{list:?}");
    }
}

#[test]
fn oom_score_that_cannot_be_set_is_tolerable() {
    let kernel = FakeSettings::new(&[]);
    let setup = applied(&kernel.roots(), &resolve(|_| ()));
    let (fatal, tolerable) = setup.split_failed();
    assert_eq!(tolerable.iter().map(|error| error.name()).collect::<Vec<_>>(), [OOM_SCORE]);
    assert!(!fatal.is_empty() && fatal.iter().all(|error| error.name() != OOM_SCORE));
}
