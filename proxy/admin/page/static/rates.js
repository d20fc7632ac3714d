// Tokens, requests and costs a second, and the charts over the last minutes or the last day.
import { Chart } from "./chart.js";
import { byId, keep, make, mark, put } from "./dom.js";
import { count, price, seconds } from "./format.js";
import { History } from "./history.js";

// Columns: tokens of answers and of prompts a second, TTFT p50 and p95.
export const histories = { recent: new History(4, 1, 900), day: new History(4, 60, 1440) };
let minute = [];
let range = "recent";
let charts = null;

export function prepareRates() {
  const legible = (value) => count(value);
  charts = {
    tokens: new Chart(byId("tokens-chart"), "Tokens a second", [
      { label: "answers", colour: "--line-a", fill: "--fill-a" }, { label: "prompts", colour: "--line-b", apart: true },
    ], legible, 10),
    ttft: new Chart(byId("ttft-chart"), "Time to first token", [
      { label: "95\u00a0%", colour: "--line-c", fill: "--fill-c" }, { label: "median", colour: "--line-a" },
    ], seconds, 0.1),
  };
  for (const button of document.querySelectorAll("[data-range]")) {
    button.addEventListener("click", () => {
      range = button.dataset.range;
      for (const each of document.querySelectorAll("[data-range]")) each.setAttribute("aria-pressed", String(each === button));
      draw();
    });
  }
}

/** What was before this page was opened, or while it heard nothing. */
export function restoreRates({ seconds, minutes }) {
  histories.recent.restore(seconds);
  histories.day.restore(minutes);
  minute = [];
  draw();
}

/** Also while nobody looks at the tab: the charts have no holes then. */
export function rememberRates({ at, rates }) {
  const all = total(rates);
  const row = [all.answer_tokens_per_s, all.prompt_tokens_per_s, all.ttft_p50_s, all.ttft_p95_s];
  histories.recent.add(at, row);
  minute.push(row);
  const times = histories.day.columns[0];
  if (!times.length || at < times.at(-1) || at - times.at(-1) >= histories.day.step_s) {
    histories.day.add(at, means(minute));
    minute = [];
  }
}

export function showRates({ rates }) {
  const all = total(rates);
  const told = [
    ["requests/s", count(all.requests_per_s)], ["refused/s", count(all.refused_per_s)], ["failed/s", count(all.failed_per_s)],
  ];
  if (all.cost_per_hour !== null) {
    told.push(["cost per hour", price(all.cost_per_hour)], ["per 1k tokens", price(all.cost_per_1k_tokens)]);
  }
  keep(byId("rates"), told, ([name]) => name, createFigure, (node, [name, value]) => {
    put(node.lastChild, value);
    mark(node, "data-bad", /refused|failed/.test(name) && value !== "0" && value !== "–" ? "yes" : null);
  });
  draw();
}

function draw() {
  const [at, answers, prompts, half, most] = histories[range].columns;
  charts.tokens.show([at, answers, prompts]);
  charts.ttft.show([at, most, half]);
}

const createFigure = ([name]) => make("div", {}, make("dt", {}, name), make("dd"));

/** All pools together: sums, and of the times to first token the worst. */
function total(rates) {
  const pools = Object.values(rates);
  const sum = (name) => {
    const found = pools.map((each) => each[name]).filter((value) => value !== null && value !== undefined);
    return found.length ? found.reduce((a, b) => a + b, 0) : null;
  };
  const worst = pools.filter((each) => each.streams).sort((a, b) => b.ttft_p95_s - a.ttft_p95_s)[0];
  const paid = pools.filter((each) => each.cost_per_1k_tokens);
  const tokens = (each) => (each.prompt_tokens_per_s ?? 0) + (each.answer_tokens_per_s ?? 0);
  const weight = paid.reduce((all, each) => all + tokens(each), 0);
  const paidSum = paid.reduce((all, each) => all + each.cost_per_1k_tokens * (weight ? tokens(each) : 1), 0);
  return {
    requests_per_s: sum("requests_per_s"), prompt_tokens_per_s: sum("prompt_tokens_per_s"),
    answer_tokens_per_s: sum("answer_tokens_per_s"), refused_per_s: sum("refused_per_s"), failed_per_s: sum("failed_per_s"),
    cost_per_hour: sum("cost_per_hour"), cost_per_1k_tokens: paid.length ? paidSum / (weight || paid.length) : null,
    ttft_p50_s: worst?.ttft_p50_s ?? null, ttft_p95_s: worst?.ttft_p95_s ?? null,
  };
}

function means(rows) {
  return rows[0].map((_, column) => {
    const found = rows.map((row) => row[column]).filter((value) => value !== null);
    return found.length ? found.reduce((a, b) => a + b, 0) / found.length : null;
  });
}
