// Who this page is to the admin port. The token goes there once; the browser keeps a cookie that no
// script can read.
import { byId, put } from "./dom.js";

const ours = { "x-penstock-page": "1" };

/** Ask the API. Throws an Error with the text for whoever looks. */
export async function ask(path, options = {}) {
  return request(`api/v1/${path}`, options);
}

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", ...options, headers: { ...ours, ...options.headers } });
  } catch {
    throw new Error("penstock does not answer. Try again.");
  }
  if (answer.status === 204) return null;
  const told = await answer.json().catch(() => null);
  if (!answer.ok) {
    const error = new Error(told?.error?.message ?? `penstock answers ${answer.status}.`);
    error.status = answer.status;
    throw error;
  }
  return told;
}

/** Whether this page may read. `again`: begins to read when somebody has signed in. */
export async function prepareSession(again) {
  byId("sign-in").addEventListener("submit", async (event) => {
    event.preventDefault();
    const field = byId("token");
    put(byId("sign-in-error"), "");
    try {
      await request("ui/session", {
        method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ token: field.value }),
      });
      field.value = "";
      showSignIn(false);
      await showAccess();
      again();
    } catch (error) {
      put(byId("sign-in-error"), error.message);
      field.select();
    }
  });
  byId("sign-out").addEventListener("click", async () => {
    await request("ui/session", { method: "DELETE" }).catch(() => null);
    location.reload();
  });
  return (await showAccess()) !== "none";
}

export function showSignIn(shown) {
  byId("entrance").hidden = !shown;
  byId("main").hidden = shown;
  if (shown) byId("token").focus();
}

/** Ask what this page may do: "full", "view" or "none". Nobody answers: the feed tells. */
async function showAccess() {
  const told = await request("ui/session", {}).catch(() => ({ access: "unknown" }));
  document.body.dataset.access = told.access;
  byId("reader").hidden = told.access !== "view";
  byId("sign-out").hidden = told.kind !== "page";
  put(byId("sign-in-why"), told.message ?? "");
  return told.access;
}
