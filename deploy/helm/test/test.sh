#!/bin/bash
# Tests the chart: test.sh [--accept]. Needs helm (3.13 or newer) and kubectl, and no cluster.
#
# The default values render the objects of deploy/kubernetes. NAME.yaml are other values, NAME.diff the difference that they make;
# --accept writes these files. Values below invalid/ are refused with the text of their first line.
set -euo pipefail
cd "$(dirname "$0")/.."
deploy=$(cd .. && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

check() { # NAME COMMAND...: counts whether the command succeeds
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then passed=$((passed + 1)); else
        failed=$((failed + 1))
        printf 'FAILED: %s\n%s\n' "$name" "$output"
    fi
}

render() { # FLAGS...: the chart's objects
    helm template ferroute . --namespace kube-system --kube-version 1.33 "$@" 2>"$work/errors" || { cat "$work/errors" >&2; return 1; }
}

# The objects in FILE, with the order of fields and the comments of kustomize.
normalize() {
    local folder
    folder=$(mktemp -d -p "$work")
    cp "$1" "$folder/objects.yaml"
    echo 'resources: [objects.yaml]' >"$folder/kustomization.yaml"
    kubectl kustomize "$folder"
}

# The configuration in the ConfigMap of FILE, as an object that `normalize` takes.
configuration() {
    local map="$work/map.yaml"
    awk 'BEGIN { RS = "---\n" } /kind: ConfigMap/' "$1" >"$map"
    kubectl patch --local -f "$map" --type merge -p '{}' -o 'jsonpath={.data.config\.conf}' >"$work/configuration.yaml"
    printf '\nmetadata: {name: configuration}\n' >>"$work/configuration.yaml"
    normalize "$work/configuration.yaml"
}

same() { diff -u "$work/$1" "$work/$2"; }

# What is equal, except for comments and the order of fields in the configuration.
without_configuration() { sed '/^  config.conf: |/,/^  kubeconfig.conf: |/d; /^    #/d'; }

render >"$work/chart.yaml"
kubectl kustomize "$deploy/kubernetes" >"$work/base.yaml"
normalize "$work/chart.yaml" >"$work/chart.normal"
configuration "$work/chart.normal" >"$work/chart.configuration"
configuration "$work/base.yaml" >"$work/base.configuration"
without_configuration <"$work/chart.normal" >"$work/chart.objects"
without_configuration <"$work/base.yaml" >"$work/base.objects"
check "default values render the objects of deploy/kubernetes" same base.objects chart.objects
check "default values render the configuration of deploy/kubernetes" same base.configuration chart.configuration

render --set canary=true >"$work/canary.yaml"
normalize "$work/canary.yaml" | without_configuration >"$work/canary.chart"
kubectl kustomize "$deploy/canary" | without_configuration >"$work/canary.base"
check "canary renders the objects of deploy/canary" same canary.base canary.chart

render --show-only templates/startup-taint.yaml --set startupTaint.key=example.com/services-not-ready >"$work/taint.yaml"
normalize "$work/taint.yaml" | grep -v -e '^  labels:$' -e '^    app.kubernetes.io/name: ferroute$' >"$work/taint.chart"
normalize "$deploy/kubernetes/startup-taint.yaml" >"$work/taint.base"
check "startupTaint renders deploy/kubernetes/startup-taint.yaml" same taint.base taint.chart

render --show-only templates/monitoring.yaml --set prometheusRule.enabled=true >"$work/rule.yaml"
sed '1,/^spec:/d; s/^  //' "$work/rule.yaml" | sed '/^$/d' >"$work/rules.chart"
sed '/^$/d' "$deploy/monitoring/rules.yaml" >"$work/rules.base"
check "prometheusRule has the rules of deploy/monitoring" same rules.base rules.chart

render --show-only templates/monitoring.yaml --set prometheusRule.enabled=true --set podMonitor.enabled=true \
    --set config.metricsBindAddress=0.0.0.0:10249 >"$work/operator.yaml"
normalize "$work/operator.yaml" >"$work/operator.chart"
mkdir "$work/component"
cp -r "$deploy/kubernetes" "$deploy/monitoring" "$work/component"
cat >"$work/component/kustomization.yaml" <<'END'
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [kubernetes]
components: [monitoring/operator]
END
kubectl kustomize "$work/component" >"$work/component.yaml"
for kind in PodMonitor PrometheusRule DaemonSet; do
    awk -v kind="^kind: $kind$" 'BEGIN { RS = "---\n"; ORS = "" } $0 ~ "\nkind: '$kind'\n"' "$work/component.yaml" >"$work/component.$kind"
done
render --set podMonitor.enabled=true --set config.metricsBindAddress=0.0.0.0:10249 >"$work/monitored.yaml"
normalize "$work/monitored.yaml" >"$work/monitored.normal"
cat "$work/operator.chart" <(echo ---) "$work/monitored.normal" >"$work/all.chart"
for kind in PodMonitor PrometheusRule DaemonSet; do
    awk 'BEGIN { RS = "---\n"; ORS = "" } !seen && $0 ~ "\nkind: '$kind'\n" { print; seen = 1 }' "$work/all.chart" >"$work/chart.$kind"
    check "deploy/monitoring/operator has the chart's $kind" same "component.$kind" "chart.$kind"
done

render --show-only templates/monitoring.yaml --set prometheusRule.enabled=true \
    --set prometheusRule.runbookUrl=https://git.example.org/ferroute/blob/main/ >"$work/runbooks.yaml"
sed 's|runbook_url: |&https://git.example.org/ferroute/blob/main/|' "$work/rule.yaml" >"$work/runbooks.expected"
check "runbookUrl precedes the path of each runbook" same runbooks.expected runbooks.yaml

render --show-only templates/monitoring.yaml --set dashboard.enabled=true | sed '1,/^  ferroute.json: |/d; s/^    //' >"$work/dashboard.chart"
cp "$deploy/monitoring/dashboard.json" "$work/dashboard.base"
check "dashboard has deploy/monitoring/dashboard.json" same dashboard.base dashboard.chart

# The program reads addresses without a port as well, and IPv6 addresses with and without brackets.
probe() { render --set-string "config.healthzBindAddress=$1" | sed -n '/httpGet:/,/port:/{/host:\|port:/p}' | tr -d ' \n'; }
while read -r address expected; do
    check "probes of $address" test "$(probe "$address")" = "$expected$expected"
done <<'END'
0.0.0.0:10356 port:10356
0.0.0.0 port:10256
[::]:10356 port:10356
:: port:10256
127.0.0.1:10356 host:"127.0.0.1"port:10356
192.0.2.7 host:"192.0.2.7"port:10256
[2001:db8::7]:10356 host:"2001:db8::7"port:10356
2001:db8::7 host:"2001:db8::7"port:10256
END
check "probes without an address" test "$(probe "")" = "port:10256port:10256"

metrics() { render --set podMonitor.enabled=true --set-string "config.metricsBindAddress=$1" | sed -n 's/^ *containerPort: //p'; }
while read -r address expected; do
    check "metrics port of $address" test "$(metrics "$address")" = "$expected"
done <<'END'
0.0.0.0:10349 10349
0.0.0.0 10249
192.0.2.7 10249
2001:db8::7 10249
[::]:10349 10349
END

check "defaults can be removed" render --set nodeSelector=null --set affinity=null --set tolerations=null --set resources=null \
    --set podLabels=null --set updateStrategy=null --set priorityClassName=null --set canary=true

# helm prints no notes of a template; `install` does, and no cluster is asked by a dry run of the client.
helm install ferroute . --namespace kube-system --dry-run=client --set canary=true 2>/dev/null |
    sed -n "/^cat <<'END'/,/^END/{/END/!p}" >"$work/patch.notes"
grep -v '^#' "$deploy/canary/kube-proxy.yaml" >"$work/patch.canary"
check "the notes have the patch of deploy/canary" same patch.canary patch.notes

# Values on documented command lines.
documented=0
for page in docs/deploy.md deploy/helm/README.md .github/workflows/e2e.yml; do
    while read -r line; do
        read -ra words <<<"$(grep -oE -- '--set [^ \`]+' <<<"$line" | tr '\n' ' ')"
        documented=$((documented + 1))
        check "$page: ${words[*]}" render --set apiServer=https://192.0.2.10:6443 "${words[@]}"
    done < <(sed -e ':a' -e '/\\$/{N;s/\\\n */ /;ta' -e '}' "$deploy/../$page" | grep -E -- '(helm|`).* --set |`--set ')
done
check "commands with values are found in the pages" test "$documented" -ge 5

for values in test/*.yaml; do
    name=$(basename "$values" .yaml)
    render -f "$values" >"$work/$name.yaml"
    normalize "$work/$name.yaml" >"$work/$name.normal"
    diff -U2 --label default --label "$name" "$work/chart.normal" "$work/$name.normal" | sed 's/^@@ .*/@@/' >"$work/$name.diff" || true
    # A test above compares the rules with their source.
    sed -i '/^+  groups:/,/^+---/{/^+---/!d}' "$work/$name.diff"
    [ "${1:-}" != --accept ] || cp "$work/$name.diff" "test/$name.diff"
    check "values $name" diff -u "test/$name.diff" "$work/$name.diff"
    check "lint of values $name" helm lint --quiet -f "$values" .
done

refuses() { # FILE: the values are refused, and the message has the text of the file's first line
    if render -f "$1" >/dev/null 2>"$work/refusal"; then echo "accepted"; return 1; fi
    grep -F "$(sed -n '1s/^# //p' "$1")" "$work/refusal" || { cat "$work/refusal"; return 1; }
}
for values in test/invalid/*.yaml; do
    check "refusal of $values" refuses "$values"
done

program=$(sed -n 's/^version = "\(.*\)"/\1/p' ../../Cargo.toml)
check "the chart's version is the program's, $program" test "$(sed -n 's/^version: //p;s/^appVersion: //p' Chart.yaml | sort -u)" = "$program"

echo "Helm chart: $passed passed, $failed failed"
[ "$failed" = 0 ]
