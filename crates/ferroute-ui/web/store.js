// The state that several views share: the overview, the list of Services, and the rates of the last minutes.

import { get, subscribe } from "./api.js";

/** Number of samples that are kept: five minutes, at the shortest interval of the server. */
const SAMPLES = 300;

/** The shortest time between two requests for changes, in milliseconds. */
const PACE = 400;

const state = {
  overview: null,
  services: [],
  live: false,
  /** The reason why there are no rates, or null. */
  ratesMissing: null,
  /** The last rates by service port. */
  rates: new Map(),
  /** The rates of the last minutes by service port, oldest first. */
  history: new Map(),
  /** The times of these samples, in milliseconds. */
  times: [],
  /** The counts of the proxy: by service port, then by endpoint. */
  traffic: new Map(),
};

const listeners = new Map();

/** The shared state; read only for views. */
export const store = state;

/**
 * Calls a handler for `services`, `rates`, `traffic`, `timeline` or `live`; returns a function that ends it. The handler of `services`
 * gets the names of the changed Services, or null if all may have changed.
 */
export function on(topic, handler) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(handler);
  return () => listeners.get(topic).delete(handler);
}

function emit(topic, detail) {
  for (const handler of [...(listeners.get(topic) ?? [])]) handler(detail);
}

/**
 * Returns an address of the node of an IP family, `IPv4` or `IPv6`, or the one that other hosts use; undefined if there is
 * none.
 */
export function nodeAddress(family) {
  const here = state.overview.machines.find(({ kind, node }) => kind === "node" && node === state.overview.node);
  return here?.addresses.find((one) => !family || one.includes(":") === (family === "IPv6"));
}

/** Fetches the overview and the Services. */
export async function load() {
  const [overview, list, history] = await Promise.all([get("/overview"), get("/services"), get("/history")]);
  // The two may be of different revisions; changes since the older one are fetched next.
  state.overview = { ...overview, revision: Math.min(overview.revision, list.revision) };
  state.services = list.services;
  state.times = [];
  state.history = new Map();
  for (const { at, rates } of history.samples) remember(at, new Map(Object.entries(rates)));
  state.traffic = new Map();
  // Proxies of earlier versions have no counts.
  addTraffic(history.traffic ?? []);
  emit("services", null);
}

/** Applies a difference to a list of named items, and returns the list in the order of the names. */
function applied(list, { changed, removed }) {
  if (changed.length === 0 && removed.length === 0) return list;
  const items = new Map(list.map((item) => [item.name, item]));
  for (const name of removed) items.delete(name);
  for (const item of changed) items.set(item.name, item);
  return [...items.values()].sort((left, right) => (left.name < right.name ? -1 : 1));
}

let updating = Promise.resolve();

/** Fetches the changes since the last request. Requests are sequential, so that no older answer replaces a newer one. */
export function update() {
  updating = updating.catch(() => {}).then(fetchChanges);
  return updating;
}

async function fetchChanges() {
  const { services, machines, complete, ...overview } = await get("/changes", { since: state.overview.revision });
  state.services = applied(complete ? [] : state.services, services);
  state.overview = { ...overview, machines: applied(complete ? [] : state.overview.machines, machines) };
  emit("services", complete ? null : new Set([...services.changed.map(({ name }) => name), ...services.removed]));
}

/** Adds one sample to the history of every service port, zero for those without connections. */
function remember(at, perSecond) {
  state.times.push(Date.parse(at));
  for (const port of perSecond.keys()) {
    if (!state.history.has(port)) state.history.set(port, new Array(state.times.length - 1).fill(0));
  }
  for (const [port, samples] of state.history) samples.push(perSecond.get(port) ?? 0);
  if (state.times.length <= SAMPLES) return;
  state.times.shift();
  for (const [port, samples] of state.history) {
    samples.shift();
    if (samples.every((rate) => rate === 0)) state.history.delete(port);
  }
}

function record({ at, rates }) {
  state.rates = new Map(rates.map((rate) => [rate.servicePort, rate]));
  // The first event after the history is its last sample.
  if (Date.parse(at) > (state.times.at(-1) ?? 0)) remember(at, new Map(rates.map((rate) => [rate.servicePort, rate.perSecond])));
}

function addTraffic(list) {
  for (const counts of list) {
    if (!state.traffic.has(counts.servicePort)) state.traffic.set(counts.servicePort, new Map());
    state.traffic.get(counts.servicePort).set(counts.endpoint, counts);
  }
}

/** Starts to follow the server. */
export function follow() {
  let reload = null;
  let latest = 0;
  let wasInterrupted = false;
  // One request at a time: further changes are in the next one.
  const changed = () => {
    reload ??= setTimeout(async () => {
      await (wasInterrupted ? load() : update()).then(() => { wasInterrupted = false; }, () => {});
      reload = null;
      if (latest > state.overview.revision && state.live) changed();
    }, PACE);
  };
  subscribe({
    revision: ({ revision }) => { latest = revision; if (revision !== state.overview.revision) changed(); },
    rates: (news) => { state.ratesMissing = null; record(news); emit("rates"); },
    "rates-unavailable": ({ reason }) => { state.ratesMissing = reason; emit("rates"); },
    traffic: (news) => { addTraffic(news); emit("traffic"); },
    timeline: () => emit("timeline"),
  }, (live) => {
    // Another server may answer after an interruption, with different revisions.
    if (live && wasInterrupted) changed();
    if (!live) wasInterrupted = true;
    state.live = live;
    emit("live");
  });
}

/** Returns the new connections per second of a Service, and their history; null without rates. */
export function rateOf(service) {
  if (state.times.length === 0) return null;
  let now = 0;
  let history = null;
  for (const port of service.ports) {
    now += state.rates.get(port)?.perSecond ?? 0;
    const samples = state.history.get(port);
    if (samples) history = history ? history.map((sum, index) => sum + samples[index]) : samples;
  }
  return { now, history };
}
