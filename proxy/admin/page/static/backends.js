// A row for each backend, the worst first. With many, a filter and the head of each column help.
import { askForChange } from "./change.js";
import { byId, keep, make, mark, put } from "./dom.js";
import { NONE, age, count, many, percent, seconds, times } from "./format.js";

const ROWS_MAX = 300;
// How many times as long as its peers counts as slow, and how full a cache as full.
const SLOW = 1.5;
const FULL = 0.95;

const COLUMNS = [
  { name: "backend", head: "Backend", value: (each) => each.name, kind: "name" },
  { name: "state", head: "State", value: stateOf, kind: "state" },
  { name: "slower", head: "Slower", hint: "how many times as long as its peers it takes for a prompt or a token", value: (each) => (each.slower === null ? null : Math.max(1, each.slower)), show: times },
  { name: "ttft", head: "TTFT here", hint: "time from being sent here to the first token: 95 of 100 streams took at most this. One that is awaited counts too", value: (each) => (each.can_serve && each.state !== "ejected" ? each.lately.ttft_p95_s : null), show: seconds },
  { name: "running", head: "Run", hint: "requests that its engine runs", value: (each) => each.engine?.running ?? null, show: count },
  { name: "waiting", head: "Wait", hint: "requests that wait in its engine", value: (each) => each.engine?.waiting ?? null, show: count },
  { name: "queued", head: "Queued tokens", hint: "tokens of its prompts that have no first token yet", value: (each) => each.queued_prefill_tokens, show: count },
  { name: "held", head: "Held tokens", hint: "tokens of its requests past their first token: they fill its KV cache", value: (each) => each.active_decode_tokens, show: count },
  { name: "kv", head: "KV", hint: "how full its KV cache is", value: (each) => each.engine?.kv_usage ?? null, kind: "meter" },
  { name: "hits", head: "Hits", hint: "share of prompt tokens found in its prefix cache", value: (each) => each.engine?.prefix_hit_rate ?? null, show: percent },
  { name: "errors", head: "Errors", hint: "failed attempts of the last minutes", value: (each) => each.lately.failures, kind: "errors" },
];

// Reasons that alone read as states.
const REASONS = { busy: "503 busy", idle: "idle time-out", internal: "500", status: "502 or 504", total: "total time-out" };

let sorting = null; // {name, down}. Null: the worst first
let latest = { backends: [], at: 0 };

export function prepareBackends() {
  const head = document.querySelector("#backends-table thead tr");
  for (const column of COLUMNS) {
    const button = make("button", { type: "button", title: column.hint ?? null }, column.head);
    button.addEventListener("click", () => sortBy(column.name));
    column.cell = make("th", { scope: "col", class: `of-${column.name}` }, button);
    head.append(column.cell);
  }
  head.append(make("th", { scope: "col", class: "of-change" }, make("span", { class: "unseen" }, "Change")));
  byId("filter").addEventListener("input", render);
}

export function showBackends(snapshot) {
  latest = snapshot;
  render();
}

/** A first click shows the largest first, a second one the least, a third one the worst again. */
function sortBy(name) {
  const text = name === "backend" || name === "state";
  if (sorting?.name !== name) sorting = { name, down: !text };
  else if (sorting.down !== text) sorting = { name, down: text };
  else sorting = null;
  for (const column of COLUMNS) {
    mark(column.cell, "aria-sort", sorting?.name === column.name ? (sorting.down ? "descending" : "ascending") : null);
  }
  render();
}

function render() {
  const { backends } = latest;
  const wanted = byId("filter").value.trim().toLowerCase();
  const pools = new Set(backends.map((each) => each.pool));
  const fitting = backends.filter((each) => !wanted || `${each.name} ${each.pool} ${stateOf(each)}`.toLowerCase().includes(wanted));
  fitting.sort(sorting ? bySorting : byTrouble);
  const shown = fitting.slice(0, ROWS_MAX);
  const able = backends.filter((each) => each.can_serve);
  const serve = able.filter((each) => each.state !== "ejected").length;
  const more = able.length > serve ? `, ${count(able.length - serve)} more as a last resort` : "";
  put(byId("backends-count"), `${count(serve)} of ${count(backends.length)} can serve${more}`);
  mark(byId("backends-table"), "data-pools", pools.size > 1 ? "many" : null);
  keep(document.querySelector("#backends-table tbody"), shown, (each) => `${each.pool}\n${each.name}`, create, update);
  put(byId("backends-note"), noteOf(backends.length, fitting.length, shown.length));
}

