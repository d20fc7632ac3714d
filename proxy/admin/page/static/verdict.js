// The sentence for each pool: what makes it slow, since when, and what to do.
import { byId, keep, make, mark, put } from "./dom.js";
import { age, clock, many } from "./format.js";

const SHOWN_MAX = 5;
let announced = null;

export function showVerdicts({ verdicts, at }) {
  const trouble = verdicts.filter((each) => each.kind !== "fine");
  const fine = verdicts.filter((each) => each.kind === "fine");
  const shown = trouble.slice(0, SHOWN_MAX);
  const entries = shown.map((each) => ({ ...each, key: `of ${each.pool}` }));
  const more = trouble.length - shown.length;
  if (more) entries.push({ key: "more", kind: "more", sentence: `${many(more, "more pool")} in trouble: penstock status names all.` });
  if (fine.length || !verdicts.length) entries.push(fineOf(fine, trouble.length));
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
  const sentence = make("p", { class: "sentence" });
  const remedies = make("ul", { class: "remedies" });
  const node = make("div", { class: "verdict" }, make("p", { class: "whose" }, pool, since), sentence, remedies);
  Object.assign(node, { pool, since, sentence, remedies });
  return node;
}

function update(node, verdict, at) {
  mark(node, "data-kind", verdict.kind);
  put(node.pool, verdict.pool ?? "");
  put(node.since, verdict.since ? `since ${clock(verdict.since)}, for ${age(at - verdict.since)}` : "");
  put(node.sentence, verdict.sentence);
  keep(node.remedies, verdict.to_do ?? [], (each) => each, () => make("li"), put);
  mark(node.remedies, "hidden", !verdict.to_do?.length);
}

/** Screen readers hear of a verdict when it becomes another one, and not of its figures. */
function announce(verdicts) {
  const kinds = verdicts.map((each) => [each.pool, each.kind, each.detail, each.backend].join()).join("|");
  if (announced !== null && kinds !== announced) {
    put(byId("announcement"), verdicts.map((each) => `${each.pool}: ${each.sentence}`).join(" "));
  }
  announced = kinds;
}
