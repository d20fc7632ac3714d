// Tenants: what each was given lately, what waits, what is left of its budgets, how often it was refused.
import { byId, keep, make, mark, put } from "./dom.js";
import { NONE, count, percent } from "./format.js";

const COLUMNS = [
  { name: "tenant", head: "Tenant", value: (each) => each.name },
  { name: "given", head: "Given", hint: "tokens of about the last minute, and the share of all", value: (each) => `${count(each.given_tokens)} (${percent(each.given_share)})` },
  { name: "waits", head: "Waits", hint: "requests that wait in penstock", value: (each) => count(each.waiting_requests) },
  { name: "left", head: "Budget left", hint: "the budget with the least left", value: leftOf },
  { name: "refused", head: "Refused", hint: "429 rate_limited since the start", value: (each) => count(each.refused), bad: (each) => each.refused > 0 },
];

for (const { head, hint, name } of COLUMNS) {
  document.querySelector("#tenants-table thead tr").append(make("th", { scope: "col", class: `of-${name}`, title: hint }, head));
}

/** Without tenants there is no list of them. */
export function showTenants({ tenants }) {
  document.querySelector("[data-list=tenants]").hidden = !tenants.length;
  keep(document.querySelector("#tenants-table tbody"), tenants, (each) => each.name, create, update);
}

function create() {
  const row = make("tr");
  row.append(...COLUMNS.map(({ name }) => make("td", { class: `of-${name}` })));
  return row;
}

function update(row, tenant) {
  COLUMNS.forEach(({ value, bad }, index) => {
    put(row.children[index], value(tenant));
    mark(row.children[index], "title", value(tenant));
    mark(row.children[index], "data-bad", bad?.(tenant) ? "yes" : null);
  });
}

function leftOf({ budgets }) {
  const [least] = [...budgets].sort((a, b) => a.left / a.allowed - b.left / b.allowed);
  return least ? `${percent(Math.max(0, least.left / least.allowed))} ${least.limit.replace("_per_", "/")}` : NONE;
}
