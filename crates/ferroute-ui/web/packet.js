// The view "Packet": the packet, and its path as the result. The address contains the packet, the branch and the step.

import { get } from "./api.js";
import { announce, el, icon, notice, replace, segments } from "./dom.js";
import { exportPath } from "./export.js";
import { isServed } from "./filter.js";
import { percent, socket } from "./format.js";
import { t } from "./i18n.js";
import { journeyCard } from "./journey.js";
import { drawPath } from "./path.js";
import { keepLink, packetLink, serviceLink } from "./route.js";
import { headerCard, stepList } from "./steps.js";
import { nodeAddress, on, store } from "./store.js";
import { suggest } from "./suggest.js";
import { translate } from "./texts.js";
import { walk } from "./walk.js";
import { branchTitle, notAppliedText, sentence, verdictOf } from "./words.js";

/** Below this width, the drawing is from top to bottom. */
const NARROW = 760;

const ICONS = { good: "check", bad: "cross", neutral: "arrow", unknown: "warn" };

/** The last packet, kept while another view is shown. */
let memory = null;

/** Reads the packet from the address. */
function questionOf(parameters) {
  const step = parameters.get("step");
  return {
    from: parameters.get("from") ?? "", to: parameters.get("to") ?? "", proto: parameters.get("proto") ?? "tcp",
    rules: parameters.get("rules") === "kernel" ? "kernel" : "planned",
    way: Number(parameters.get("way") ?? 0) || 0, step: step === null ? null : Number(step) || 0,
  };
}

function linkOf({ from, to, proto, rules, way, step }) {
  return packetLink({ from, to, proto: proto === "tcp" ? null : proto, rules: rules === "planned" ? null : rules, way: way || null, step });
}

function senders() {
  return store.overview.machines.map(({ name, addresses, kind }) => [name, `${t(`machine.${kind}`)} ${addresses.join(", ")}`]);
}

/** Services by name, and their frontends by address. */
function receivers() {
  return store.services.filter(isServed).flatMap(({ name, frontends }) => {
    const own = frontends.find(({ kind }) => kind === "clusterIp");
    const addresses = frontends.filter(({ address }) => address).map(({ address, port, kind }) =>
      [socket(address, port), `${name} · ${t(`frontend.${kind}`)}`]);
    return own ? [[`${name}:${own.port}`, t("frontend.clusterIp")], ...addresses] : addresses;
  });
}

function form(question, ask) {
  const field = (id, label, value, options) => {
    const input = el("input", { id, value, autocomplete: "off", spellcheck: "false", placeholder: t(`packet.${id}Hint`), required: true });
    return [el("div", { class: "field" }, el("label", { for: id }, label), suggest(input, options)), input];
  };
  const [fromField, from] = field("from", t("packet.from"), question.from, senders);
  const [toField, to] = field("to", t("packet.to"), question.to, receivers);
  const chosen = { proto: question.proto, rules: question.rules };
  const submit = () => ask({ ...chosen, from: from.value.trim(), to: to.value.trim(), way: 0, step: null });
  const choose = (key) => (value) => { chosen[key] = value; if (from.value && to.value) submit(); else drawChoices(); };
  const choices = el("div", { class: "choices" });
  const drawChoices = () => replace(choices,
    segments(t("packet.protocol"), ["tcp", "udp", "sctp"].map((one) => [one, one.toUpperCase()]), chosen.proto, choose("proto")),
    store.overview.kernel && segments(t("packet.rules"), ["planned", "kernel"].map((one) => [one, t(`rules.${one}`)]), chosen.rules, choose("rules")));
  drawChoices();
  return el("form", { class: "question", on: { submit: (event) => { event.preventDefault(); submit(); } } },
    fromField, el("span", { class: "question-arrow" }, icon("arrow")), toField, choices,
    el("button", { class: "button primary", type: "submit" }, t("packet.trace")));
}

