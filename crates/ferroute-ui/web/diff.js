// The comparison of the rules in the kernel with the planned ones.

import { el, icon, notice } from "./dom.js";
import { count, percent } from "./format.js";
import { t } from "./i18n.js";

const SHOWN = 50;

/** The handling of connections in words: `{"served": 2}`, `"refused"`. */
function handling(value) {
  if (value === null || value === undefined) return t("diff.nothing");
  return typeof value === "object" ? t("diff.served", { count: value.served }) : t(`diff.${value}`);
}

function mismatch(finding) {
  const { difference, missing, extra, endpoint, wanted, found } = finding;
  switch (difference) {
    case "endpoints": return [
      missing?.length > 0 && t("diff.missing", { list: missing.join(", ") }),
      extra?.length > 0 && t("diff.extra", { list: extra.join(", ") }),
    ].filter(Boolean).join("; ");
    case "shares": return t("diff.shares", { endpoint, wanted: percent(wanted), found: percent(found) });
    case "source": return t("diff.source", { wanted: t(`diff.from.${wanted}`), found: t(`diff.from.${found}`) });
    case "answer": return t("diff.answer", { wanted: handling(wanted), found: handling(found) });
    case "affinity": return t("diff.affinity", { wanted: wanted ?? "–", found: found ?? "–" });
    default: return difference;
  }
}

function list(title, items) {
  if (items.length === 0) return null;
  return el("div", { class: "diff-part" }, el("h4", {}, title, el("span", { class: "badge" }, count(items.length))),
    el("ul", {}, items.slice(0, SHOWN).map((item) => el("li", {}, item))),
    items.length > SHOWN && el("p", { class: "muted" }, t("cause.more", { count: items.length - SHOWN })));
}

function clientText(clients) {
  return clients?.length > 0 ? ` (${clients.map((client) => (typeof client === "string" ? client : JSON.stringify(client))).join(", ")})` : "";
}

function familyNodes(report) {
  const { family, wanted, found, compared, findings, leftovers, structure, doubts, named, blindSpot } = report;
  return el("section", { class: "diff-family" },
    el("h4", {}, family, " ", el("span", { class: "muted" }, t("diff.between", { wanted, found: found ?? t("diff.none") }))),
    el("p", { class: "muted" }, t("diff.compared", { ports: count(compared.servicePorts), frontends: count(compared.frontends), packets: count(compared.packets) })),
    list(t("diff.findings"), findings.map((finding) => [el("b", {}, finding.servicePort), " ", finding.frontend ?? "", clientText(finding.clients), ": ", mismatch(finding)])),
    list(t("diff.leftovers"), leftovers.map(({ frontend, name }) => `${frontend}${name ? ` (${name})` : ""}`)),
    list(t("diff.structure"), structure),
    list(t("diff.doubts"), doubts.map(({ servicePort, why }) => `${servicePort ? `${servicePort}: ` : ""}${why}`)),
    list(t("diff.named"), named.map(({ difference, packets }) => `${difference}: ${t("diff.packets", { count: packets })}`)),
    blindSpot && el("p", { class: "muted" }, blindSpot));
}

/** The report of a comparison. */
export function diffCard({ conclusion, reports }) {
  const kinds = { equal: ["good", "check"], unclear: ["warning", "warn"], different: ["error", "cross"] };
  const [kind, symbol] = kinds[conclusion] ?? ["info", "warn"];
  return [el("p", { class: `notice notice-${kind}` }, icon(symbol), t(`diff.conclusion.${conclusion}`)), reports.map(familyNodes)];
}
