// What waits in penstock for room at a backend: by class, and by tenant.
import { byId, keep, make, mark, put } from "./dom.js";
import { count, percent, seconds } from "./format.js";

// The words of `WaitReason` (balancing/admission/queued_request.py), explained briefly.
const WAITS_FOR = {
  prompts: "other prompts come first there", sequences: "all streams are taken", kv_cache: "no room in the KV cache",
  requests: "max_requests is reached", busy: "the backend refuses for load", share: "the rest is left to other tenants and higher classes",
  large: "a long prompt, and others are there", choices: "enough requests with many choices run", class: "a higher class is first",
  turn: "others are first", backend: "no backend can serve", adapter: "its adapter is loaded",
};

const PRESSURE = "The bar is the pressure: the wait predicted for the next request, over the wait at which it is refused.";

export function showQueue({ queue }) {
  const entries = [];
  if (!queue.enabled) {
    entries.push({ key: "off", text: "Admission is off (admission.enabled): requests wait in the engines. Some may wait here while no backend can serve." });
  }
  const pressures = {};
  for (const pool of queue.pools) {
    for (const [name, value] of Object.entries(pool.pressure)) pressures[name] = Math.max(pressures[name] ?? 0, value);
  }
  for (const each of queue.classes) {
    if (queue.enabled || each.requests) entries.push({ key: `class ${each.name}`, ...each, pressure: pressures[each.name] ?? 0 });
  }
  const waiting = queue.classes.reduce((all, each) => all + each.requests, 0);
  if (queue.enabled && !waiting) entries.push({ key: "nothing", text: "Nothing waits." });
  keep(byId("queue"), entries, (each) => each.key, create, update);
  showTenants(queue.tenants);
}

/** So many tenants fit. The others stand in the title. */
const TENANTS = 4;

/** In lines of their own below the classes, which may scroll: who waits is always seen. */
function showTenants(tenants) {
  const line = byId("tenants");
  line.hidden = !tenants.length;
  const named = tenants.map((each) => ({ key: `tenant ${each.name}`, name: each.name ?? "without a key", requests: count(each.requests) }));
  mark(line, "title", named.map((each) => `${each.name}: ${each.requests}`).join("\n"));
  const more = named.length - TENANTS;
  const rest = more > 0 ? [{ key: "more", name: `and ${more} more` }] : [];
  keep(line, [{ key: "head", name: "by tenant:" }, ...named.slice(0, TENANTS), ...rest], (each) => each.key, createTenant, (node, each) => {
    put(node.firstChild, each.name);
    put(node.lastChild, each.requests ?? "");
  });
}

const createTenant = () => make("span", {}, make("bdi"), make("b"));

function create(entry) {
  if (entry.text) return make("p", { class: "empty" });
  const parts = { heading: make("b"), number: make("span", { class: "number" }), bar: make("i"), why: make("p", { class: "quiet" }) };
  const meter = make("span", { class: "meter pressure", role: "img" }, parts.bar);
  return Object.assign(make("div", { class: "waits", title: PRESSURE }, make("p", {}, parts.heading, parts.number), meter, parts.why), parts, { meter });
}

function update(node, entry) {
  if (entry.text) return put(node, entry.text);
  put(node.heading, entry.name);
  mark(node.heading, "title", entry.name);
  node.bar.style.width = `${100 * Math.min(1, entry.pressure)}%`;
  const idle = entry.pressure ? `0 · pressure ${percent(entry.pressure)}` : "0";
  put(node.number, entry.requests ? `${count(entry.requests)} · ${count(entry.tokens)} tokens` : idle);
  mark(node, "data-pressed", pressedOf(entry));
  mark(node.meter, "aria-label", `pressure ${percent(entry.pressure)}`);
  const next = entry.next;
  return put(node.why, next ? `next: ${seconds(next.waited_s)}, ${WAITS_FOR[next.waits_for] ?? next.waits_for}` : "");
}

function pressedOf({ pressure, requests }) {
  if (!pressure && !requests) return "none";
  return pressure >= 1 ? "full" : pressure >= 0.6 ? "high" : null;
}
