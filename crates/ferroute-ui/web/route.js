// The state of the view is in the fragment of the page's address, so that it can be shared and bookmarked.

const VIEWS = ["services", "map", "packet", "changes"];

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Parses the address: the view, the Service of the view `services`, and the parameters. */
export function parseRoute() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [view, ...rest] = path.split("/").map(decode);
  return {
    view: VIEWS.includes(view) ? view : "services",
    service: view === "services" && rest.length === 2 ? rest.join("/") : null,
    parameters: new URLSearchParams(query ?? ""),
  };
}

/** The path of a Service, in the API and in addresses of the page: both parts of its name are escaped, the slash between them is not. */
export function servicePath(name) {
  return `/services/${name.split("/").map(encodeURIComponent).join("/")}`;
}

/** The address of a Service's page. */
export function serviceLink(name) {
  return `#${servicePath(name)}`;
}

/** The address of a packet's path; parameters without a value are left out. */
export function packetLink(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return `#/packet?${new URLSearchParams(given)}`;
}

/** Replaces the address without another entry in the history, and without another drawing. */
export function keepLink(link) {
  history.replaceState(null, "", link);
}
