// Figures as people read them. What nobody has told is a dash.

export const NONE = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** 950, 12.3k, 4.1M. */
export function count(value) {
  if (!known(value)) return NONE;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) {
      const scaled = value / (unit === "k" ? 1e3 : size);
      return `${scaled.toFixed(scaled < 100 ? 1 : 0)}${unit}`;
    }
  }
  return value < 10 && value % 1 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}

export const percent = (share) => (known(share) ? `${Math.round(100 * share)}%` : NONE);

/** 0.31 s, 42 ms, 3.1 min. */
export function seconds(value) {
  if (!known(value)) return NONE;
  if (value < 0.0995) return `${(1e3 * value).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return `${(value / 60).toFixed(1)} min`;
}

export const milliseconds = (value) => seconds(known(value) ? value / 1e3 : null);

/** A time that has passed, in its largest unit. */
export function age(value) {
  if (!known(value)) return NONE;
  for (const [unit_s, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (value >= unit_s) return `${Math.floor(value / unit_s)} ${unit}`;
  }
  return `${Math.max(0, Math.floor(value))} s`;
}

/** The time of day, by the clock of whoever looks. */
export const clock = (unix_s) => new Date(1e3 * Math.round(unix_s)).toLocaleTimeString("en-GB");

export function price(value) {
  if (!known(value)) return NONE;
  return value >= 100 ? value.toFixed(0) : value >= 0.1 ? value.toFixed(2) : value.toPrecision(2);
}

export const times = (value) => (known(value) ? `${value.toFixed(value < 99.95 ? 1 : 0)}×` : NONE);

/** "1 request", "2 requests". */
export const many = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
