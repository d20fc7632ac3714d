// The page: each snapshot of the stream is handed to the parts that show it.
import { prepareBackends, showBackends } from "./backends.js";
import { showCanaries } from "./canaries.js";
import { prepareChange } from "./change.js";
import { byId, put } from "./dom.js";
import { Feed } from "./feed.js";
import { showFirstTokens } from "./first_tokens.js";
import { age, clock, count } from "./format.js";
import { showQueue } from "./queues.js";
import { prepareRates, rememberRates, restoreRates, showRates } from "./rates.js";
import { prepareRequests, showRequests } from "./requests.js";
import { ask, prepareSession, showSignIn } from "./session.js";
import { showSlos } from "./slos.js";
import { showTenants } from "./tenants.js";
import { showPast, showVerdicts } from "./verdict.js";

const PARTS = [showProxy, showVerdicts, showSlos, showCanaries, showFirstTokens, showRates, showQueue, showBackends, showRequests, showTenants];
let latest = null;

/** Show a snapshot. A tab that nobody sees only remembers what the charts need. */
export function show(snapshot) {
  latest = snapshot;
  rememberRates(snapshot);
  if (!document.hidden) render();
}

function render() {
  for (const part of PARTS) part(latest);
}

function showProxy({ proxy, version }) {
  const overload = proxy.overload ? `, refuses for ${proxy.overload}` : "";
  const failed = proxy.reload_failed.length ? ", last reload failed" : "";
  const held = proxy.former.reduce((all, each) => all + each.requests, 0);
  const former = held ? ` · ${count(held)} in the former process` : "";
  put(byId("proxy"), `${proxy.state}${overload}${failed} · up ${age(proxy.up_s)} · ${count(proxy.open_requests)} open${former} · lag ${proxy.lag_ms.toFixed(0)} ms · ${version}`);
  document.body.dataset.proxy = proxy.state;
}

/** What was before: asked for when the stream begins, and when a verdict has changed. */
async function recall() {
  try {
    const past = await ask("history");
    restoreRates(past);
    showPast(past.verdicts);
  } catch (error) {
    reportError(error);
  }
}

function became(state, since) {
  if (state === "live") recall();
  document.body.dataset.feed = state;
  const words = { live: "live", lost: latest ? `no news since ${clock(since / 1e3)}` : "penstock does not answer", unauthorized: "signed out" };
  put(byId("feed"), words[state]);
  showSignIn(state === "unauthorized");
}

prepareBackends();
prepareChange();
prepareRates();
prepareRequests();
const feed = new Feed("api/v1/events", show, became);
document.addEventListener("verdict", recall);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && latest) render();
});
if (await prepareSession(() => feed.start())) feed.start();
else became("unauthorized");
