// Numbers, addresses and times in readable form.

import { language } from "./i18n.js";

/** Formats a count with separators. */
export function count(value) {
  return new Intl.NumberFormat(language()).format(value);
}

/** Formats a rate: one digit after the point for small ones. */
export function rate(value) {
  if (value === 0) return "0";
  if (value < 0.05) return "<0.1";
  return new Intl.NumberFormat(language(), { maximumFractionDigits: value < 100 ? 1 : 0 }).format(value);
}

/** Formats a number of bytes. */
export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  const step = Math.min(units.length - 1, value < 1 ? 0 : Math.floor(Math.log10(Math.round(value)) / 3));
  const scaled = value / 1000 ** step;
  return `${new Intl.NumberFormat(language(), { maximumFractionDigits: step > 0 && scaled < 100 ? 1 : 0 }).format(scaled)} ${units[step]}`;
}

/** Formats a probability, 0 to 1. */
export function percent(share) {
  return new Intl.NumberFormat(language(), { style: "percent", maximumFractionDigits: 1 }).format(share);
}

/** Formats a duration in microseconds. */
export function duration(us) {
  if (us < 1000) return `${us} µs`;
  if (us < 1e6) return `${(us / 1000).toFixed(us < 10_000 ? 1 : 0)} ms`;
  return `${(us / 1e6).toFixed(2)} s`;
}

/** Formats the time of day. */
export function clock(time) {
  return new Date(time).toLocaleTimeString(language(), { hourCycle: "h23" });
}

/** Formats the date and the time of day. */
export function dateTime(time) {
  return new Date(time).toLocaleString(language(), { hourCycle: "h23" });
}

/** Joins address and port; IPv6 addresses need brackets. */
export function socket(address, port) {
  return address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
}

/** Returns the address of `ADDRESS:PORT`. */
export function hostOf(text) {
  const end = text.lastIndexOf(":");
  return text.slice(0, end).replace(/^\[|\]$/g, "");
}

/** Formats a mark as the tools print it. */
export function mark(value) {
  return `0x${value.toString(16)}`;
}
