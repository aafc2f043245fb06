// How the page asks its API, and Airflow's.
import { fill, asking as say } from "./words.js";
const { useEffect, useState } = globalThis.React;

/**
 * The whole address of a path below Airflow's, which may itself be below a path.
 * @param {string} path
 */
export const href = (path) => new URL(path, document.baseURI).href;

/** @param {string} name */
export const pipelinePage = (name) => `plugin/airflow-ft?pipeline=${encodeURIComponent(name)}`;

/**
 * The address of a route of the page's API; of what is asked for, "" and null are left out.
 * @template {Route} R
 * @param {R} path
 * @param {Filled<R>} filled
 * @param {Asked<R>} [asked]
 * @returns {Address<R>}
 */
export function route(path, filled, asked) {
  const named = /** @type {Record<string, string | number>} */ (filled);
  const wanted = Object.entries(asked ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(wanted.map(([name, value]) => [name, String(value)]));
  const whole = `airflow-ft${path.replace(/{(\w+)}/g, (_, name) => encodeURIComponent(named[name]))}`;
  return /** @type {Address<R>} */ (query.size ? `${whole}?${query}` : whole);
}

/**
 * Never "", which would look as if nothing were wrong.
 * @param {unknown} problem
 */
export const wordsOf = (problem) => (problem instanceof Error && problem.message) || String(problem);

const AGAIN = say.again;
const BETWEEN = say.between;
/** @type {Record<number, string>} */
const STATUS = {
  401: say.notLoggedIn,
  403: say.forbidden,
  404: say.missing,
  500: say.serverFailed,
  502: `${BETWEEN}.\n${AGAIN}`,
  503: `${BETWEEN}.\n${AGAIN}`,
  504: `${BETWEEN}.\n${AGAIN}`,
};

/**
 * What an answer without words of its own means. HTTP/2 has no text beside the status.
 * @type {(path: string, status: number) => string}
 */
const meaning = (path, status) => fill(say.status, { path, status, meaning: STATUS[status] ?? fill(say.unexpected, { again: AGAIN }) });

/** Longer than any answer takes. Of a server that was stopped, or a network that forgets, nothing would ever be heard. */
const PATIENCE = 120_000;

/** Milliseconds after which the shown data is marked as old. An answer usually takes a few. */
const SLOW = 15_000;

/** @type {(path: string, given: RequestInit) => Promise<[Response, string]>} */
async function fetched(path, given) {
  const patience = new AbortController();
  const timer = setTimeout(() => patience.abort(new Error(say.silent)), PATIENCE);
  try {
    const answer = await fetch(href(path), { ...given, signal: patience.signal });
    return [answer, await answer.text()];
  } catch (problem) {
    throw new Error(fill(say.unreachable, { problem: wordsOf(problem), again: AGAIN }));
  } finally {
    clearTimeout(timer);
  }
}

/**
 * The answer of an API below Airflow's address; an Error with its status and the server's own words.
 * @param {string} path
 * @param {object} [body] is sent, if there is one
 * @returns {Promise<any>}
 */
export async function ask(path, body) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const [answer, text] = await fetched(path, body === undefined ? {} : post);
  let data = null;
  try {
    data = JSON.parse(text);
  } catch {
    if (answer.ok) throw new Error(fill(say.notJson, { path }));
  }
  // An answer that has not changed (304) comes out of the browser's cache, with the time at which it was asked for.
  if (answer.ok) return body === undefined ? { ...data, now: answer.headers.get("Date") ?? new Date().toISOString() } : data;
  const detail = (answer.status !== 401 && data?.detail) || meaning(path, answer.status);
  throw Object.assign(new Error(typeof detail === "string" ? detail : JSON.stringify(detail)), { status: answer.status });
}

/**
 * What is at an address: asked for when that changes, by `reload`, and, when `live`, every 5 s while the page is visible,
 * up to an answer that is `final`.
 * An error leaves what was there, and so does an answer that takes long: then that is the error.
 * @template {Route} R
 * @param {Address<R>} path
 * @param {{ live?: boolean, final?: (data: Answer<R>) => boolean }} [how]
 * @returns {Answered<Answer<R>>}
 */
export function useAnswer(path, { live = false, final = () => false } = {}) {
  const [times, setTimes] = useState(0);
  const wanted = `${times} ${path}`;
  const [found, setFound] = useState({
    path, data: /** @type {Timestamped<Answer<R>> | null} */ (null), error: "", of: "",
  });
  useEffect(() => {
    let stopped = false;
    let asking = false;
    let ended = false;
    async function look() {
      if (asking || ended || (live && document.hidden)) return;
      asking = true;
      /** @type {(error: string) => void} */
      const showError = (error) => {
        if (!stopped) setFound((before) => ({ path, data: before.path === path ? before.data : null, error, of: wanted }));
      };
      const slow = setTimeout(() => showError(say.slow), SLOW);
      try {
        const data = await ask(path);
        ended = final(data);
        if (!stopped) setFound({ path, data, error: "", of: wanted });
      } catch (problem) {
        showError(wordsOf(problem));
      }
      clearTimeout(slow);
      asking = false;
    }
    look();
    if (!live) return () => { stopped = true; };
    const timer = setInterval(look, 5000);
    document.addEventListener("visibilitychange", look);
    return () => {
      stopped = true;
      clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [wanted, live]);
  return { data: found.data, error: found.error, loading: found.of !== wanted, reload: () => setTimes((n) => n + 1) };
}
