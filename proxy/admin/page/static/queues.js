// What waits in penstock for room at a backend: by class, and by tenant.
import { byId, keep, make, mark, put } from "./dom.js";
import { count, many, percent, seconds } from "./format.js";

// `balancing.admission.lack`, in a few words.
const WAITS_FOR = {
  prompts: "enough prompts there", sequences: "all streams are taken", kv_cache: "no room in the KV cache",
  answers: "its tenant's answers may fill the cache", requests: "max_requests is reached", giant: "a giant has the backend",
  giants: "enough giants run", class: "a higher class is first", turn: "others are first", backend: "no backend can serve",
  adapter: "its adapter is loaded",
};

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
  if (queue.tenants.length) {
    const most = queue.tenants[0].requests;
    entries.push({ key: "tenants", text: "by tenant", head: true });
    for (const each of queue.tenants) entries.push({ key: `tenant ${each.name}`, name: each.name ?? "without a key", requests: each.requests, most });
  } else if (queue.enabled && !waiting) entries.push({ key: "nothing", text: "Nothing waits." });
  keep(byId("queue"), entries, (each) => each.key, create, update);
}

function create(entry) {
  if (entry.text) return make("p", { class: entry.head ? "head" : "empty" });
  const parts = { heading: make("b"), number: make("span", { class: "number" }), bar: make("i"), why: make("p", { class: "quiet" }) };
  const meter = make("span", { class: "meter pressure", role: "img" }, parts.bar);
  return Object.assign(make("div", { class: "waits" }, make("p", {}, parts.heading, parts.number), meter, parts.why), parts, { meter });
}

function update(node, entry) {
  if (entry.text) return put(node, entry.text);
  put(node.heading, entry.name);
  mark(node.heading, "title", entry.name);
  const share = entry.most ? entry.requests / entry.most : Math.min(1, entry.pressure);
  node.bar.style.width = `${100 * share}%`;
  if (entry.most) {
    put(node.number, count(entry.requests));
    mark(node.meter, "aria-label", many(entry.requests, "request"));
    return undefined;
  }
  put(node.number, entry.requests ? `${count(entry.requests)} · ${count(entry.tokens)} tokens` : "0");
  mark(node, "data-pressed", entry.pressure >= 1 ? "full" : entry.pressure >= 0.6 ? "high" : null);
  mark(node.meter, "aria-label", `pressure ${percent(entry.pressure)}`);
  const next = entry.next;
  return put(node.why, next ? `next: ${seconds(next.waited_s)}, ${WAITS_FOR[next.waits_for] ?? next.waits_for}` : `pressure ${percent(entry.pressure)}`);
}
