// All problems, at the top of the page: Services without endpoints, invalid and conflicting ones, ejected endpoints,
// connections that fail, failed syncs, the findings of `doctor`, rules in the kernel that differ. Says so if nothing is
// wrong.

import { get, getCluster, isCluster } from "./api.js";
import { nodeLink } from "./cluster.js";
import { el, icon, replace } from "./dom.js";
import { isServed } from "./filter.js";
import { localFinding } from "./findings.js";
import { edgesOf, onFlows } from "./flows.js";
import { clock, count } from "./format.js";
import { t } from "./i18n.js";
import { serviceLink } from "./route.js";
import { on, store } from "./store.js";
import { translate } from "./texts.js";

/** Maximum number of Services that one problem names. */
const NAMED = 3;

/** Maximum number of Services for which the rules are compared at once; for more, this takes seconds of CPU time on the node. */
const COMPARED = 500;

/** The last findings, kept while another view is shown. */
const known = { doctor: null, drift: null, sync: null, cluster: null };

function names(services) {
  return [services.slice(0, NAMED).map(({ name }, index) => [index > 0 && t("list.separator"), el("a", { href: serviceLink(name) }, name)]),
    services.length > NAMED && ` ${t("cause.more", { count: count(services.length - NAMED) })}`];
}

/** The problems of Services, from the list. `filter` shows them all. */
function ofServices() {
  const { services } = store;
  const part = (kind, severity, filter, found) =>
    found.length > 0 && { kind, severity, title: t(`problem.${kind}${found.length === 1 ? "One" : ""}`, { count: count(found.length) }), note: names(found), filter: found.length > 1 && filter };
  return [
    part("invalid", "problem", "state:invalid", services.filter(({ state }) => state === "invalid")),
    part("notApplied", "problem", "state:notapplied", services.filter(({ state }) => state === "notApplied")),
    part("conflicts", "problem", "conflicts:>0", services.filter(({ conflicts }) => conflicts?.length > 0)),
    part("ejected", "warning", "ejected:>0", services.filter(({ ejected }) => ejected > 0)),
    part("noEndpoints", "warning", "endpoints:0", services.filter((service) => isServed(service) && service.used === 0)),
  ].filter(Boolean);
}

/**
 * Connections that no endpoint accepts. Connections that rules reject or drop have another cause, and many UDP protocols have no
 * answers.
 */
function ofFlows() {
  const failed = edgesOf(null).filter(({ servicePort, protocol, refused, unanswered }) =>
    servicePort && (refused > 0 || (protocol === "tcp" && unanswered > 0)));
  const services = [...new Set(failed.map(({ servicePort }) => servicePort.replace(/:.*/, "")))].sort();
  return services.length === 0 ? []
    : [{ kind: "failing", severity: "warning", title: t("problem.failing"), note: names(services.map((name) => ({ name }))), link: "#/map", services }];
}

function ofSyncs() {
  const failed = known.sync?.families.find(({ outcome }) => outcome === "failed");
  return failed ? [{ kind: "sync", severity: "problem", title: t("problem.sync", { time: clock(known.sync.at) }), note: failed.error, link: "#/changes" }] : [];
}

function ofDoctor() {
  const findings = known.doctor?.diagnosis?.findings ?? [];
  return findings.filter(({ severity }) => severity !== "note").map(localFinding).map(({ code, severity, problem, effect }) =>
    ({ kind: code, severity, title: problem, note: effect, link: "#/changes" }));
}

function ofDrift() {
  const { report } = known.drift ?? {};
  // If no proxy has written rules, for example with manifests, there are no rules that could differ.
  return report?.conclusion === "different" && report.reports.some(({ actual }) => actual)
    ? [{ kind: "drift", severity: "problem", title: t("diff.conclusion.different"), note: t("problem.drift"), link: "#/changes" }] : [];
}

