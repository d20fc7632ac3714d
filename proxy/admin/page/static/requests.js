// Recent slow and failed requests. One opens as a waterfall.
import { byId, keep, make, mark, put } from "./dom.js";
import { NONE, age, count, milliseconds } from "./format.js";
import { showParts } from "./parts.js";
import { ask } from "./session.js";

const COLUMNS = [
  { name: "when", head: "Ago" }, { name: "status", head: "Status" }, { name: "whose", head: "Tenant" },
  { name: "what", head: "Model" }, { name: "where", head: "Backend" },
  { name: "first", head: "TTFT", hint: "time to first token, of streams" },
  { name: "total", head: "Total", hint: "time until all of the answer was passed on" },
];
// Columns of names, which may be cut.
const NAMES = ["whose", "what", "where"];
const EMPTY = { slow: "No request has been served yet.", failed: "No request has failed or was refused." };

let list = "slow";
let incident = null; // since when something is wrong
let latest = { slow: [], failed: [] };

export function prepareRequests() {
  const head = document.querySelector("#requests-table thead tr");
  for (const column of COLUMNS) head.append(make("th", { scope: "col", class: `of-${column.name}`, title: column.hint }, column.head));
  const buttons = document.querySelectorAll("button[data-list]");
  for (const button of buttons) {
    button.addEventListener("click", () => {
      list = button.dataset.list;
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
      render();
    });
  }
}

export function showRequests({ requests, verdicts }) {
  latest = requests;
  const since = verdicts.filter((each) => each.kind !== "fine").map((each) => each.since);
  incident = since.length ? Math.min(...since) : null;
  render();
}

function render() {
  const tenantsShown = list === "tenants";
  byId("tenants-table").hidden = !tenantsShown;
  byId("requests-table").hidden = tenantsShown;
  const shown = inOrder(latest[list] ?? []);
  // Nobody can choose the id of another's request, but two may choose the same one.
  const tenants = [...latest.slow, ...latest.failed].some((each) => each.tenant);
  mark(byId("requests-table"), "data-list", list);
  mark(byId("requests-table"), "data-errors", shown.some((each) => each.error) ? "some" : null);
  mark(byId("requests-table"), "data-tenants", tenants ? "some" : null);
  keep(document.querySelector("#requests-table tbody"), shown, keyOf, create, update);
  put(byId("requests-note"), shown.length || tenantsShown ? "" : EMPTY[list]);
}

/** The slowest first. While something is wrong, they begin with those that ended since. */
function inOrder(requests) {
  if (list !== "slow") return requests;
  requests = [...requests].sort((a, b) => b.duration_ms - a.duration_ms);
  if (incident === null) return requests;
  const during = (each) => Date.parse(each.began) / 1e3 + (each.duration_ms ?? 0) / 1e3 >= incident;
  return [...requests.filter(during), ...requests.filter((each) => !during(each))];
}

const keyOf = (each) => [list, each.id, each.tenant, each.duration_ms].join("\n");

function create(request) {
  const row = make("tr");
  row.button = make("button", { type: "button", class: "open", "aria-label": "" });
  row.cells_ = Object.fromEntries(COLUMNS.map(({ name }) => [name, make("td", { class: `of-${name}` })]));
  row.cells_.when.append(row.button);
  for (const name of NAMES) row.cells_[name].append(make("bdi"));
  row.append(...Object.values(row.cells_));
  row.addEventListener("click", () => open(request));
  return row;
}

function update(row, each) {
  const { status, first, total } = row.cells_;
  put(row.button, age(each.ago_s));
  mark(row.button, "aria-label", `Request of ${age(each.ago_s)} ago: ${outcomeOf(each)}, ${milliseconds(each.duration_ms)}`);
  put(status, outcomeOf(each));
  mark(status, "title", outcomeOf(each));
  mark(row, "data-tone", each.failed ? "bad" : null);
  const names = { whose: each.tenant, what: each.model, where: each.backend };
  for (const name of NAMES) {
    put(row.cells_[name].firstChild, names[name] || NONE);
    mark(row.cells_[name], "title", names[name]);
  }
  put(first, milliseconds(each.stream ? each.ttft_ms : null));
  put(total, milliseconds(each.duration_ms));
}

const outcomeOf = (each) => [each.status ?? each.state, each.error].filter(Boolean).join(" ");

async function open(request) {
  const body = byId("request-body");
  put(byId("request-title"), `Request ${request.id}`);
  body.replaceChildren(make("p", { class: "quiet" }, "Asking for it."));
  byId("request").showModal();
  try {
    // A moment later than it began: both clocks are rounded.
    const query = new URLSearchParams({ before: new Date(Date.parse(request.began) + 5).toISOString() });
    if (request.tenant) query.set("tenant", request.tenant);
    const found = await ask(`requests/${encodeURIComponent(request.id)}?${query}`);
    const told = found.find((each) => each.tenant === request.tenant) ?? found[0];
    body.replaceChildren(facts(told), showParts(told));
  } catch (error) {
    body.replaceChildren(make("p", { class: "problem" }, error.message));
  }
}

function facts(told) {
  const rows = [
    ["outcome", `${outcomeOf(told)}${told.whole ? "" : ", not whole"}`], ["began", told.began.replace("T", " ").replace("Z", " UTC")],
    ["model", told.model], ["tenant", told.tenant], ["class", told.class],
    ["backend", told.backend && `${told.backend} (${told.reason})`], ["attempts", told.attempts],
    ["tokens", told.prompt_tokens === null ? null : `${count(told.prompt_tokens)} prompt, ${count(told.cached_tokens)} cached, ${count(told.completion_tokens)} answer`],
    ["cut", told.degraded],
    ["its client was behind for", told.client_behind_ms ? milliseconds(told.client_behind_ms) : null],
  ];
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make("dl", { class: "facts" }, ...shown.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))));
}
