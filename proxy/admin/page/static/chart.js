// Lines over time, drawn by uPlot.
import { make, mark, put } from "./dom.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = matchMedia("(prefers-color-scheme: dark)");

// Half of "23:20:10" in pixels: the last label of the time reaches so far beyond the lines.
const HALF_LABEL = 27;

export class Chart {
  /**
   * `lines`: {label, colour (a CSS variable), fill, apart (it has an axis of its own, at the right)}.
   * `words`: a figure as text. `least`: the axis reaches at least so far.
   */
  constructor(parent, label, lines, words, least) {
    this.parent = parent;
    this.label = label;
    this.lines = lines;
    this.words = words;
    this.least = least;
    this.data = [[], ...lines.map(() => [])];
    this.values = lines.map((line) => make("b"));
    const legend = make("p", { class: "legend" });
    lines.forEach((line, index) => {
      const swatch = make("i", { class: "swatch" });
      swatch.style.background = `var(${line.colour})`;
      legend.append(make("span", {}, swatch, `${line.label} `, this.values[index]));
    });
    this.canvas = make("div", { class: "canvas", role: "img", "aria-label": `${label}: no figures yet` });
    parent.replaceChildren(legend, this.canvas);
    dark.addEventListener("change", () => this.build());
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  show(columns) {
    this.data = columns;
    // One point makes no line, and no axis of time.
    if (this.plot) this.plot.setData(columns);
    else if (columns[0].length > 1) this.build();
    this.tell(columns[0].length - 1);
  }

  tell(index) {
    this.values.forEach((node, line) => put(node, this.words(this.data[line + 1][index])));
    const told = this.lines.map((line, at) => `${line.label} ${this.values[at].textContent}`);
    mark(this.canvas, "aria-label", `${this.label}: ${told.join(", ")}`);
  }

  size() {
    const { clientWidth, clientHeight } = this.canvas;
    return { width: Math.max(80, clientWidth), height: Math.max(40, clientHeight) };
  }

  resize() {
    if (this.plot) this.plot.setSize(this.size());
  }

  build() {
    if (this.data[0].length < 2) return;
    this.plot?.destroy();
    const axis = {
      stroke: colour("--quiet"),
      font: "11px system-ui, sans-serif",
      grid: { stroke: colour("--grid"), width: 1 },
      ticks: { show: false },
    };
    // At zero the axes meet: its label would lie on that of the time.
    const values = (_, ticks) => ticks.map((tick) => (tick ? this.words(tick) : ""));
    const range = (_, __, high) => [0, Math.max(this.least, 1.1 * (high ?? 0))];
    const upright = { ...axis, size: 44, gap: 2, space: 22, values };
    const series = this.lines.map((line) => ({
      stroke: colour(line.colour),
      fill: line.fill ? colour(line.fill) : undefined,
      scale: line.apart ? "right" : "y",
      width: 1.5,
      points: { show: false },
    }));
    const options = {
      ...this.size(),
      legend: { show: false },
      padding: [6, this.lines.some((line) => line.apart) ? 2 : HALF_LABEL, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 5 } },
      scales: { y: { range }, right: { range } },
      axes: [
        { ...axis, size: 20, gap: 2, space: 70, values: (_, ticks) => ticks.map(hourOf) },
        upright,
        ...this.lines.filter((line) => line.apart).map((line) => ({
          ...upright, scale: "right", side: 1, stroke: colour(line.colour), grid: { show: false },
        })),
      ],
      series: [{}, ...series],
      hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx ?? this.data[0].length - 1)] },
    };
    this.plot = new uPlot(options, this.data, this.canvas);
  }
}

const hourOf = (unix_s) => {
  const at = new Date(1e3 * unix_s);
  const whole = at.getSeconds() === 0;
  return at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: whole ? undefined : "2-digit" });
};
