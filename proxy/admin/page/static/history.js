// What the charts show: what penstock remembers, and what comes while the page is open. Bounded.

/** Rows of figures, at most `most` of them, none closer to the one before than `step_s`. */
export class History {
  constructor(columns, step_s, most) {
    this.step_s = step_s;
    this.most = most;
    this.columns = Array.from({ length: columns + 1 }, () => []);
  }

  /** Null stands for what is not known. */
  add(at_s, values) {
    const times = this.columns[0];
    // The clock of penstock was put back: what was before would hide all that comes.
    if (at_s < times.at(-1)) for (const column of this.columns) column.length = 0;
    const last = times.at(-1);
    if (last !== undefined && at_s - last < this.step_s * 0.75) return;
    // A gap in time is a gap in the lines.
    if (last !== undefined && at_s - last > 5 * this.step_s) this.row(at_s - this.step_s, []);
    this.row(at_s, values);
  }

  /** Begin with what penstock remembers: columns, the first one of times. */
  restore(columns) {
    this.columns = columns.map((column) => column.slice(-this.most));
  }

  row(at_s, values) {
    this.columns.forEach((column, index) => {
      column.push(index ? (values[index - 1] ?? null) : at_s);
      if (column.length > this.most) column.splice(0, column.length - this.most);
    });
  }
}
