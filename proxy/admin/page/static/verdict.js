// The sentence for each pool: what makes it slow, since when, and what to do.
import { byId, keep, make, mark, put } from "./dom.js";
import { age, clock, many } from "./format.js";

const SHOWN_MAX = 5;
let announced = null;

export function showVerdicts({ verdicts, at }) {
  const trouble = verdicts.filter((each) => each.kind !== "fine");
  const fine = verdicts.filter((each) => each.kind === "fine" && !each.detail);
  const unready = verdicts.filter((each) => each.kind === "fine" && each.detail); // and nothing waits
  const shown = trouble.slice(0, SHOWN_MAX);
  const entries = shown.map((each) => ({ ...each, key: `of ${each.pool}` }));
  const more = trouble.length - shown.length;
  if (more) entries.push({ key: "more", kind: "more", sentence: `${many(more, "more pool")} in trouble: penstock status names all.` });
  for (const each of unready.slice(0, SHOWN_MAX)) entries.push({ ...each, kind: "none", key: `of ${each.pool}` });
  if (fine.length || !verdicts.length) entries.push(fineOf(fine, trouble.length + unready.length));
  keep(byId("verdicts"), entries, (each) => each.key, create, (node, each) => update(node, each, at));
  announce(verdicts);
}

function fineOf(fine, others) {
  if (!fine.length) return { key: "fine", kind: "none", sentence: "No verdict yet: the first looks take a second or two." };
  const since = Math.max(...fine.map((each) => each.since));
  const named = fine.length <= 3 ? fine.map((each) => each.pool).join(", ") : many(fine.length, "pool");
  if (others) return { key: "fine", kind: "others", pool: named, sentence: "Nothing is wrong there." };
  return { key: "fine", kind: "fine", pool: named, sentence: "Nothing is wrong.", since };
}

function create() {
  const pool = make("span", { class: "pool" });
  const since = make("span", { class: "since" });
  const sentence = make("p", { class: "sentence" }, make("span"), make("button", { type: "button", class: "row-of" }), make("span"));
  sentence.children[1].addEventListener("click", () => showRow(node.verdict));
  const remedies = make("ul", { class: "remedies" });
  const node = make("div", { class: "verdict" }, make("p", { class: "whose" }, pool, since), sentence, remedies);
  Object.assign(node, { pool, since, sentence, remedies });
  return node;
}

function update(node, verdict, at) {
  mark(node, "data-kind", verdict.kind);
  put(node.pool, verdict.pool ?? "");
  put(node.since, verdict.since ? `since ${clock(verdict.since)}, for ${age(at - verdict.since)}` : "");
  node.verdict = verdict;
  const [before, named, after] = node.sentence.children;
  const [text, name] = [verdict.sentence, verdict.backend ?? ""];
  const place = name ? text.indexOf(name) : -1;
  put(before, place < 0 ? text : text.slice(0, place));
  put(named, place < 0 ? "" : name);
  mark(named, "hidden", place < 0);
  put(after, place < 0 ? "" : text.slice(place + name.length));
  const steps = (verdict.to_do ?? []).map((step) => ({ step }));
  if (verdict.runbook) steps.push({ step: "Read the runbook's section", link: verdict.runbook });
  keep(node.remedies, steps, (each) => each.step, createStep, (item, each) => {
    if (each.link) mark(item.firstChild, "href", each.link);
    put(each.link ? item.firstChild : item, each.step);
  });
  mark(node.remedies, "hidden", !steps.length);
}

const createStep = ({ link }) => make("li", {}, ...(link ? [make("a", { target: "_blank", rel: "noreferrer" })] : []));

/** The row of the backend that a sentence names. */
function showRow({ backend }) {
  const filter = byId("filter");
  filter.value = backend;
  filter.dispatchEvent(new Event("input"));
  byId("backends").scrollIntoView({ block: "nearest" });
}

const PAST_MAX = 50;

/** What is over, the latest first. */
export function showPast(verdicts) {
  const past = verdicts.slice(-PAST_MAX).reverse();
  byId("past").hidden = !past.length;
  if (!past.length) return;
  put(byId("past-latest"), `Before: ${told(past[0])}`);
  keep(byId("past-list"), past, (each) => `${each.pool} ${each.since}`, () => make("li"), (item, each) => put(item, told(each)));
}

const told = (each) => `${clock(each.since)} to ${clock(each.until)}, ${each.pool}: ${each.sentence}`;

/** Screen readers hear of a verdict when it becomes another one, and not of its figures. */
function announce(verdicts) {
  const kinds = verdicts.map((each) => [each.pool, each.kind, each.detail, each.backend].join()).join("|");
  if (announced !== null && kinds !== announced) {
    document.dispatchEvent(new Event("verdict"));
    put(byId("announcement"), verdicts.map((each) => `${each.pool}: ${each.sentence}`).join(" "));
  }
  announced = kinds;
}
