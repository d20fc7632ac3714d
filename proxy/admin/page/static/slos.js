// Service levels: how far each is kept, what is left of its budget, and how fast that burns.
import { byId, keep, make, mark, put } from "./dom.js";
import { NONE, percent, seconds } from "./format.js";

// Fewer bad requests never alarm.
const FEW = 10;
const LENGTHS_S = { m: 60, h: 3600, d: 86400 };
const RANKS = { critical: 0, warning: 1 };

/** Its card has room for canaries too. Without both its room is for the others. */
export function showSlos({ slos, canaries }) {
  byId("promises").hidden = !slos.length && !canaries.length;
  byId("slos").hidden = !slos.length;
  put(byId("slos-title"), slos.length ? "Service levels" : "Canaries");
  const worst = [...slos].sort((a, b) => rank(a) - rank(b) || a.budget_left - b.budget_left);
  keep(byId("slos"), worst, keyOf, create, update);
}

const rank = (slo) => RANKS[slo.state] ?? 2;
const keyOf = (slo) => [slo.pool, slo.class, slo.slo].join("\n");

function create(slo) {
  const parts = { heading: make("b"), state: make("span", { class: "state" }), told: make("span", { class: "quiet" }),
    burn: make("span", { class: "burn" }), bar: make("i") };
  const meter = make("span", { class: "meter", role: "img" }, parts.bar);
  const node = make("div", { class: "slo" }, make("p", {}, parts.heading, parts.state), meter, make("p", {}, parts.told, parts.burn));
  return Object.assign(node, parts, { meter });
}

function update(node, slo) {
  const whose = [slo.pool, slo.class].filter(Boolean).join(" ") || "all";
  put(node.heading, `${whose} ${nameOf(slo)}`);
  const early = isEarly(slo);
  const judged = early ? (slo.bad < FEW ? "too few to judge" : "too early to judge") : slo.state;
  put(node.state, slo.requests ? judged : "no data");
  mark(node, "data-state", early ? "early" : slo.state);
  const left = Math.max(0, Math.min(1, slo.budget_left));
  node.bar.style.width = `${100 * left}%`;
  mark(node.meter, "aria-label", `${percent(left)} of the budget left`);
  const measured = slo.measured_s === null ? "" : `now ${seconds(slo.measured_s)}, `;
  const full = slo.bad && left > 0.995; // "100 % left" beside bad requests would be read as none
  const kept = early || full ? `${slo.bad} of ${slo.requests} bad` : `${percent(left)} left`;
  const told = slo.because ?? (slo.requests ? `${measured}${kept}` : "no request yet");
  put(node.told, told);
  mark(node.told, "title", `${told}. ${percent(left)} of the error budget left.`);
  put(node.burn, slo.because || early ? "" : burnOf(slo));
}

/** Whether more are bad than may be, and too few or for too short a time to alarm. */
function isEarly(slo) {
  const short = slo.bad < FEW || !passed(slo).length;
  return slo.state === "ok" && short && slo.bad > (1 - slo.objective) * slo.requests;
}

/** ttft_p95 with its target: "ttft p95 ≤ 0.50 s". */
function nameOf(slo) {
  const name = slo.slo.replaceAll("_", " ");
  const targets = Object.values(slo.targets_s);
  return targets.length === 1 ? `${name} ≤\u00a0${seconds(targets[0]).replace(" ", "\u00a0")}` : name;
}

/** Its windows that have passed since it was first counted. */
const passed = (slo) => Object.entries(slo.windows).filter(([name]) => LENGTHS_S[name.at(-1)] * parseFloat(name) <= slo.observed_s);

/** The burn rate in the shortest window and in the longest one that has passed: 1 uses up the budget just in time. */
function burnOf(slo) {
  const windows = passed(slo);
  if (!slo.requests) return "";
  if (!windows.length || slo.bad < FEW) return slo.bad ? "" : "no burn";
  const told = windows.length > 1 ? [windows[0], windows.at(-1)] : windows;
  if (told.every(([, each]) => each.burn_rate < 0.05)) return "no burn";
  return `burn ${told.map(([name, each]) => `${each.burn_rate?.toFixed(1) ?? NONE}× ${name}`).join(", ")}`;
}
