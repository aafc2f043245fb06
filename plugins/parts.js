// What the parts of the page share: how the API is asked, and the look of buttons, fields, tables and errors. Plain ES
// modules without a build step: Airflow provides React and Chakra UI as globals. Colours are Chakra's semantic tokens,
// which follow Airflow's light and dark mode.
const { createElement: h, useEffect, useId, useState } = globalThis.React;
const { Box, Button, Input, NativeSelect, Text } = globalThis.ChakraUI;

export const count = (n) => n.toLocaleString("en");
export const when = (at) => at.replace("T", " ").replace(/(\.\d+)?(\+00:00|Z)$/, "Z");
export const cell = { padding: "8px 12px", textAlign: "left", verticalAlign: "top", whiteSpace: "nowrap" };
export const wide = { ...cell, whiteSpace: "normal", overflowWrap: "anywhere", minWidth: "8rem" };
export const numeric = { ...cell, textAlign: "right", fontVariantNumeric: "tabular-nums" };
export const line = (props, ...children) =>
  h(Box, { as: "tr", borderTopWidth: "1px", borderColor: "border", ...props }, ...children);
export const href = (path) => new URL(path, document.baseURI).href;
export const API = "airflow-ft/v1";
export const pipelinePath = (name) => `${API}/pipelines/${encodeURIComponent(name)}`;
export const ofPipeline = (name, path) => `${pipelinePath(name)}/${path}`;

export function bytes(n) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let i = 0;
  for (; n >= 1000 && i < units.length - 1; i += 1) n /= 1000;
  return `${i ? n.toFixed(1) : n} ${units[i]}`;
}

// Seconds, as people say them.
export function lasted(s) {
  if (s < 0.9995) return `${Math.round(1000 * s)} ms`;
  if (s < 89.5) return `${s.toFixed(s < 9.95 ? 2 : 1)} s`;
  if (s < 5400) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
}

export function age(at, now) {
  const s = Math.max(0, (new Date(now) - new Date(at)) / 1000);
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

// The answer of an API below Airflow's address; an Error with its status and the server's own words.
export async function ask(path, body) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(href(path), body === undefined ? {} : post);
  const text = await answer.text();
  let told = null;
  try {
    told = JSON.parse(text);
  } catch {
    if (answer.ok) throw new Error(`${path} did not answer with JSON`);
  }
  // An answer that has not changed (304) comes out of the browser's cache, with the time at which it was asked for.
  if (answer.ok) return body === undefined ? { ...told, now: answer.headers.get("Date") ?? new Date().toISOString() } : told;
  const detail = told?.detail ?? answer.statusText;
  throw Object.assign(new Error(typeof detail === "string" ? detail : JSON.stringify(detail)), { status: answer.status });
}

// What is at `path`, asked again when it changes and by `reload`: { data, error, loading, reload }.
export function useAnswer(path) {
  const [found, setFound] = useState({ data: null, error: null, loading: true });
  const [times, setTimes] = useState(0);
  useEffect(() => {
    let stopped = false;
    setFound((before) => ({ ...before, loading: true }));
    ask(path).then(
      (data) => stopped || setFound({ data, error: null, loading: false }),
      (error) => stopped || setFound({ data: null, error, loading: false }));
    return () => { stopped = true; };
  }, [path, times]);
  return { ...found, reload: () => setTimes((n) => n + 1) };
}