/** The initial packet, if there is none in the address. */
function examples() {
  const served = store.services.filter((service) => isServed(service) && service.frontends.length > 0);
  const pods = store.overview.machines.filter(({ kind }) => kind === "pod");
  // A connection of a pod to itself takes the longest path.
  const isEndpoint = ({ search }, { name, addresses }) => [name, ...addresses].some((one) => search?.includes(one));
  const sender = (service) => pods.map((pod) => [isEndpoint(service, pod), pod.node !== store.overview.node, pod])
    .sort(([one, away], [other, alsoAway]) => one - other || away - alsoAway)[0]?.[2];
  const outside = store.overview.machines.find(({ kind }) => kind === "outside");
  const list = [];
  const inner = served.find(({ used }) => used > 0);
  if (inner && sender(inner)) list.push({ from: sender(inner).name, to: inner.name });
  const outer = served.flatMap(({ frontends }) => frontends).filter(({ kind }) => kind !== "clusterIp");
  const { address, port } = outer.find((one) => one.address) ?? outer[0] ?? {};
  const target = address || nodeAddress();
  if (outside && port && target) list.push({ from: outside.name, to: socket(target, port) });
  const empty = served.find(({ used }) => used === 0);
  if (empty && sender(empty)) list.push({ from: sender(empty).name, to: empty.name });
  return list;
}

function welcome() {
  return el("div", { class: "welcome" }, el("h2", {}, t("packet.welcome")), el("p", { class: "muted" }, t("packet.welcomeLead")),
    el("ul", {}, examples().map((question) => el("li", {}, el("a", { href: packetLink(question) },
      el("b", {}, question.from), icon("arrow"), el("b", {}, question.to))))));
}

