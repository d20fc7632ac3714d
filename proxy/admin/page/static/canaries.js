// Canaries: which share each new version has, where it stands, and why.
import { byId, keep, make, mark, put } from "./dom.js";

const STATES = { rolled_back: "critical", held: "warning" };

export function showCanaries({ canaries }) {
  keep(byId("canaries"), canaries, (each) => each.route, create, update);
}

function create() {
  const parts = { heading: make("b"), state: make("span", { class: "state" }), why: make("p", { class: "quiet" }) };
  return Object.assign(make("div", { class: "slo" }, make("p", {}, parts.heading, parts.state), parts.why), parts);
}

function update(node, canary) {
  put(node.heading, `${canary.route}: ${canary.percent} % to ${canary.pool}`);
  put(node.state, canary.stage.replaceAll("_", " "));
  mark(node, "data-state", STATES[canary.stage] ?? "ok");
  put(node.why, canary.why);
}