// What is at `path`, asked again every 5 s while somebody looks: { data, error, reload }. An error leaves what was there.
export function useLive(path) {
  const [found, setFound] = useState({ path, data: null, error: "" });
  const [times, setTimes] = useState(0);
  useEffect(() => {
    let stopped = false;
    let asking = false;
    async function look() {
      if (asking || document.hidden) return;
      asking = true;
      try {
        const data = await ask(path);
        if (!stopped) setFound({ path, data, error: "" });
      } catch (problem) {
        if (!stopped) setFound((before) => ({ path, data: before.path === path ? before.data : null, error: String(problem.message ?? problem) }));
      }
      asking = false;
    }
    look();
    const timer = setInterval(look, 5000);
    document.addEventListener("visibilitychange", look);
    return () => {
      stopped = true;
      clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [path, times]);
  return { ...found, reload: () => setTimes((n) => n + 1) };
}

export const Muted = ({ children, ...props }) => h(Text, { color: "fg.muted", fontSize: "sm", ...props }, children);
export const Problem = ({ children, ...props }) =>
  h(Text, { color: "fg.error", fontSize: "sm", role: "alert", overflowWrap: "anywhere", ...props }, children);
// What is shown of a `useLive` beside its data.
export const Pending = ({ data, error }) =>
  error ? h(Problem, { marginBottom: "4" }, error) : data === null && h(Muted, null, "Loading …");
export const Link = ({ to, children }) =>
  h("a", { href: href(to) }, h(Text, { as: "span", color: "fg.info", overflowWrap: "anywhere" }, children));
export const Act = (props) => h(Button, { size: "xs", variant: "outline", type: "button", ...props });
export const Code = ({ children }) =>
  h(Box, { as: "pre", whiteSpace: "pre-wrap", overflowWrap: "anywhere", fontSize: "xs" }, children);

// A pipeline's condition, the most urgent first, and its colour.
export const LOOK = {
  HALTED: "red", QUARANTINED: "red", IN_DOUBT: "orange", WAITING: "yellow", RUNNING: "blue", IDLE: "green",
};
export const words = (condition) => condition.replace("_", " ");

// The steps of a checkpoint, and what they are drawn in.
export const STEPS = ["stage", "prepare", "decide", "commit"];
export const COLOUR = Object.fromEntries(STEPS.map((step, place) =>
  [step, `var(--chakra-colors-${["blue", "teal", "yellow", "green"][place]}-500)`]));

// What each step took, beside the longest of those around it.
export function StepBar({ checkpoint, longest }) {
  if (checkpoint.seconds === null) return "–";
  const told = STEPS.filter((step) => step in checkpoint.steps).map((step) => `${step} ${lasted(checkpoint.steps[step])}`).join(", ");
  return h(Box, { display: "flex", alignItems: "center", gap: "2", title: told },
    h(Box, { role: "img", "aria-label": told, width: "6rem", height: "10px", display: "flex", flexShrink: 0 },
      STEPS.map((step) => h("div", { key: step, style: { width: `${(100 * (checkpoint.steps[step] ?? 0)) / (longest || 1)}%`, background: COLOUR[step] } }))),
    h("span", { style: { fontVariantNumeric: "tabular-nums" } }, lasted(checkpoint.seconds)));
}

export const Fact = ({ name, children }) =>
  h(Box, { overflowWrap: "anywhere" }, h(Text, { as: "span", color: "fg.muted" }, `${name}: `), children);

export function Labelled({ label, hint, width = "16rem", children }) {
  const id = useId();
  return h(Box, { display: "flex", flexDirection: "column", gap: "1", width, maxWidth: "100%" },
    h(Text, { as: "label", htmlFor: id, fontSize: "sm" }, label),
    children({ id, "aria-describedby": hint ? `${id}-hint` : undefined }),
    hint && h(Muted, { id: `${id}-hint`, fontSize: "xs" }, hint));
}

export const Choice = ({ label, hint, width, value, onChange, options }) =>
  h(Labelled, { label, hint, width }, (props) =>
    h(NativeSelect.Root, { size: "sm" },
      h(NativeSelect.Field, { ...props, value, onChange: (event) => onChange(event.target.value) },
        options.map(([key, text]) => h("option", { key, value: key }, text))),
      h(NativeSelect.Indicator)));

export const Field = ({ label, hint, ...more }) =>
  h(Labelled, { label, hint }, (props) => h(Input, { size: "sm", autoComplete: "off", spellCheck: false, ...props, ...more }));

// A heading that opens and closes what is below it, which is made when it is opened for the first time.
export function Disclosure({ title, children }) {
  const [open, setOpen] = useState(false);
  const id = useId();
  return h(Box, { borderTopWidth: "1px", borderColor: "border" },
    h(Box, { as: "h3" },
      h("button", {
        type: "button", "aria-expanded": open, "aria-controls": id, onClick: () => setOpen(!open),
        style: { padding: "8px 12px", width: "100%", textAlign: "left", cursor: "pointer" },
      }, `${open ? "▾" : "▸"} ${title}`)),
    h(Box, { id, hidden: !open, padding: open ? "3" : "0", paddingTop: "0" }, open && children()));
}

export const Table = ({ caption, head, right = [], children }) =>
  h(Box, { overflowX: "auto", tabIndex: 0, role: "region", "aria-label": caption },
    h(Box, { as: "table", fontSize: "sm", width: "100%", borderCollapse: "collapse" },
      h("thead", null, h("tr", null, head.map((name) =>
        h("th", { key: name, scope: "col", style: { ...cell, textAlign: right.includes(name) ? "right" : "left" } },
          h(Muted, null, name))))),
      h("tbody", null, children)));
