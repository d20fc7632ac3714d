// The stream of snapshots: reads it, notices when it stops, and begins again.

const SILENT_MS = 6000;
const WAITS_MS = [1000, 2000, 4000, 8000, 15000];
// More than any snapshot has. A stream without an end of an event is no stream of ours.
const EVENT_CHARS_MAX = 32 * 1024 * 1024;

export class Feed {
  /** `heard(snapshot)`; `became(state, since)` with "live", "lost" or "unauthorized". */
  constructor(url, heard, became) {
    this.url = url;
    this.heard = heard;
    this.became = became;
    this.failures = 0;
    this.since = Date.now();
    this.state = "connecting";
    this.timer = 0;
    this.aborting = null;
  }

  start() {
    this.stop();
    this.read();
  }

  stop() {
    clearTimeout(this.timer);
    this.aborting?.abort();
  }

  async read() {
    const aborting = (this.aborting = new AbortController());
    try {
      const answer = await fetch(this.url, { signal: aborting.signal, cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) {
        this.turn("unauthorized");
        return;
      }
      if (answer.ok) await this.events(answer.body.getReader(), aborting);
    } catch {
      // What is lost is told below, whatever the reason was.
    }
    if (aborting !== this.aborting) return; // another stream was begun
    this.turn("lost");
    const wait = WAITS_MS[Math.min(this.failures++, WAITS_MS.length - 1)];
    this.timer = setTimeout(() => this.read(), wait * (0.75 + Math.random() / 2));
  }

  async events(reader, aborting) {
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const watch = setTimeout(() => aborting.abort(), SILENT_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(watch));
      if (done || text.length > EVENT_CHARS_MAX) return;
      text += decoder.decode(value, { stream: true });
      const events = text.split("\n\n");
      text = events.pop();
      // Of several that have come at once only the latest is news.
      const latest = events.at(-1);
      if (latest?.startsWith("data: ")) {
        this.failures = 0;
        this.turn("live");
        this.tell(JSON.parse(latest.slice(6)));
      }
    }
  }

  /** What cannot be shown is a fault of the page, and no reason to read again. */
  tell(snapshot) {
    try {
      this.heard(snapshot);
    } catch (error) {
      reportError(error);
    }
  }

  turn(state) {
    if (state === this.state) return;
    this.state = state;
    this.since = Date.now();
    this.became(state, this.since);
  }
}
