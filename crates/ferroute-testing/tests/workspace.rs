//! The crates of the workspace: their order in `docs/architecture.md`, and the tables of `CONTRIBUTING.md`, which are updated if
//! `FERROUTE_UPDATE_DOCS` is set.

#![expect(clippy::unwrap_used, reason = "missing files fail the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The parts of a `Cargo.toml` that matter here.
struct Crate {
    description: String,
    /// Crates of the workspace that it depends on, each with the table of the manifest that lists it.
    dependencies: BTreeSet<(String, String)>,
}

fn crates() -> BTreeMap<String, Crate> {
    let directories = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().file_name());
    directories.map(|name| name.into_string().unwrap()).map(|name| (name.clone(), read_crate(&name))).collect()
}

fn read_crate(name: &str) -> Crate {
    let manifest = read(&format!("crates/{name}/Cargo.toml"));
    let description = manifest.lines().find_map(|line| line.strip_prefix("description = \"")?.strip_suffix('"'));
    let mut dependencies = BTreeSet::new();
    let mut table = "";
    for line in manifest.lines() {
        if line.starts_with('[') {
            table = line.trim_matches(['[', ']']);
        } else if table.contains("dependencies") && line.starts_with("ferroute") {
            dependencies.insert((line.split(['.', ' ', '=']).next().unwrap().to_owned(), table.to_owned()));
        }
    }
    Crate { description: description.expect(name).to_owned(), dependencies }
}

/// Returns the crates in the order of the table in `docs/architecture.md`.
fn order() -> Vec<String> {
    let page = read("docs/architecture.md");
    let (_, section) = page.split_once("\n## Crates\n").unwrap();
    let rows = section.lines().take_while(|line| !line.starts_with("## ")).filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned()).collect()
}

#[test]
fn crates_depend_only_on_crates_further_down_the_table() {
    let (crates, order) = (crates(), order());
    assert_eq!(order.iter().collect::<BTreeSet<_>>(), crates.keys().collect(), "the table has other crates");
    let position = |name: &str| order.iter().position(|other| other == name).unwrap();
    let mut upwards = Vec::new();
    for (name, Crate { dependencies, .. }) in &crates {
        let above = dependencies.iter().filter(|(used, _)| position(used) < position(name));
        upwards.extend(above.map(|(used, table)| (name.as_str(), table.as_str(), used.as_str())));
    }
    assert_eq!(upwards, EXCEPTIONS);
}

#[test]
fn modes_do_not_depend_on_kubernetes_objects() {
    let crates = crates();
    for mode in ["ferroute-iptables", "ferroute-nftables", "ferroute-ipvs", "ferroute-userspace", "ferroute-netlink"] {
        let is_object = |(used, table): &&(String, String)| {
            table == "dependencies" && ["ferroute-api", "ferroute-kube", "ferroute-source"].contains(&used.as_str())
        };
        let objects: Vec<_> = crates[mode].dependencies.iter().filter(is_object).collect();
        assert!(objects.is_empty(), "{mode} depends on {objects:?}");
    }
}

/// crates.io requires some of these fields; docs.rs would otherwise build the crates for systems without netlink, too.
#[test]
fn published_crates_have_the_metadata_of_registries() {
    let inherited = ["version", "edition", "rust-version", "license", "readme", "keywords", "categories"];
    let targets =
        "[package.metadata.docs.rs]\ntargets = [\"x86_64-unknown-linux-gnu\", \"aarch64-unknown-linux-gnu\"]\n";
    let mut unpublished = Vec::new();
    for (name, Crate { description, .. }) in crates() {
        let manifest = read(&format!("crates/{name}/Cargo.toml"));
        for field in inherited {
            assert!(manifest.contains(&format!("\n{field}.workspace = true\n")), "{name}: {field}");
        }
        assert!((10..120).contains(&description.len()) && !description.ends_with('.'), "{name}: {description}");
        if manifest.contains("\npublish = false\n") {
            unpublished.push(name);
        } else {
            assert!(manifest.contains("\npublish.workspace = true\n") && manifest.contains(targets), "{name}");
        }
    }
    // A dependency with a version requires that the crate is published.
    let workspace = read("Cargo.toml");
    for name in unpublished {
        assert!(workspace.contains(&format!("\n{name} = {{ path = \"crates/{name}\" }}\n")), "{name}");
        for (other, Crate { dependencies, .. }) in crates() {
            assert!(!dependencies.contains(&(name.clone(), "dependencies".to_owned())), "{other} depends on {name}");
        }
    }
}

