//! What people and programs do to the files.

use std::{
    fs::{self, File},
    io::Write,
};

use crate::{
    Case, Files, Lab, Mode, Proxy, in_each_mode,
    proxy::{FERROUTE, run_command},
    traffic::Traffic,
    wait, web, web_tcp,
};

in_each_mode!(
    a_manifest_that_turns_bad_keeps_its_rules_and_is_explained,
    a_file_that_is_still_being_written_breaks_nothing,
    manifests_that_are_missing_are_waited_for,
);

fn a_manifest_that_turns_bad_keeps_its_rules_and_is_explained(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    let rules = case.rules();
    let traffic = Traffic::start(&case.lab.client, web_tcp()[0]);
    let file = case.files.manifest();
    let file = file.display();
    let faults = [
        (
            web(&[2]).replace("port: 80}", "port: eighty}"),
            format!(
                "invalid manifest {file}; keeping its last valid version: document 1, line 8: Service \
                 default/web: spec.ports[0].port: "
            ),
        ),
        (
            web(&[2]).replace("nodeName: node-1", "nodeName: [node-1]"),
            format!(
                "invalid manifest {file}; keeping its last valid version: document 2, line 16: \
                 EndpointSlice default/web-0: endpoints[0].nodeName: "
            ),
        ),
        (
            web(&[2]).replace("spec:", "spec: {"),
            format!("invalid manifest {file}; keeping its last valid version: document 1"),
        ),
    ];
    for (yaml, fault) in faults {
        case.files.apply(&yaml);
        case.proxy.wait_log(&fault);
        traffic.go_on();
        assert_eq!(case.rules(), rules);
    }
    case.files.apply(&web(&[2]));
    case.wait_gone(0);
    case.proxy.wait_log("resolved: invalid manifest");
    assert!(!traffic.assert_no_failure().is_empty());
    assert_eq!(case.connect(web_tcp()[0]).unwrap(), 2);
}

fn a_file_that_is_still_being_written_breaks_nothing(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    let rules = case.rules();
    let traffic = Traffic::start(&case.lab.client, web_tcp()[0]);
    let yaml = web(&[1, 2]);
    let mut file = File::create(case.files.manifest()).unwrap();
    for part in yaml.as_bytes().chunks(yaml.len() / 4) {
        // As long as it is open, it is not what somebody wants, however it reads.
        traffic.go_on();
        assert_eq!(case.rules(), rules);
        file.write_all(part).unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    case.wait_gone(0);
    traffic.go_on();
    // Written where it is not looked at, and moved away before it comes back.
    fs::rename(case.files.manifest(), case.files.path("elsewhere")).unwrap();
    case.files.apply(&web(&[0, 1, 2]));
    wait("the pod's first connection", || (case.connect(web_tcp()[0]).unwrap() == 0).then_some(()));
    traffic.assert_no_failure();
}

fn manifests_that_are_missing_are_waited_for(mode: Mode) {
    let (lab, files) = (Lab::new(), Files::new());
    let manifests = files.path("not-yet");
    let mut proxy = Proxy::spawn(&lab.node, &mut run_command(FERROUTE, &manifests, &files.config(mode)));
    proxy.wait_log(&format!("cannot read {}: No such file or directory", manifests.display()));
    assert_eq!(crate::rules::ours(&lab.node, mode), Vec::<String>::new());
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("web.yaml"), web(&[0])).unwrap();
    proxy.wait_in_force(&lab.node);
    for to in web_tcp() {
        wait("the first connection", || crate::traffic::connect(&lab.client, to).ok());
    }
    // Who takes the directory away does not want to end all traffic.
    fs::remove_dir_all(&manifests).unwrap();
    wait("the complaint", || (proxy.log().matches("cannot read ").count() > 1).then_some(()));
    for to in web_tcp() {
        crate::traffic::connect(&lab.client, to).unwrap();
    }
    assert!(proxy.end_by("TERM").success());

    let mut proxy = Proxy::spawn(&lab.node, &mut run_command(FERROUTE, &manifests, &files.config(mode)));
    proxy.wait_log("cannot read ");
    assert!(proxy.end_by("INT").success(), "a proxy that waits can be ended, too");
}
