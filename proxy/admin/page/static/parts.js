// One request as a waterfall: its parts follow each other, and add up to all of its time.
import { make } from "./dom.js";
import { milliseconds } from "./format.js";

const WORDS = {
  receive: "its client sent it", read: "penstock read it", choose: "penstock chose a backend", queue: "it waited in penstock",
  failed: "an attempt that failed", connect: "until it was sent", head: "until the answer began", prefill: "until the first token",
  decode: "all other tokens", body: "the rest of the answer", client: "its client took nothing", end: "after a failure",
};
const SHORT = { read: "penstock", choose: "penstock", head: "engine", prefill: "engine", decode: "decode", body: "decode", receive: "client", end: "failed" };

export function showParts(told) {
  const total = told.parts.reduce((sum, part) => sum + part.ms, 0) || 1;
  let at = 0;
  const rows = told.parts.map((part) => {
    const bar = make("i", { "data-part": SHORT[part.part] ?? part.part });
    bar.style.marginLeft = `${(100 * at) / total}%`;
    bar.style.width = `${Math.max(0.4, (100 * part.ms) / total)}%`;
    at += part.ms;
    const where = [part.backend, part.why].filter(Boolean).join(": ");
    return make("tr", {}, make("th", { scope: "row" }, WORDS[part.part] ?? part.part), make("td", { class: "track" }, bar),
      make("td", { class: "number" }, milliseconds(part.ms)), make("td", { class: "quiet" }, where));
  });
  const head = ["Part", "When", "Time", "Where, why"].map((each) => make("th", { scope: "col" }, each));
  return make("table", { class: "parts" }, make("caption", { class: "unseen" }, "Where its time went"),
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}
