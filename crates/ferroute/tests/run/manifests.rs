//! Edited, invalid, incomplete and missing manifests.

use std::{
    fs::{self, File},
    io::Write,
};

use crate::{
    Case, Cluster, Files, Mode, Proxy, in_each_mode,
    proxy::{FERROUTE, run_command},
    status::problems,
    traffic::Traffic,
    wait, web, web_tcp,
};

in_each_mode!(
    invalid_manifest_keeps_its_rules_and_is_reported,
    incomplete_file_changes_nothing,
    missing_manifests_are_awaited,
);

fn invalid_manifest_keeps_its_rules_and_is_reported(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    let rules = case.rules();
    let traffic = Traffic::start(&case.cluster.client, web_tcp()[0]);
    let file = case.files.manifest();
    let file = file.display().to_string();
    let faults = [
        (
            web(&[2]).replace("port: 80}", "port: eighty}"),
            &["document 1, line 8", "Service default/web", "spec.ports[0].port"][..],
        ),
        (
            web(&[2]).replace("nodeName: node-1", "nodeName: [node-1]"),
            &["document 2, line 16", "EndpointSlice default/web-0", "endpoints[0].nodeName"],
        ),
        (web(&[2]).replace("spec:", "spec: {"), &["document 1"]),
    ];
    for (yaml, fault) in faults {
        case.files.apply(&yaml);
        case.proxy.wait_log_line(&[&[file.as_str()], fault].concat());
        traffic.wait_for_more();
        assert_eq!(case.rules(), rules);
        let texts = [&[file.as_str()], fault].concat();
        wait("the problem", || {
            let problems = problems(&case.cluster);
            let is_shown = |text: &&str| problems.iter().any(|problem| problem.contains(text));
            let is_current = |problem: &String| problem.contains(&file) && problem.contains(fault[0]);
            (texts.iter().all(is_shown) && problems.iter().any(is_current)).then_some(())
        });
        let explained = case.cluster.node.try_command(FERROUTE, &["explain", "service", "default/web"]);
        let warning = String::from_utf8_lossy(&explained.stderr).into_owned();
        assert!(texts.iter().all(|text| warning.contains(text)), "{warning}");
    }
    case.files.apply(&web(&[2]));
    case.wait_gone(0);
    case.proxy.wait_log_line(&["resolved", &file]);
    assert_eq!(problems(&case.cluster), [""; 0]);
    assert!(!traffic.assert_no_failure().is_empty());
    assert_eq!(case.connect(web_tcp()[0]).unwrap(), 2);
}

fn incomplete_file_changes_nothing(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    let rules = case.rules();
    let traffic = Traffic::start(&case.cluster.client, web_tcp()[0]);
    let yaml = web(&[1, 2]);
    let mut file = File::create(case.files.manifest()).unwrap();
    for part in yaml.as_bytes().chunks(yaml.len() / 4) {
        // A file that is open for writing is incomplete, even if it is valid.
        traffic.wait_for_more();
        assert_eq!(case.rules(), rules);
        file.write_all(part).unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    case.wait_gone(0);
    traffic.wait_for_more();
    // Move the file away and replace it.
    fs::rename(case.files.manifest(), case.files.path("elsewhere")).unwrap();
    case.files.apply(&web(&[0, 1, 2]));
    wait("the pod's first connection", || (case.connect(web_tcp()[0]).unwrap() == 0).then_some(()));
    traffic.assert_no_failure();
}

fn missing_manifests_are_awaited(mode: Mode) {
    let (cluster, files) = (Cluster::new(), Files::new());
    let manifests = files.path("not-yet");
    let mut proxy = Proxy::spawn(&cluster.node, &mut run_command(FERROUTE, &manifests, &files.config(mode)));
    proxy.wait_log(&format!("cannot read {}: No such file or directory", manifests.display()));
    assert_eq!(crate::rules::of_proxy(&cluster.node, mode), Vec::<String>::new());
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("web.yaml"), web(&[0])).unwrap();
    proxy.wait_synced(&cluster.node);
    for to in web_tcp() {
        wait("the first connection", || crate::traffic::connect(&cluster.client, to).ok());
    }
    // A removed directory does not remove the rules.
    fs::remove_dir_all(&manifests).unwrap();
    wait("the error in the log", || (proxy.log().matches("cannot read ").count() > 1).then_some(()));
    for to in web_tcp() {
        crate::traffic::connect(&cluster.client, to).unwrap();
    }
    assert!(proxy.stop("TERM").success());

    let mut proxy = Proxy::spawn(&cluster.node, &mut run_command(FERROUTE, &manifests, &files.config(mode)));
    proxy.wait_log("cannot read ");
    assert!(proxy.stop("INT").success(), "a waiting proxy exits on a signal");
}
