// Access to the server: requests, the token of the demo, and the stream of events.

const BASE = "/api/v1";
/** Whether the page shows a whole cluster. */
export const isCluster = document.documentElement.hasAttribute("data-cluster");
/** The path of the resources of the shown node. */
let root = BASE;
const TOKEN_KEY = "ferroute-token";

/** Takes the token out of the address bar, so that it is neither bookmarked nor shown on a shared screen. */
export function takeToken() {
  const match = /^#token=([0-9a-zA-Z]+)&?(.*)$/.exec(location.hash);
  if (!match) return;
  sessionStorage.setItem(TOKEN_KEY, match[1]);
  const rest = match[2].startsWith("/") ? `#${match[2]}` : "";
  history.replaceState(null, "", location.pathname + rest);
}

/** Reports whether the page may act on the demo. */
export function hasToken() {
  return sessionStorage.getItem(TOKEN_KEY) !== null;
}

/** Switches to another node of a cluster. */
export function useNode(name) {
  root = `${BASE}/nodes/${encodeURIComponent(name)}`;
}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error ?? `${response.status} ${response.statusText}`);
  return body;
}

/** Fetches a resource of the API. */
export async function get(path, parameters) {
  const query = parameters ? `?${new URLSearchParams(parameters)}` : "";
  return answer(await fetch(`${root}${path}${query}`, { headers: { Accept: "application/json" } }));
}

/** Fetches a resource of a whole cluster. */
export async function getCluster(path) {
  return answer(await fetch(`${BASE}${path}`, { headers: { Accept: "application/json" } }));
}

/** Returns the address of the stream of flows: of all nodes together on the page of a cluster. */
export function flowsAddress() {
  return isCluster ? `${BASE}/cluster/flows/events` : `${BASE}/flows/events`;
}

/** Starts an action of the demo. */
export async function act(action, body) {
  const headers = { "Content-Type": "application/json", "X-Ferroute-Token": sessionStorage.getItem(TOKEN_KEY) ?? "" };
  return answer(await fetch(`${BASE}/demo/${action}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

/** Subscribes to the stream of events; `handlers` are by event; `state` is called with true if the stream is open. */
export function subscribe(handlers, state) {
  const stream = new EventSource(`${root}/events`);
  for (const [event, handler] of Object.entries(handlers)) {
    stream.addEventListener(event, (message) => handler(JSON.parse(message.data)));
  }
  stream.addEventListener("open", () => state(true));
  stream.addEventListener("error", () => state(false));
  return stream;
}