/** Mounts the view. */
export function mountPacket(container, route) {
  let question = null;
  let trace = null;
  let walked = null;
  let serial = 0;
  const top = el("div", { class: "packet-top" });
  const body = el("div", { class: "packet-body" });
  const page = el("div", { class: "packet page" }, el("div", { class: "intro" }, el("h1", {}, t("packet.title"))), top, body);
  container.append(page);

  const way = () => trace.branches[question.way] ?? trace.branches[0];

  function ask(next) {
    const link = linkOf(next);
    if (location.hash === link) load(next);
    else location.hash = link.slice(1);
  }

  function go(step) {
    question.step = step === null ? null : Math.max(0, Math.min(walked.steps.length - 1, step));
    memory = linkOf(question);
    keepLink(memory);
    const inList = document.activeElement?.closest(".stages");
    drawAnswer();
    if (inList) page.querySelector("[aria-current=step] summary")?.focus({ preventScroll: true });
    if (question.step !== null) {
      announce(`${question.step + 1}/${walked.steps.length}: ${sentence(trace, walked.steps[question.step])}`);
      page.querySelector("[aria-current=step]")?.scrollIntoView({ block: "nearest" });
    }
  }

  const next = () => go(question.step === null ? 0 : question.step + 1);
  const previous = () => go(question.step === null ? walked.steps.length - 1 : question.step - 1);

  function controls() {
    const { step } = question;
    const button = (name, label, id, disabled, action) =>
      el("button", { class: "icon-button", type: "button", id, title: label, "aria-label": label, disabled,
        on: { click: () => { action(); document.getElementById(id)?.focus(); } } }, icon(name));
    return el("div", { class: "controls", role: "group", "aria-label": t("steps.label") },
      button("left", t("steps.previous"), "previous", step === 0, previous),
      el("span", { class: "position" }, step === null ? t("steps.count", { count: walked.steps.length }) : `${step + 1} / ${walked.steps.length}`),
      button("right", t("steps.next"), "next", step === walked.steps.length - 1, next),
      step !== null && el("button", { class: "button quiet", type: "button", on: { click: () => go(null) } }, t("steps.all")),
      el("kbd", { class: "keys" }, "← →"));
  }

  function banner() {
    const { kind, title, note } = verdictOf(trace, way());
    const { frontend } = trace;
    return el("div", { class: `verdict verdict-${kind}` }, el("span", { class: "verdict-icon" }, icon(ICONS[kind])),
      el("div", { class: "grow" }, el("h2", {}, title), note && el("p", {}, note),
        frontend && el("p", { class: "muted" }, t(`verdict.frontend.${frontend.kind}`), " ",
          el("a", { href: serviceLink(`${frontend.namespace}/${frontend.service}`) }, `${frontend.namespace}/${frontend.service}`),
          ` · ${trace.mode} · ${t(`rules.${trace.rules}`)}`),
        trace.notApplied && trace.rules === "planned" && notice("warning", icon("warn"), notAppliedText(trace.notApplied)),
        (way().assumptions ?? []).map(({ condition, holds }) => el("p", { class: "muted" }, t(holds ? "verdict.assuming" : "verdict.assumingNot", { condition: translate(condition) })))),
      el("button", { class: "button", type: "button", id: "export", on: { click: () => exportPath({ trace, way: way(), walked }) } },
        icon("download"), "SVG"));
  }

  function branches() {
    if (trace.branches.length < 2) return null;
    return el("div", { class: "branches", role: "group", "aria-label": t("branches.label") }, trace.branches.map((one, index) =>
      el("button", { type: "button", class: "branch", "aria-pressed": String(one === way()), title: branchTitle(trace, one), data: { way: index },
        on: { click: () => { question.way = index; question.step = null; walked = walk(trace, way()); go(null); } } },
        el("b", {}, percent(one.share)), el("span", {}, verdictOf(trace, one).title),
        (one.assumptions ?? []).map(({ condition, holds }) => el("small", {}, t(holds ? "verdict.assuming" : "verdict.assumingNot", { condition: translate(condition) }))))));
  }

  function drawAnswer() {
    const step = question.step === null ? null : walked.steps[question.step];
    const narrow = page.clientWidth < NARROW;
    const header = step ?? { before: walked.steps[0].before, after: walked.steps.at(-1).after };
    replace(body, branches(), banner(),
      drawPath({ trace, way: way(), walked, current: step?.place ?? null, narrow }),
      journeyCard(trace, way()),
      el("div", { class: "walk" },
        el("aside", { class: "walk-side", "aria-label": t("header.title") }, controls(), headerCard(trace, header, step)),
        stepList({ trace, walked, current: question.step, go })));
  }

  /** Traces a packet. With `again`, also one that was traced already; its result is shown until the new one arrives. */
  async function load(next, again = false) {
    const same = !again && question && trace && ["from", "to", "proto", "rules"].every((key) => question[key] === next[key]);
    question = next;
    memory = linkOf(question);
    // Input that is being typed is kept when the cluster changes.
    if (!again) replace(top, form(question, ask));
    if (!question.from || !question.to) {
      trace = null;
      return replace(body, welcome());
    }
    const mine = ++serial;
    try {
      if (!same) {
        // The steps of the previous packet do not apply to this one.
        body.inert = !again;
        const { from, to, proto, rules } = question;
        const fresh = await get("/trace", { from, to, proto, rules });
        if (mine !== serial) return undefined;
        trace = fresh;
      }
      question.way = Math.min(question.way, trace.branches.length - 1);
      walked = walk(trace, way());
      if (question.step !== null) question.step = Math.min(question.step, walked.steps.length - 1);
      drawAnswer();
      announce(verdictOf(trace, way()).title);
    } catch (error) {
      if (mine !== serial) return undefined;
      trace = null;
      replace(body, notice("error", translate(error.message)), welcome());
    }
    body.inert = false;
    return undefined;
  }

  function keys(event) {
    if (!trace || body.inert || event.target.closest("input, select, textarea") || event.altKey || event.ctrlKey || event.metaKey) return;
    const moves = { ArrowRight: next, ArrowLeft: previous, Escape: () => go(null) };
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
  }

  function update({ parameters }) {
    // The tab leads back to the last packet.
    if (memory && [...parameters.keys()].length === 0) {
      keepLink(memory);
      return load(questionOf(new URLSearchParams(memory.split("?")[1])));
    }
    return load(questionOf(parameters));
  }

  let wasNarrow = null;
  const observer = new ResizeObserver(() => {
    const narrow = page.clientWidth < NARROW;
    if (trace && wasNarrow !== null && wasNarrow !== narrow) drawAnswer();
    wasNarrow = narrow;
  });
  observer.observe(page);
  document.addEventListener("keydown", keys);
  update(route);
  const end = on("services", () => {
    if (question?.from && question.to) load(question, true);
  });
  return { update, unmount: () => { end(); observer.disconnect(); document.removeEventListener("keydown", keys); } };
}