function noteOf(all, fitting, shown) {
  if (!all) return "There is no backend. Add one to pools[].backends, and reload.";
  if (!fitting) return "No backend fits the filter.";
  return fitting > shown ? `and ${many(fitting - shown, "more backend")}: filter, or sort by a column.` : "";
}

/** Less for what an operator must see first. Steps, not figures: rows change places rarely. */
function trouble(each) {
  if (!each.can_serve) return each.admin_state === "ready" ? 0 : 3;
  if (each.lately.failures || each.state === "suspect" || each.verdict) return 1;
  if (each.slower >= SLOW || (each.engine?.kv_usage ?? 0) >= FULL) return 2;
  return each.admin_state === "ready" && each.state === "ready" ? 4 : 3;
}

const byName = (a, b) => a.name.localeCompare(b.name, "en", { numeric: true });
const byTrouble = (a, b) => trouble(a) - trouble(b) || byName(a, b);

function bySorting(a, b) {
  const column = COLUMNS.find((each) => each.name === sorting.name);
  const [x, y] = [column.value(a), column.value(b)];
  if (x === y) return byName(a, b);
  if (x === null || y === null) return x === null ? 1 : -1; // what is not known is last
  const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
  return sorting.down ? -order : order;
}

/** As `penstock status` tells it: what was wanted, then what is known. */
export function stateOf(each) {
  const wanted = each.removed ? "removed" : each.admin_state;
  if (wanted === "maint") return "maint";
  let state = each.state;
  if (each.reason) state += ` (${each.reason})`;
  else if (state === "warming") state += ` (${percent(each.share)})`;
  const fresh = each.newcomer && each.newcomer.stage !== "worse" ? "new" : "ready";
  const said = each.can_serve && each.state !== "ejected" ? each.verdict : null; // else the state says more
  return [wanted, state, fresh, said ?? "ready"].filter((part) => part !== "ready").join(", ") || "ready";
}

function toneOf(each) {
  if (each.admin_state === "maint") return "maint";
  if (each.removed || each.admin_state === "drain") return "drain";
  if (each.state === "ready" && each.verdict) return "warn";
  return { ready: "good", suspect: "warn", warming: "warn", starting: "quiet", ejected: "bad" }[each.state] ?? "quiet";
}

function create(backend) {
  const row = make("tr");
  row.cells_ = {};
  for (const { name, kind } of COLUMNS) {
    const cell = (row.cells_[name] = make(kind === "name" ? "th" : "td", { class: `of-${name}`, scope: kind === "name" ? "row" : null }));
    if (kind === "name") cell.append(make("bdi", { class: "name" }), make("bdi", { class: "pool" }));
    if (kind === "state") cell.append(make("i", { class: "dot" }), make("span"));
    if (kind === "errors") cell.append(make("span"), make("span", { class: "why" }));
    if (kind === "meter") cell.append(make("span", { class: "meter" }, make("i")), make("span"));
    row.append(cell);
  }
  const button = make("button", { type: "button", class: "change", "aria-label": `Change ${backend.name}` }, "⋯");
  button.addEventListener("click", () => askForChange(row.backend, latest.backends));
  row.append(make("td", { class: "of-change" }, button));
  return row;
}

function update(row, backend) {
  row.backend = backend;
  mark(row, "data-tone", toneOf(backend));
  for (const column of COLUMNS) fill(row.cells_[column.name], column, backend);
  const slow = backend.slower >= SLOW;
  mark(row.cells_.slower, "data-bad", slow ? "yes" : null);
  mark(row.cells_.slower, "title", slow ? `${times(backend.slower)} as long as its peers, in ${backend.slower_in}` : null);
}

function fill(cell, { kind, value, show }, backend) {
  const told = value(backend);
  if (kind === "name") {
    put(cell.firstChild, backend.name);
    mark(cell.firstChild, "title", backend.name);
    put(cell.lastChild, backend.pool);
  } else if (kind === "state") {
    put(cell.lastChild, told);
    mark(cell, "title", backend.newcomer?.why ? `${told}: ${backend.newcomer.why}` : told);
  } else if (kind === "meter") {
    cell.firstChild.firstChild.style.width = `${100 * Math.min(1, told ?? 0)}%`;
    mark(cell, "data-bad", told >= FULL ? "yes" : null);
    put(cell.lastChild, percent(told));
  } else if (kind === "errors") {
    const last = backend.lately.last_failure;
    put(cell.firstChild, count(told));
    put(cell.lastChild, told && last ? ` × ${REASONS[last.reason] ?? last.reason}` : "");
    mark(cell, "title", last ? `last: ${last.reason}, ${age(last.age_s)} ago` : null);
    mark(cell, "data-bad", told ? "yes" : null);
  } else put(cell, told === null || told === undefined ? NONE : show(told));
}
