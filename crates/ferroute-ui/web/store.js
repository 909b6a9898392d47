// The state that several views share: the overview, the list of Services, and the rates of the last minutes.

import { get, subscribe } from "./api.js";

/** The samples of a sparkline: five minutes, at one sample every two seconds. */
const SAMPLES = 150;

const state = {
  overview: null,
  services: [],
  live: false,
  /** Why there are no rates, or null. */
  ratesMissing: null,
  /** The last rates by service port. */
  rates: new Map(),
  /** The rates of the last minutes by service port, oldest first. */
  history: new Map(),
  /** The number of samples received. */
  samples: 0,
};

const listeners = new Map();

/** The shared state; read only for views. */
export const store = state;

/** Calls a handler for `services`, `rates`, `timeline` or `live`; returns a function that ends it. */
export function on(topic, handler) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(handler);
  return () => listeners.get(topic).delete(handler);
}

function emit(topic) {
  for (const handler of [...(listeners.get(topic) ?? [])]) handler();
}

/** Fetches the overview and the Services. */
export async function load() {
  const [overview, list] = await Promise.all([get("/overview"), get("/services")]);
  state.overview = overview;
  state.services = list.services;
  emit("services");
}

/** Adds one sample to the history of every service port, zero for those without connections. */
function record(rates) {
  state.rates = new Map(rates.map((rate) => [rate.servicePort, rate]));
  state.samples += 1;
  for (const { servicePort } of rates) {
    if (!state.history.has(servicePort)) state.history.set(servicePort, new Array(SAMPLES).fill(0));
  }
  for (const [port, samples] of state.history) {
    samples.push(state.rates.get(port)?.perSecond ?? 0);
    samples.shift();
    if (samples.every((rate) => rate === 0)) state.history.delete(port);
  }
}

/** Starts to follow the server. */
export function follow() {
  let reload = null;
  let wasInterrupted = false;
  const changed = () => {
    clearTimeout(reload);
    reload = setTimeout(() => load().catch(() => {}), 150);
  };
  subscribe({
    revision: ({ revision }) => { if (revision !== state.overview?.revision) changed(); },
    rates: ({ rates }) => { state.ratesMissing = null; record(rates); emit("rates"); },
    "rates-unavailable": ({ reason }) => { state.ratesMissing = reason; emit("rates"); },
    timeline: () => emit("timeline"),
  }, (live) => {
    // A stream that was interrupted may have missed a revision.
    if (live && wasInterrupted) changed();
    wasInterrupted = !live;
    state.live = live;
    emit("live");
  });
}

/** Returns the new connections per second of a Service, and their history; null without rates. */
export function rateOf(service) {
  if (state.samples === 0) return null;
  let now = 0;
  let history = null;
  for (const port of service.ports) {
    now += state.rates.get(port)?.perSecond ?? 0;
    const samples = state.history.get(port);
    if (samples) history = history ? history.map((sum, index) => sum + samples[index]) : samples;
  }
  return { now, history };
}
