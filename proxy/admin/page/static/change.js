// Drain, ready and maint: what it does and whether the pool can still serve, before it is done.
import { byId, make, mark, put } from "./dom.js";
import { many } from "./format.js";
import { ask } from "./session.js";
import { toast } from "./toast.js";

const STATES = [
  ["drain", "Drain", (each) => `No new requests. ${running(each)}`],
  ["maint", "Maint", (each) => `No new requests and no probes. ${running(each)}`],
  ["ready", "Ready", () => "It gets requests again as soon as it is healthy."],
];
let chosen = null; // {backend, peers}

const running = (each) => (each.requests_in_flight ? `The ${many(each.requests_in_flight, "request")} there may finish.` : "None runs there now.");

/** It was new and worse than its peers: it comes back by an operator's word. */
const isWorse = (each) => each.newcomer?.stage === "worse";

export function prepareChange() {
  const fieldset = byId("change-states");
  for (const [state, title] of STATES) {
    const input = make("input", { type: "radio", name: "state", value: state, id: `to-${state}` });
    input.addEventListener("change", tell);
    fieldset.append(make("label", { for: `to-${state}` }, input, make("span", {}, make("b", {}, title), make("span", { id: `does-${state}` }))));
  }
  byId("change-form").addEventListener("submit", (event) => {
    event.preventDefault();
    change();
  });
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
}

export function askForChange(backend, backends) {
  chosen = { backend, peers: backends.filter((each) => each.pool === backend.pool && each.name !== backend.name) };
  put(byId("change-title"), `Change ${backend.name}`);
  put(byId("change-now"), `Now: wanted ${backend.admin_state}, state ${backend.state}${backend.reason ? ` (${backend.reason})` : ""}, ${backend.requests_in_flight} in flight, pool ${backend.pool}.`);
  put(byId("change-error"), "");
  for (const [state, , does] of STATES) {
    put(byId(`does-${state}`), does(backend));
    byId(`to-${state}`).disabled = state === backend.admin_state && !(state === "ready" && isWorse(backend));
  }
  byId(backend.admin_state === "ready" && !isWorse(backend) ? "to-drain" : "to-ready").checked = true;
  tell();
  byId("change").showModal();
}

const wanted = () => document.querySelector("#change-states input:checked").value;

function tell() {
  const { backend, peers } = chosen;
  const state = wanted();
  const serving = peers.filter((each) => each.can_serve).length;
  const out = state !== "ready" && !serving;
  put(byId("change-confirm"), `${state === "ready" ? "Make" : state === "drain" ? "Drain" : "Take"} ${backend.name}${state === "ready" ? " ready" : state === "maint" ? " out" : ""}`);
  mark(byId("change-confirm"), "data-danger", out ? "yes" : null);
  mark(byId("change-effect"), "data-danger", out ? "yes" : null);
  let effect = `${serving} of ${many(peers.length, "other backend")} of ${backend.pool} can serve: requests go there.`;
  if (out) effect = `No other backend of ${backend.pool} can serve: new requests will get 503 until one is ready again.`;
  if (state === "ready") effect = backend.state === "ready" ? "It is healthy: requests come at once." : "Probes must pass before requests come.";
  put(byId("change-effect"), effect);
}

async function change() {
  const { backend } = chosen;
  const state = wanted();
  byId("change-confirm").disabled = true;
  try {
    const told = await ask(`backends/${encodeURIComponent(backend.name)}/${state}`, { method: "POST" });
    byId("change").close();
    const none = told.pool_can_serve ? "" : ` No backend of ${backend.pool} can serve now.`;
    toast(`${backend.name}: wanted ${told.admin_state}, ${told.requests_in_flight} in flight.${none}`);
  } catch (error) {
    put(byId("change-error"), error.message);
  } finally {
    byId("change-confirm").disabled = false;
  }
}
