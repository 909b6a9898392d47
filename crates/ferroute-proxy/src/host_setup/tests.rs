use std::{collections::BTreeMap, path::Path};

use ferroute_config::KubeProxyConfiguration;
use tempfile::TempDir;

use super::*;

/// A kernel with these settings.
struct Kernel(TempDir);

impl Kernel {
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

    fn holds(&self, names: &[&str]) -> BTreeMap<String, String> {
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
    config.resolve().expect("a good configuration")
}

#[test]
fn every_setting_of_the_configuration_is_wanted() {
    let seconds = ferroute_config::GoDuration::from_secs;
    let resolved = resolve(|config| {
        config.conntrack.tcp_be_liberal = true;
        config.conntrack.udp_timeout = seconds(5);
        config.conntrack.udp_stream_timeout = seconds(6);
    });
    let netfilter = |name: &str| format!("net/netfilter/nf_conntrack_{name}");
    let expected = [
        (netfilter("tcp_timeout_established"), "86400"),
        (netfilter("tcp_timeout_close_wait"), "3600"),
        (netfilter("udp_timeout"), "5"),
        (netfilter("udp_timeout_stream"), "6"),
        (netfilter("tcp_be_liberal"), "1"),
        ("net/ipv4/conf/all/route_localnet".to_owned(), "1"),
    ];
    let found = sysctls(&resolved);
    assert_eq!(found, expected.each_ref().map(|(name, value)| (name.as_str(), (*value).to_owned())));
}

#[test]
fn zeros_leave_the_kernel_alone() {
    let resolved = resolve(|config| {
        config.conntrack.max_per_core = Some(0);
        config.conntrack.tcp_established_timeout = Some(Default::default());
        config.conntrack.tcp_close_wait_timeout = None;
        config.mode = "nftables".into();
    });
    assert_eq!(sysctls(&resolved), []);
}

#[test]
fn what_can_be_set_is_set_and_the_rest_is_told() {
    let kernel = Kernel::new(&[
        ("sys/net/netfilter/nf_conntrack_max", "65536"),
        ("sys/net/netfilter/nf_conntrack_tcp_timeout_established", "86400"),
        ("self/oom_score_adj", "0"),
        ("module/nf_conntrack/parameters/hashsize", "16384"),
    ]);
    let setup = apply_to(&kernel.roots(), &resolve(|_| ()));
    let told: Vec<String> = setup.lines().collect();
    assert_eq!(
        told,
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
    assert_eq!(kernel.holds(&expected.each_ref().map(|(name, _)| name.as_str())), BTreeMap::from(expected));
}

#[test]
fn a_larger_table_than_needed_stays() {
    let settings =
        [("module/nf_conntrack/parameters/hashsize", "1000000"), ("sys/net/netfilter/nf_conntrack_max", "4000000")];
    let kernel = Kernel::new(&settings);
    apply_to(&kernel.roots(), &resolve(|_| ()));
    let expected = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(kernel.holds(&settings.map(|(name, _)| name)), BTreeMap::from(expected));
}

#[test]
fn a_table_that_could_not_be_made_larger_keeps_its_lists() {
    let kernel = Kernel::new(&[("module/nf_conntrack/parameters/hashsize", "16384")]);
    let setup = apply_to(&kernel.roots(), &resolve(|_| ()));
    assert!(setup.failed.iter().any(|error| error.to_string().contains(CONNTRACK_MAX)), "{setup:?}");
    let buckets = format!("module/{CONNTRACK_BUCKETS}");
    assert_eq!(kernel.holds(&[&buckets]), BTreeMap::from([(buckets.clone(), "16384".to_owned())]));
}

/// The machine's own settings are out of reach here: they are of another namespace, or of this test's directory.
#[test]
fn in_a_network_namespace_its_own_settings_are_set_and_the_machines_are_left_alone() {
    let namespace = ferroute_testing::NetNs::new();
    let kernel = Kernel::new(&[("self/oom_score_adj", "0"), ("module/nf_conntrack/parameters/hashsize", "16")]);
    let roots = Roots { sysctls: Sysctls::from_kernel(), cores: 1, ..kernel.roots() };
    let seconds = ferroute_config::GoDuration::from_secs;
    let resolved = resolve(|config| {
        config.conntrack.tcp_be_liberal = true;
        config.conntrack.tcp_established_timeout = Some(seconds(1234));
        config.conntrack.udp_timeout = seconds(5);
        // Whatever room the machine's table has is enough.
        config.conntrack.min = Some(1);
        config.conntrack.max_per_core = Some(1);
    });
    let setup = namespace.run(|| apply_to(&roots, &resolved));
    assert_eq!(setup.failed.iter().map(|error| chain(error)).collect::<Vec<_>>(), [""; 0]);
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
    assert_eq!(kernel.holds(&[&buckets]), BTreeMap::from([(buckets.clone(), "16".to_owned())]));
}

#[test]
fn cores_are_counted_from_the_kernels_list() {
    for (list, cores) in [("0\n", Some(1)), ("0-3\n", Some(4)), ("0-3,8,10-11", Some(7)), ("", None), ("3-0", None)] {
        assert_eq!(count(list), cores, "{list:?}");
    }
}
