// The complete path of a connection: from the client through this node, and through the endpoint's node, and the reply back.

import { el, icon } from "./dom.js";
import { hostOf } from "./format.js";
import { t } from "./i18n.js";
import { store } from "./store.js";

/** Returns the owner of an address, without its type. */
function ownerOf(trace, address) {
  return (trace.names?.[address] ?? trace.names?.[hostOf(address)] ?? "").replace(/^(pod|node) /, "");
}

/** Returns the node of an address: that of a pod, or the node itself. */
function nodeOf(trace, address) {
  const host = hostOf(address);
  return store.overview.machines.find(({ addresses }) => addresses.includes(host))?.node ?? null;
}

function stop(kind, name, address, notes = []) {
  return { kind, name: name || address, address: name ? address : null, notes: notes.filter(Boolean) };
}

/**
 * Returns the stops of the request and of the reply; null for a packet that is not delivered to an endpoint, or to more than
 * one. Connection tracking reverses every change for replies, on the node that made it.
 */
export function journeyOf(trace, way) {
  if (way.verdict !== "delivered" || !way.translated || (way.choices?.length ?? 0) > 1 && !way.to) return null;
  const { source, destination } = trace.packet;
  const here = trace.node;
  const there = nodeOf(trace, way.to);
  const isMasqueraded = way.from !== hostOf(source);
  const client = stop("client", ownerOf(trace, source) || (trace.packet.origin === "local" ? here : ""), hostOf(source));
  const endpoint = stop("endpoint", ownerOf(trace, way.to), way.to);
  const other = there && there !== here ? [stop("node", there, null, [t("journey.forwards")])] : [];
  const change = (before, after) => `${before} → ${after}`;
  const request = [client, stop("node", here, null, [change(destination, way.to), isMasqueraded && change(hostOf(source), way.from)]), ...other, endpoint];
  const reply = [endpoint, ...other, stop("node", here, null, [change(way.to, destination), isMasqueraded && change(way.from, hostOf(source))]), client];
  return { request, reply, isMasqueraded };
}

const ICONS = { client: "pod", node: "node", endpoint: "pod" };

function row(title, stops) {
  return el("div", { class: "journey-row" }, el("h3", {}, title),
    el("ol", { class: "journey" }, stops.map(({ kind, name, address, notes }, index) => el("li", { class: `journey-${kind}` },
      index > 0 && el("span", { class: "journey-arrow" }, icon("arrow")),
      el("span", { class: "journey-stop" }, icon(ICONS[kind]),
        el("span", { class: "gtext" }, el("b", {}, name), address && el("small", { class: "mono" }, address),
          notes.map((note) => el("small", { class: "mono" }, note))))))));
}

/** Returns the drawing, or null if there is no such path. */
export function journeyCard(trace, way) {
  const journey = journeyOf(trace, way);
  if (!journey) return null;
  return el("section", { class: "card journey-card", id: "journey" }, el("h2", { class: "card-title" }, t("journey.title")),
    row(t("journey.request"), journey.request), row(t("journey.reply"), journey.reply),
    el("p", { class: "muted" }, t(journey.isMasqueraded ? "journey.masqueraded" : "journey.direct")));
}

/** The path in words, for files. */
export function journeyLines(trace, way) {
  const journey = journeyOf(trace, way);
  if (!journey) return [];
  const words = (stops) => stops.map(({ name, notes }) => (notes.length > 0 ? `${name} (${notes.join(t("list.separator"))})` : name)).join(" → ");
  return [`${t("journey.request")}: ${words(journey.request)}`, `${t("journey.reply")}: ${words(journey.reply)}`];
}
