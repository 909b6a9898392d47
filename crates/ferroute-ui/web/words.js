// The content of a trace, in sentences.

import { hostOf, mark, percent } from "./format.js";
import { t } from "./i18n.js";
import { store } from "./store.js";
import { translate } from "./texts.js";

/** Returns the owner of an address, with its type. */
function ownerOf(trace, text) {
  const owner = trace.names?.[text] ?? trace.names?.[hostOf(text)];
  return owner?.replace(/^(pod|node) /, (_, kind) => `${t(`machine.${kind}`)} `);
}

/** Returns an address with its owner: `10.244.1.5:8080 (pod shop/web-1)`. */
export function owned(trace, text) {
  const owner = ownerOf(trace, text);
  return owner ? `${text} (${owner})` : text;
}

/** The owner of an address with the address, as a title: `pod shop/web-1, 10.244.1.5:8080`. */
function nameAndAddress(trace, text) {
  const owner = ownerOf(trace, text);
  return owner ? `${owner}, ${text}` : text;
}

/** The reason why rules of a service port are planned and not applied. */
export function notAppliedText({ error, keepsRules }) {
  if (!error) return t("notApplied.limit");
  return t(keepsRules ? "notApplied.keeps" : "notApplied.none", { error: translate(error) });
}

/** The reason why a packet is rejected, as far as it follows from the list of Services. */
function rejection(trace) {
  const { frontend } = trace;
  if (!frontend) return null;
  const service = store.services.find(({ name }) => name === `${frontend.namespace}/${frontend.service}`);
  return service?.used === 0 ? t("verdict.noEndpoint", { service: service.name }) : null;
}

function masquerading(trace, way) {
  const own = hostOf(trace.packet.source);
  return way.from === own ? t("verdict.sourceKept", { source: owned(trace, way.from) })
    : t("verdict.sourceChanged", { source: owned(trace, way.from) });
}

/** The end of a branch: a kind for its colour, a title, and a note. */
export function verdictOf(trace, way) {
  switch (way.verdict) {
    case "delivered": {
      const choices = way.choices?.length ?? 0;
      if (!way.translated) return { kind: "neutral", title: t("verdict.plain", { to: owned(trace, way.to) }), note: t("verdict.plainNote") };
      if (choices > 1) return { kind: "good", title: t("verdict.oneOf", { count: choices }), note: masquerading(trace, way) };
      return { kind: "good", title: t("verdict.delivered", { to: nameAndAddress(trace, way.to) }), note: masquerading(trace, way) };
    }
    case "rejected":
      return { kind: "bad", title: t("verdict.rejected", { with: way.with }), note: rejection(trace) };
    case "dropped":
      return { kind: "bad", title: t("verdict.dropped"), note: t("verdict.droppedNote") };
    case "noRoute":
      return { kind: "bad", title: t("verdict.noRoute"), note: null };
    default:
      return { kind: "unknown", title: t("verdict.unknown"), note: way.reason ? translate(way.reason) : null };
  }
}

/** A change or verdict in a few words, for the drawing. */
export function effectLabel(item) {
  switch (item.effect) {
    case "dnat": return item.choices ? t("effect.dnatOneOf", { count: item.choices.length }) : `DNAT → ${item.after.destination}`;
    case "connect": return item.choices ? t("effect.connectOneOf", { count: item.choices.length }) : `→ ${item.after.destination}`;
    case "masquerade": return `SNAT → ${hostOf(item.after.source)}`;
    case "mark": return `${t("header.mark")} ${mark(item.before.mark)} → ${mark(item.after.mark)}`;
    case "reject": return t("effect.reject");
    case "drop": return t("effect.drop");
    default: return item.effect;
  }
}

/** One item of the walk as a sentence. */
export function sentence(trace, item) {
  switch (item.event) {
    case "start": {
      const to = owned(trace, item.packet.destination);
      const from = owned(trace, item.packet.source);
      return item.packet.origin === "local" ? t("step.local", { from, to })
        : t("step.arrives", { from, to, interface: item.packet.origin.interface });
    }
    case "hook": return t("step.hook", { table: item.table, chain: item.chain });
    case "rule": return `${item.chain} ${item.number}`;
    case "effect": return effectSentence(trace, item);
    case "policy": return t("step.policy", { chain: item.chain, policy: item.policy });
    case "routed": return item.interface === null ? t("step.routedHere") : t("step.routed", { interface: item.interface });
    case "discarded": return t("step.discarded", { reason: translate(item.reason) });
    case "end": return verdictOf(trace, item.way).title;
    default: return item.event;
  }
}

function effectSentence(trace, item) {
  const { before, after } = item;
  switch (item.effect) {
    case "dnat": return t("effect.dnat", { before: before.destination, after: owned(trace, after.destination) });
    case "connect": return t("effect.connect", { before: before.destination, after: owned(trace, after.destination) });
    case "masquerade": return t("effect.masquerade", { before: hostOf(before.source), after: owned(trace, hostOf(after.source)) });
    case "mark": return t("effect.mark", { before: mark(before.mark), after: mark(after.mark) });
    case "accept": return t("effect.accept");
    case "drop": return t("effect.dropLong");
    case "reject": return t("effect.rejectLong", { with: item.with });
    default: return item.effect;
  }
}

/** A branch as the title of its tab. */
export function branchTitle(trace, way) {
  return `${percent(way.share)} · ${verdictOf(trace, way).title}`;
}
