// The frame of the page: navigation, language, theme, and the selection of the view.

import { takeToken } from "./api.js";
import { mountChanges } from "./changes.js";
import { nodeChooser, openCluster } from "./cluster.js";
import { announce, el, icon, notice, replace } from "./dom.js";
import { chooseLanguage, language, t } from "./i18n.js";
import { mountMap } from "./map.js";
import { mountPacket } from "./packet.js";
import { keepLink, parseRoute, serviceLink } from "./route.js";
import { mountServices } from "./services.js";
import { follow, load, on, store } from "./store.js";
import { translate } from "./texts.js";

const VIEWS = { services: mountServices, map: mountMap, packet: mountPacket, changes: mountChanges };
const THEMES = ["auto", "light", "dark"];
const THEME_ICONS = { auto: "auto", light: "sun", dark: "moon" };

/** The mounted view: its name, its handler of new addresses, and its end. */
let mounted = null;

function theme() {
  const stored = localStorage.getItem("ferroute-theme");
  return THEMES.includes(stored) ? stored : "auto";
}

function applyTheme() {
  const chosen = theme();
  if (chosen === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = chosen;
}

function themeButton() {
  const chosen = theme();
  const label = t(`theme.${chosen}`);
  return el("button", {
    class: "icon-button", type: "button", id: "theme", title: label, "aria-label": label,
    on: {
      click: () => {
        localStorage.setItem("ferroute-theme", THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
        applyTheme();
        drawBar();
        document.getElementById("theme").focus();
        announce(t(`theme.${theme()}`));
      },
    },
  }, icon(THEME_ICONS[chosen]));
}

function languageButton() {
  const other = language() === "zh" ? "en" : "zh";
  return el("button", {
    class: "icon-button language", type: "button", id: "language", lang: other, "aria-label": t("language.switch"),
    on: {
      click: () => {
        chooseLanguage(other);
        remount();
        document.getElementById("language").focus();
      },
    },
  }, other === "zh" ? "中文" : "English");
}

/** The node, the mode and the source of the page's data. */
function context() {
  const { overview, live } = store;
  if (!overview) return el("p", { class: "context" }, nodeChooser());
  const source = t(`source.${overview.source}`);
  return el("p", { class: "context", title: translate(overview.origin) || null },
    el("span", { class: `pulse ${live ? "pulse-live" : ""}`, role: "img", "aria-label": t(live ? "live.on" : "live.off"),
      title: t(live ? "live.on" : "live.off") }),
    nodeChooser() ?? el("strong", {}, overview.node), el("span", { class: "chip" }, overview.mode), el("span", { class: "muted" }, source));
}

function tab(view, current) {
  return el("a", { href: `#/${view}`, "aria-current": view === current ? "page" : null }, t(`view.${view}`));
}

function drawBar() {
  const current = parseRoute().view;
  document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
  document.getElementById("skip").textContent = t("skip");
  replace(document.getElementById("bar"),
    el("a", { class: "brand", href: "#/services" },
      el("img", { src: "/web/icon.svg", alt: "", width: 26, height: 26 }), "Ferroute"),
    el("nav", { class: "tabs", "aria-label": t("navigation") }, Object.keys(VIEWS).map((view) => tab(view, current))),
    context(),
    el("div", { class: "tools" }, languageButton(), themeButton()));
}

function show() {
  const route = parseRoute();
  document.title = `${t(`view.${route.view}`)} · Ferroute`;
  if (mounted?.view === route.view) {
    mounted.update(route);
  } else {
    mounted?.unmount();
    const main = document.getElementById("main");
    main.replaceChildren();
    mounted = { view: route.view, ...VIEWS[route.view](main, route) };
  }
  drawBar();
}

/** Draws everything again, in another language. */
function remount() {
  mounted?.unmount();
  mounted = null;
  show();
}

/** On the first visit of the demo, the page opens with a graph, because it needs no explanation. */
function openDemo() {
  const first = store.services.find((service) => service.state === "served" && service.used > 0);
  const isFirst = sessionStorage.getItem("ferroute-visited") === null;
  sessionStorage.setItem("ferroute-visited", "1");
  if (!store.overview.demo || !isFirst || !first || location.hash.length > 2) return;
  keepLink(serviceLink(first.name));
}

async function start() {
  takeToken();
  applyTheme();
  drawBar();
  try {
    await openCluster();
    await load();
  } catch (error) {
    drawBar();
    replace(document.getElementById("main"), notice("error", t("error.load", { error: error.message })),
      el("button", { class: "button", type: "button", on: { click: () => location.reload() } }, t("retry")));
    return;
  }
  openDemo();
  follow();
  on("live", drawBar);
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#token=")) takeToken();
    show();
  });
  // The default of a link is to move the fragment, which holds the view here.
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
  show();
}

start();
