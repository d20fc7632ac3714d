// A line at the bottom that says what has just been done.
import { byId, put } from "./dom.js";

const SHOWN_MS = 6000;
let timer = 0;

export function toast(text) {
  const node = byId("toast");
  put(node, text);
  node.hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => (node.hidden = true), SHOWN_MS);
}
