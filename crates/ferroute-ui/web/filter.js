// The search in the list of Services: words, and filters such as `endpoints:0`, `type:NodePort`, `namespace:shop`.

import { socket } from "./format.js";

/** Compares numbers: `0`, `>10`, `<3`. */
function isCount(value, wanted) {
  const [, sign, number] = /^([<>]?)(\d+)$/.exec(wanted) ?? [];
  if (number === undefined) return false;
  return sign === ">" ? value > Number(number) : sign === "<" ? value < Number(number) : value === Number(number);
}

/** Reports whether the proxy serves a Service, with its last rules or earlier ones. */
export function isServed({ state }) {
  return state === "served" || state === "notApplied";
}

/** The condition of each filter. */
const FILTERS = {
  // As in the list: endpoints in use. A Service that the proxy does not serve has none, which is not a problem.
  endpoints: (service, wanted) => isServed(service) && isCount(service.used, wanted),
  type: (service, wanted) => service.type.toLowerCase() === wanted,
  namespace: (service, wanted) => service.name.split("/")[0].toLowerCase() === wanted,
  state: (service, wanted) => service.state.toLowerCase() === wanted,
  port: (service, wanted) => service.frontends.some(({ port }) => String(port) === wanted),
  ejected: (service, wanted) => isCount(service.ejected ?? 0, wanted),
  conflicts: (service, wanted) => isCount(service.conflicts?.length ?? 0, wanted),
};

/** The text in which words are searched: the name, addresses, ports, pods. */
function searchText(service) {
  const frontends = service.frontends.map(({ address, port, protocol, kind }) =>
    `${address ? socket(address, port) : port} ${protocol} ${kind}`);
  return [service.name, service.type, ...frontends, ...(service.ports ?? []), ...(service.search ?? [])]
    .join(" ").toLowerCase();
}

const indexed = new WeakMap();

function hasWord(service, word) {
  if (!indexed.has(service)) indexed.set(service, searchText(service));
  return indexed.get(service).includes(word);
}

/** Returns a function that reports whether a Service matches the query: all its words and filters. */
export function matcher(query) {
  const tests = query.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    const colon = word.indexOf(":");
    const filter = Object.hasOwn(FILTERS, word.slice(0, colon)) ? FILTERS[word.slice(0, colon)] : null;
    return filter ? (service) => filter(service, word.slice(colon + 1)) : (service) => hasWord(service, word);
  });
  return (service) => tests.every((test) => test(service));
}

/** Returns the value of a filter in a query, or null. */
export function filterOf(query, name) {
  const word = query.split(/\s+/).find((one) => one.toLowerCase().startsWith(`${name}:`));
  return word ? word.slice(name.length + 1) : null;
}

/** Returns the query with another value of a filter; null removes the filter. */
export function withFilter(query, name, value) {
  const words = query.split(/\s+/).filter((one) => one && !one.toLowerCase().startsWith(`${name}:`));
  return [...words, ...(value === null ? [] : [`${name}:${value}`])].join(" ");
}
