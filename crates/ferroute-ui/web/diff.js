// The comparison of the rules in the kernel with the planned ones.

import { el, icon, notice } from "./dom.js";
import { count, percent, socket } from "./format.js";
import { t } from "./i18n.js";
import { translate } from "./texts.js";
import { notAppliedText } from "./words.js";

const SHOWN = 50;

/** The handling of connections in words: `{"served": 2}`, `"rejected"`. */
function handling(value) {
  if (value === null || value === undefined) return t("diff.nothing");
  return typeof value === "object" ? t("diff.served", { count: value.served }) : t(`diff.${value}`);
}

function mismatch(finding) {
  const { difference, missing, extra, endpoint, expected, actual } = finding;
  switch (difference) {
    case "endpoints": return [
      missing?.length > 0 && t("diff.missing", { list: missing.join(t("list.separator")) }),
      extra?.length > 0 && t("diff.extra", { list: extra.join(t("list.separator")) }),
    ].filter(Boolean).join("; ");
    case "shares": return t("diff.shares", { endpoint, expected: percent(expected), actual: percent(actual) });
    case "source": return t("diff.source", { expected: t(`diff.from.${expected}`), actual: t(`diff.from.${actual}`) });
    case "answer": return t("diff.answer", { expected: handling(expected), actual: handling(actual) });
    case "affinity": return t("diff.affinity", { expected: expected ?? "–", actual: actual ?? "–" });
    default: return difference;
  }
}

function list(title, items) {
  if (items.length === 0) return null;
  return el("div", { class: "diff-part" }, el("h4", {}, title, el("span", { class: "badge" }, count(items.length))),
    el("ul", {}, items.slice(0, SHOWN).map((item) => el("li", {}, item))),
    items.length > SHOWN && el("p", { class: "muted" }, t("cause.more", { count: items.length - SHOWN })));
}

/** A frontend as the tools print it: `10.96.0.1:80/tcp`, `node port 30080/tcp`. */
function frontendText({ address, protocol, port }) {
  return `${address ? socket(address, port) : `${t("diff.nodePort")} ${port}`}/${protocol}`;
}

/** A client: `"pod"`, `{"endpoint": "10.244.1.5"}`. */
function clientText(client) {
  if (typeof client === "string") return t(`diff.client.${client}`);
  const [[kind, address]] = Object.entries(client);
  return `${t(`diff.client.${kind}`)} ${address}`;
}

function clientList(clients) {
  return clients?.length > 0 ? ` (${clients.map(clientText).join(t("list.separator"))})` : "";
}

function familyNodes(report) {
  const { family, expected, actual, coverage, findings, stale, structure, undetermined, intended, limitation } = report;
  return el("section", { class: "diff-family" },
    el("h3", {}, family, " ", el("span", { class: "muted" }, t("diff.between", { expected, actual: actual ?? t("diff.none") }))),
    el("p", { class: "muted" }, t("diff.coverage", { ports: count(coverage.servicePorts), frontends: count(coverage.frontends), packets: count(coverage.packets) })),
    list(t("diff.findings"), findings.map((finding) => [el("b", {}, finding.servicePort), " ", finding.frontend ? frontendText(finding.frontend) : "", clientList(finding.clients), ": ", mismatch(finding),
      finding.notApplied && el("p", { class: "muted" }, notAppliedText(finding.notApplied))])),
    list(t("diff.stale"), stale.map(({ frontend, name }) => `${frontendText(frontend)}${name ? ` (${name})` : ""}`)),
    list(t("diff.structure"), structure.map(translate)),
    list(t("diff.undetermined"), undetermined.map(({ servicePort, reason }) => `${servicePort ? `${servicePort}: ` : ""}${translate(reason)}`)),
    list(t("diff.intended"), intended.map(({ title, expected, actual, packets }) => `${translate(title)}: ${t("diff.answer", { expected: translate(expected), actual: translate(actual) })} (${t("diff.packets", { count: packets })})`)),
    limitation && el("p", { class: "muted" }, translate(limitation)));
}

/** The report of a comparison. */
export function diffCard({ conclusion, reports }) {
  const kinds = { equal: ["good", "check"], unclear: ["warning", "warn"], different: ["error", "cross"] };
  const [kind, symbol] = kinds[conclusion] ?? ["info", "warn"];
  return [el("p", { class: `notice notice-${kind}` }, icon(symbol), t(`diff.conclusion.${conclusion}`)), reports.map(familyNodes)];
}