/** The problems of all nodes of a cluster; for each node, the worst finding of its doctor. */
function ofNodes() {
  const { nodes, findings } = known.cluster ?? {};
  const of = ({ node, error, ready, problems, drift, doctor }) => {
    const at = (kind, severity, note) => ({ kind: `node-${kind}`, severity, title: t(`problem.node.${kind}`, { node }), note, link: nodeLink(node, "#/changes") });
    if (error) return [at("silent", "problem", error)];
    const worst = doctor?.worst && localFinding(doctor.worst);
    return [!ready && at("notReady", "problem", problems?.join(", ")), drift === "found" && at("drift", "problem", t("problem.drift")),
      worst && worst.severity !== "note" && at("doctor", worst.severity, worst.problem)].filter(Boolean);
  };
  const ofCluster = (findings ?? []).map(localFinding).map(({ code, severity, problem, effect }) => ({ kind: code, severity, title: problem, note: effect }));
  return [...ofCluster, ...(nodes ?? []).flatMap(of)];
}

/** The checks that could not be made, with the reasons. */
function unchecked() {
  const missing = (name, answer) => answer?.available === false && `${t(`problem.${name}`)}: ${translate(answer.reason)}`;
  return [missing("doctor", known.doctor), missing("comparison", known.drift), missing("nodes", known.cluster)].filter(Boolean);
}

function problemNode({ kind, severity, title, note, filter, link }, onFilter) {
  return el("li", { class: `problem problem-${severity}`, data: { problem: kind } },
    el("span", { class: "finding-icon" }, icon(severity === "problem" ? "cross" : "warn")),
    el("div", {}, el("b", {}, title), note && el("p", { class: "muted" }, note)),
    filter && el("button", { class: "button quiet", type: "button", on: { click: () => onFilter(filter) } }, t("problem.show")),
    link && el("a", { href: link }, t("problem.details")));
}

/** Returns the section. `onFilter(query)` shows the Services of a problem. `close` ends it. */
export function problemsSection(onFilter) {
  const list = el("ul", { class: "problem-list" });
  const state = el("p", { class: "problem-state", role: "status" });
  const element = el("section", { class: "wrong", id: "problems", "aria-label": t("problem.title") }, state, list);
  let pending = 0;
  let ended = false;
  let drawn = null;

  function draw() {
    const all = isCluster ? [...ofNodes(), ...ofServices(), ...ofFlows(), ...ofSyncs()] : [...ofServices(), ...ofFlows(), ...ofSyncs(), ...ofDrift(), ...ofDoctor()];
    all.sort((left, right) => (right.severity === "problem") - (left.severity === "problem"));
    const missing = unchecked();
    // Drawing again would remove the focus.
    const next = JSON.stringify([all.map(({ note, ...rest }) => [rest, String(note)]), missing, pending > 0, store.services.length]);
    if (next === drawn) return;
    drawn = next;
    element.classList.toggle("wrong-none", all.length === 0 && pending === 0);
    element.classList.toggle("wrong-checking", pending > 0);
    replace(list, all.map((problem) => problemNode(problem, onFilter)));
    replace(state, pending > 0 ? t("problem.checking")
      : all.length > 0 ? t(all.length === 1 ? "problem.countOne" : "problem.count", { count: count(all.length) })
      : [icon("check"), el("b", {}, t("problem.none")), " ", t(missing.length > 0 ? "problem.noneKnown" : "problem.noneNote")],
    pending === 0 && missing.length > 0 && el("small", { class: "problem-unchecked" }, missing.map((text) => el("span", {}, text))));
  }

  async function check(name, path, pick, fetch = get) {
    pending += 1;
    try {
      const answer = await fetch(path);
      known[name] = pick ? pick(answer) : answer;
    } catch (error) {
      known[name] = { available: false, reason: error.message };
    }
    pending -= 1;
    if (!ended) draw();
  }

  const lastSync = ({ syncs }) => syncs.findLast(({ families }) => families.length > 0) ?? null;
  const checkSyncs = () => check("sync", "/timeline", lastSync);
  checkSyncs();
  if (isCluster) check("cluster", "/cluster/problems", null, getCluster);
  else check("doctor", "/doctor");
  if (!isCluster && store.overview.kernel && store.services.length <= COMPARED) check("drift", "/diff");
  draw();
  const ends = [on("services", draw), on("timeline", checkSyncs), onFlows(draw)];
  return { element, close: () => { ended = true; ends.forEach((end) => end()); } };
}
