// Where the time to first tokens goes: percentiles of each pool, and the mean of each part as a bar.
import { byId, keep, make, mark, put } from "./dom.js";
import { percent, seconds } from "./format.js";

const POOLS_MAX = 2;
const PARTS = [
  ["client", "client sends"], ["penstock", "penstock"], ["queue", "queue"],
  ["failed", "failed attempts"], ["connect", "connect"], ["engine", "engine"],
];

export function showFirstTokens({ rates }) {
  const pools = Object.entries(rates)
    .filter(([, rate]) => rate.streams)
    .sort(([, a], [, b]) => b.ttft_p95_s - a.ttft_p95_s);
  const shown = pools.slice(0, POOLS_MAX).map(([pool, rate]) => ({ pool: pool || "no pool", rate }));
  const entries = shown.length ? shown : [{ none: true }];
  keep(byId("ttft"), entries, (each) => (each.none ? "\n" : each.pool), create, update);
}

function create(entry) {
  if (entry.none) return make("p", { class: "empty" }, "No stream has ended in the last minute.");
  const parts = { heading: make("b"), told: make("span"), bar: make("div", { class: "stack", role: "img" }), legend: make("p", { class: "legend" }) };
  return Object.assign(make("div", { class: "ttft" }, make("p", {}, parts.heading, parts.told), parts.bar, parts.legend), parts);
}

function update(node, { none, pool, rate }) {
  if (none) return;
  put(node.heading, pool);
  put(node.told, `median ${seconds(rate.ttft_p50_s)}, 95\u00a0% ${seconds(rate.ttft_p95_s)}`);
  const total = Object.values(rate.parts).reduce((sum, each) => sum + each, 0) || 1;
  const found = PARTS.map(([name, words]) => ({ name, words, share: (rate.parts[name] ?? 0) / total, time_s: rate.parts[name] ?? 0 }));
  keep(node.bar, found.filter((each) => each.share > 0.001), (each) => each.name, createPart, (part, each) => {
    part.style.flexGrow = each.share.toFixed(3);
  });
  const main = found.filter((each) => each.share >= 0.01).sort((a, b) => b.share - a.share).slice(0, 3);
  keep(node.legend, main, (each) => each.name, createLegend, (part, each) => {
    put(part.lastChild, `${each.words} ${seconds(each.time_s)}`);
  });
  mark(node.bar, "aria-label", `Of the mean time: ${found.map((each) => `${each.words} ${percent(each.share)}`).join(", ")}`);
}

const createPart = (each) => make("i", { "data-part": each.name, title: each.words });
const createLegend = (each) => make("span", { title: "mean time" }, make("i", { class: "swatch", "data-part": each.name }), make("span"));