/// A package has the files of its crate only, with links replaced by what they lead to.
#[test]
fn published_crates_include_no_files_of_others() {
    let mut count = 0;
    for name in crates().keys() {
        let crate_root = root().join("crates").join(name);
        for_each_source(&crate_root.join("src"), &mut |path, code| {
            for start in ["include_str!(\"", "include_bytes!(\""] {
                for file in code.split(start).skip(1).map(|rest| rest.split('"').next().unwrap()) {
                    let (mut directory, mut rest) = (path.parent().unwrap(), file);
                    while let Some(above) = rest.strip_prefix("../") {
                        (directory, rest) = (directory.parent().unwrap(), above);
                    }
                    assert!(directory.starts_with(&crate_root), "{}: {file}", path.display());
                    assert!(directory.join(rest).is_file(), "{}: {file}", path.display());
                    count += 1;
                }
            }
        });
    }
    assert!(count > 0);
}

#[test]
fn changelog_begins_with_the_version_of_the_workspace() {
    let manifest = read("Cargo.toml");
    let version = manifest.split_once("\nversion = \"").unwrap().1.split_once('"').unwrap().0;
    let changelog = read("CHANGELOG.md");
    let sections: Vec<&str> = changelog.split("\n## ").skip(1).collect();
    assert_eq!(sections[0].lines().next(), Some(version));
    // The release notes of a version are its section; a version without a section has none.
    let notes = |version: &str| Command::new(root().join("deploy/release/notes.sh")).arg(version).output().unwrap();
    let own = String::from_utf8(notes(version).stdout).unwrap();
    assert_eq!(own.trim(), sections[0].split_once('\n').unwrap().1.trim());
    assert!(!notes("9.9.9").status.success());
}

/// A build takes minutes, so what is missing is reported before it.
#[test]
fn end_to_end_tests_report_everything_that_is_missing_before_they_build() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubernetes");
    fs::create_dir_all(&directory).unwrap();
    let etcd = directory.join("etcd");
    fs::write(&etcd, "<html>").unwrap();
    fs::set_permissions(&etcd, fs::Permissions::from_mode(0o755)).unwrap();
    let mut check = Command::new("python3");
    let output =
        check.arg(root().join("e2e/run.py")).arg("--kubernetes").arg(&directory).arg("check").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(text.contains("\n  etcd: not a program"), "{text}");
    // The rows of the page; that of `rollout` names its own.
    let page = read("e2e/README.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| in `DIR`: ")?.split('|').next());
    let names: Vec<&str> = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 7, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !text.contains(&format!("\n  {name}: "))).collect();
    assert!(missing.is_empty(), "{missing:?} {text}");

    let make =
        Command::new("make").args(["-n", "e2e", "KUBERNETES=/nonexistent"]).current_dir(root()).output().unwrap();
    let steps = String::from_utf8(make.stdout).unwrap();
    let at = |step: &str| steps.find(step).unwrap_or_else(|| panic!("no {step}: {steps}"));
    assert!(at(" check\n") < at(" build --release"), "{steps}");
}

/// Returns the targets of the relative links of a page, without those in examples of code.
fn links(page: &str) -> Vec<&str> {
    let targets = page.match_indices("](").filter_map(|(at, _)| page[at + 2..].split_once(')'));
    let paths = targets.map(|(target, _)| target.split('#').next().unwrap_or_default());
    paths.filter(|path| !path.is_empty() && !path.contains([':', ' '])).collect()
}

