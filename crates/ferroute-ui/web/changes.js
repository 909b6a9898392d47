// The view "Changes": the recent syncs, the diagnosis of the host, and the comparison with the kernel.

import { get } from "./api.js";
import { diffCard } from "./diff.js";
import { card, el, icon, notice, replace } from "./dom.js";
import { localFinding } from "./findings.js";
import { count } from "./format.js";
import { t } from "./i18n.js";
import { on } from "./store.js";
import { translate } from "./texts.js";
import { timelineChart, timelineList } from "./timeline.js";

const SEVERITIES = { problem: "cross", warning: "warn", note: "check" };

function finding(reported) {
  const { check, severity, problem, effect, fix } = localFinding(reported);
  return el("li", { class: `finding finding-${severity}` }, el("span", { class: "finding-icon" }, icon(SEVERITIES[severity] ?? "warn")),
    el("div", {}, el("h3", {}, problem, el("span", { class: `tag tag-${severity}` }, t(`severity.${severity}`))),
      el("p", {}, effect), el("p", { class: "fix" }, el("b", {}, t("doctor.fix")), " ", fix),
      el("small", { class: "mono muted" }, check)));
}

function diagnosisNodes({ findings, unknown, passed, access }) {
  return [
    findings.length === 0 && notice("good", icon("check"), t("doctor.nothing")),
    el("ul", { class: "findings" }, findings.map(finding)),
    unknown.length > 0 && el("div", { class: "unknowns" }, el("h3", {}, t("doctor.unknown")),
      el("ul", {}, unknown.map(({ check, reason }) => el("li", {}, el("span", { class: "mono" }, check), ` – ${translate(reason)}`)))),
    passed.length > 0 && el("details", {}, el("summary", {}, t("doctor.passed", { count: passed.length })),
      el("p", { class: "passed" }, passed.map((check) => el("span", { class: "chip" }, icon("check"), check)))),
    access.map((line) => el("p", { class: "muted" }, translate(line))),
  ];
}

/** A card whose content takes seconds: it is fetched at once or on request, and again on request. */
function slowCard(title, lead, button, fetchNodes, atOnce) {
  const output = el("div", { "aria-live": "polite" });
  const start = el("button", { class: "button", type: "button" }, button);
  const run = async () => {
    start.disabled = true;
    replace(output, notice("loading", t("loading")));
    try {
      replace(output, await fetchNodes());
    } catch (error) {
      replace(output, notice("error", error.message));
    }
    start.disabled = false;
  };
  start.addEventListener("click", run);
  if (atOnce) run();
  return card(title, {}, el("p", { class: "muted" }, lead), output, el("p", {}, start));
}

async function doctorNodes() {
  const { available, reason, diagnosis } = await get("/doctor");
  return available ? diagnosisNodes(diagnosis) : notice("info", t("unavailable", { reason: translate(reason) }));
}

async function diffNodes() {
  const { available, reason, report } = await get("/diff");
  return available ? diffCard(report) : notice("info", t("unavailable", { reason: translate(reason) }));
}

/** Mounts the view. */
export function mountChanges(container) {
  let ended = false;
  const box = el("div", {}, notice("loading", t("loading")));
  const badge = el("span", { class: "badge", hidden: true });
  const doctor = slowCard(t("doctor.title"), t("doctor.lead"), t("doctor.again"), doctorNodes, true);
  doctor.id = "doctor";
  const diff = slowCard(t("diff.title"), t("diff.lead"), t("diff.start"), diffNodes, false);
  diff.id = "diff";
  container.append(el("div", { class: "changes page" },
    el("div", { class: "intro" }, el("h1", {}, t("changes.title")), el("p", { class: "muted lead" }, t("changes.lead"))),
    el("div", { class: "changes-columns" },
      card([t("timeline.title"), badge], { class: "timeline-card" }, box),
      el("div", { class: "changes-side" }, doctor, diff))));

  async function load() {
    try {
      const { available, reason, applied, syncs } = await get("/timeline");
      if (ended) return;
      if (!available) return replace(box, notice("info", t("unavailable", { reason: translate(reason) })));
      badge.hidden = false;
      badge.textContent = count(syncs.length);
      if (syncs.length === 0) return replace(box, notice("info", t(applied ? "timeline.empty" : "timeline.waiting")));
      const list = timelineList(syncs);
      replace(box, timelineChart(syncs, list), list);
    } catch (error) {
      if (!ended) replace(box, notice("error", error.message));
    }
    return undefined;
  }

  load();
  const end = on("timeline", load);
  return { update() {}, unmount: () => { ended = true; end(); } };
}