#[test]
fn every_link_of_the_book_leads_to_a_chapter_or_a_file() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("book");
    let status = Command::new(root().join("docs/book.sh")).arg(&directory).status().unwrap();
    assert!(status.success());
    let source = directory.join("src");
    let summary = fs::read_to_string(source.join("SUMMARY.md")).unwrap();
    let chapters: BTreeSet<PathBuf> = links(&summary).into_iter().map(|path| source.join(path)).collect();
    assert!(chapters.len() > 20, "{chapters:?}");
    let chapters: BTreeSet<PathBuf> = chapters.iter().map(|chapter| chapter.canonicalize().unwrap()).collect();
    let mut broken = Vec::new();
    for chapter in &chapters {
        for link in links(&fs::read_to_string(chapter).unwrap()) {
            let target = chapter.parent().unwrap().join(link).canonicalize();
            // A page that is no chapter is not rendered.
            if !target.is_ok_and(|path| path.extension() != Some(OsStr::new("md")) || chapters.contains(&path)) {
                broken.push((chapter.clone(), link.to_owned()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}

/// Calls `each` with the code of every file in a directory, except for tests.
fn for_each_source(path: &Path, each: &mut dyn FnMut(&Path, &str)) {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
        let is_code = |name: &OsStr| name != "testing" && name != "tests" && name != "testing.rs";
        entries.filter(|entry| is_code(&entry.file_name())).for_each(|entry| for_each_source(&entry.path(), each));
    } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
        let text = fs::read_to_string(path).unwrap();
        each(path, text.split("#[cfg(test)]\nmod tests {").next().unwrap());
    }
}

/// Returns the names of the threads that the code of these crates starts.
fn thread_names(path: &Path, names: &mut BTreeSet<String>) {
    for_each_source(path, &mut |_, code| {
        let code = code.replace(char::is_whitespace, "");
        let after =
            |start: &str| code.split(start).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect();
        let starts = [
            "run_blocking(\"",
            ".thread(\"",
            "with_sockets(\"",
            "start_beside(\"",
            ".start(&self.tasks,\"",
            "Builder::new().name(\"",
        ];
        names.extend(starts.iter().flat_map(|start| -> Vec<String> { after(start) }));
    });
}

/// The sync thread must not wait for another process without a deadline. Clippy rejects some such calls by their type
/// (`clippy.toml`); this test finds others by their names.
#[test]
fn calls_that_may_wait_for_ever_are_where_a_thread_of_its_own_makes_them() {
    let calls = ["TcpStream::connect(", ".to_socket_addrs()", ".wait()", ".wait_with_output()", "Command::new("];
    let mut found = BTreeSet::new();
    for name in IN_THE_SYNC_THREAD {
        let source = root().join("crates").join(name).join("src");
        for_each_source(&source, &mut |path, code| {
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let path = path.strip_prefix(root().join("crates")).unwrap().display().to_string();
            found.extend(lines.flat_map(|line| {
                calls
                    .iter()
                    .filter(|call| line.contains(**call))
                    .map(|call| format!("{path}: {call}"))
                    .collect::<Vec<_>>()
            }));
        });
    }
    let known: BTreeSet<String> = KNOWN_WAITS.iter().map(|(place, _)| (*place).to_owned()).collect();
    assert_eq!(found, known, "only these are known not to be made in the sync thread");
}

/// The wall clock may be set to any time, so no decision depends on it.
#[test]
fn wall_clock_is_read_only_for_output() {
    let mut found = BTreeSet::new();
    for name in crates().keys().filter(|name| *name != "ferroute-testing") {
        for_each_source(&root().join("crates").join(name).join("src"), &mut |path, code| {
            if code.contains("SystemTime::now()")
                || code.contains("Timestamp::now()")
                || code.contains("UNIX_EPOCH.elapsed()")
            {
                found.insert(path.strip_prefix(root().join("crates")).unwrap().display().to_string());
            }
        });
    }
    let known: BTreeSet<String> = WALL_CLOCK_READERS.iter().map(|(place, _)| (*place).to_owned()).collect();
    assert_eq!(found, known, "these read the wall clock: decide by `Instant`");
}

#[test]
fn threads_of_the_daemon_are_described() {
    let page = read("docs/architecture.md");
    let (_, section) = page.split_once("\n## Threads\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let described: BTreeSet<String> = section.split('*').skip(1).step_by(2).map(str::to_owned).collect();
    let mut names = BTreeSet::from(["main".to_owned()]);
    for name in crates().keys().filter(|name| !NOT_IN_THE_DAEMON.contains(&name.as_str())) {
        thread_names(&root().join("crates").join(name).join("src"), &mut names);
    }
    assert_eq!(described, names);
}

/// Replaces the rows of the table below a header.
fn with_rows(text: &str, header: &str, rows: &[String]) -> String {
    let (before, table) = text.split_once(header).unwrap_or_else(|| panic!("no table {header}"));
    let (_, after) = table.split_once("\n\n").unwrap();
    let columns = header.matches('|').count() - 1;
    format!("{before}{header}\n|{}\n{}\n\n{after}", " --- |".repeat(columns), rows.join("\n"))
}

/// Returns the targets that `make help` prints, as name, duration and purpose.
fn targets() -> Vec<(String, String, String)> {
    let makefile = read("Makefile");
    let target = |line: &str| {
        let (name, rest) = line.strip_prefix("## ")?.split_once(" (")?;
        let (duration, purpose) = rest.split_once("): ")?;
        Some((name.to_owned(), duration.to_owned(), purpose.to_owned()))
    };
    makefile.lines().filter_map(target).collect()
}

#[test]
fn every_target_has_a_line_of_help() {
    let makefile = read("Makefile");
    let phony = makefile.lines().find_map(|line| line.strip_prefix(".PHONY: ")).unwrap();
    let phony: BTreeSet<&str> = phony.split(' ').collect();
    let targets = targets();
    let helped = targets.iter().flat_map(|(names, ..)| names.split(' ')).collect::<BTreeSet<_>>();
    let is_internal = |name: &&str| name.starts_with("deps-") || INTERNAL_TARGETS.contains(name);
    let expected: BTreeSet<&str> = phony.iter().copied().filter(|name| !is_internal(name)).collect();
    assert_eq!(helped, expected);
}

#[test]
fn tables_for_contributors_are_up_to_date() {
    let path = "CONTRIBUTING.md";
    let text = read(path);
    let all = crates();
    let rows: Vec<String> = order().iter().map(|name| format!("| `{name}` | {} |", all[name].description)).collect();
    let new = with_rows(&text, "| crate | contents |", &rows);
    let row =
        |(name, duration, purpose): (String, String, String)| format!("| `make {name}` | {duration} | {purpose} |");
    let rows: Vec<String> = targets().into_iter().map(row).collect();
    let new = with_rows(&new, "| target | duration | purpose |", &rows);
    if std::env::var_os("FERROUTE_UPDATE_DOCS").is_some() {
        fs::write(root().join(path), new).unwrap();
    } else {
        assert!(text == new, "{path} is out of date: run this test with FERROUTE_UPDATE_DOCS=1");
    }
}

/// Dependencies on crates further up, which the page mentions.
const EXCEPTIONS: [(&str, &str, &str); 2] = [
    ("ferroute-trace", "dev-dependencies", "ferroute-inspect"),
    ("ferroute-trace", "dev-dependencies", "ferroute-modes"),
];

/// Crates with code that the sync thread executes.
const IN_THE_SYNC_THREAD: [&str; 9] = [
    "ferroute-core",
    "ferroute-host",
    "ferroute-iptables",
    "ferroute-ipvs",
    "ferroute-modes",
    "ferroute-netlink",
    "ferroute-nftables",
    "ferroute-proxy",
    "ferroute-userspace",
];

/// Calls that may wait, each with the reason why the sync thread does not.
const KNOWN_WAITS: [(&str, &str); 6] = [
    ("ferroute-host/src/program.rs: Command::new(", "runs programs with a deadline"),
    ("ferroute-host/src/program.rs: .wait()", "its own method, with that deadline"),
    ("ferroute-proxy/src/process/config_watch.rs: Command::new(", "replaces the process"),
    ("ferroute-proxy/src/process/shutdown.rs: .wait()", "the thread of signals"),
    ("ferroute-userspace/src/client.rs: Command::new(", "starts the worker, without waiting for it"),
    ("ferroute-userspace/src/client.rs: .wait()", "the thread drain-wait"),
];

/// Files that read the wall clock, each with its purpose.
const WALL_CLOCK_READERS: [(&str, &str); 12] = [
    ("ferroute-host/src/moment.rs", "times of health, history and flows, beside a monotonic one"),
    ("ferroute-inspect/src/doctor/host/clock.rs", "compares it with that of the API server"),
    ("ferroute-inspect/src/top/flow_counts.rs", "leaves out flows that began before, by the kernel's wall clock"),
    ("ferroute-kube/src/plugin.rs", "the expiration of a credential is a wall clock time"),
    ("ferroute-kubectl/src/bundle.rs", "the name of a file"),
    ("ferroute-logging/src/json.rs", "the time of a log line"),
    ("ferroute-proxy/src/control.rs", "the time of a bundle"),
    ("ferroute-proxy/src/observers/events.rs", "the time of an Event"),
    ("ferroute-proxy/src/observers/status.rs", "the start of the history, and a metric of kube-proxy"),
    ("ferroute-proxy/src/recording.rs", "the time of a recorded sync"),
    ("ferroute-ui/src/watch.rs", "the time of a message"),
    ("ferroute/src/go_runner/log_file.rs", "the name of a file, and the age of files"),
];

/// Crates with the threads of other commands.
const NOT_IN_THE_DAEMON: [&str; 4] = ["ferroute", "ferroute-demo", "ferroute-testing", "ferroute-ui"];

/// Targets that only others depend on.
const INTERNAL_TARGETS: [&str; 3] = ["conformance-setup", "rust", "unit-build"];
