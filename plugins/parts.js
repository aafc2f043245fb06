// What the parts of the page share: the look of numbers and times, of buttons, fields, tables and errors. Plain ES modules
// without a build step: Airflow provides React and Chakra UI as globals. Colours are Chakra's semantic tokens, which
// follow Airflow's light and dark mode. Types are those of tools/js/host.d.ts.
import { href } from "./asking.js";
import { when } from "./times.js";
import { fill, parts as say } from "./words.js";

const { createElement: h, useId } = globalThis.React;
const { Box, Button, Input, NativeSelect, Text } = globalThis.ChakraUI;

/** @param {number} n */
export const count = (n) => n.toLocaleString("en");
/** @type {Style} */
export const cell = { padding: "8px 12px", textAlign: "left", verticalAlign: "top", whiteSpace: "nowrap" };
/** @type {Style} */
export const wide = { ...cell, whiteSpace: "normal", overflowWrap: "anywhere", minWidth: "8rem" };
/** @type {Style} */
export const numeric = { ...cell, textAlign: "right", fontVariantNumeric: "tabular-nums" };
/** @type {(props: Props | null, ...children: ReactNode[]) => ReactNode} */
export const line = (props, ...children) =>
  h(Box, { as: "tr", borderTopWidth: "1px", borderColor: "border", ...props }, ...children);

/** @param {number} n */
export function bytes(n) {
  const units = [say.bytes, "KB", "MB", "GB", "TB"];
  let i = 0;
  for (; n >= 1000 && i < units.length - 1; i += 1) n /= 1000;
  return `${i ? n.toFixed(1) : n} ${units[i]}`;
}

/**
 * Seconds, as people say them.
 * @param {number} s
 */
export function lasted(s) {
  if (s < 0.9995) return fill(say.milliseconds, { n: Math.round(1000 * s) });
  if (s < 89.5) return `${s.toFixed(s < 9.95 ? 2 : 1)} s`;
  const seconds = Math.round(s);
  if (s < 5400) return fill(say.minutesAndSeconds, { minutes: Math.floor(seconds / 60), seconds: seconds % 60 });
  const minutes = Math.round(s / 60);
  return fill(say.hoursAndMinutes, { hours: Math.floor(minutes / 60), minutes: minutes % 60 });
}

/** @param {number} share of 1 */
export const percent = (share) => share.toLocaleString("en", { style: "percent", maximumSignificantDigits: 2 });
/** @param {number} rate */
export const perSecond = (rate) => (rate >= 10 || rate === 0 ? count(Math.round(rate)) : rate.toPrecision(2));
/** @type {(n: number, unit: string) => string} */
export const amount = (n, unit) => `${count(n)} ${n === 1 ? unit.slice(0, -1) : unit}`;

/**
 * How long ago the oldest of these lags was measured; "" within the last minute, as on the command line.
 * @type {(lags: readonly SourceLag[], now: string) => string}
 */
export function measured(lags, now) {
  const oldest = lags.map((each) => each.at).filter(Boolean).sort()[0];
  return oldest && Date.parse(now) - Date.parse(oldest) >= 60_000 ? fill(say.ago, { age: age(oldest, now) }) : "";
}

/**
 * The lag of a pipeline behind a source, with its age. With `reading` also how much of the source the run has read.
 * @type {(lag: SourceLag, now: string, reading?: boolean) => string}
 */
export const behind = (lag, now, reading = false) => [
  fill(say.behind, { behind: amount(lag.behind, lag.unit) }),
  reading && lag.expected > 0 && fill(say.done, { done: count(lag.done), expected: count(lag.expected) }),
  reading && lag.rate && fill(say.rate, { rate: perSecond(lag.rate) }),
  reading && lag.rate && lag.seconds_left && fill(say.left, { time: lag.seconds_left < 90 ? `${Math.ceil(lag.seconds_left)} s` : lasted(lag.seconds_left) }),
].filter(Boolean).join(", ") + (measured([lag], now) && ` (${measured([lag], now)})`);

/** @type {(at: string, now: string) => string} */
export function age(at, now) {
  const s = Math.max(0, (Date.parse(now) - Date.parse(at)) / 1000);
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return fill(say.minutes, { minutes: Math.round(s / 60) });
  if (s < 129600) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

// Chakra's own colour of errors has too little contrast on white (3.8; WCAG asks for 4.5).
export const ERROR = { base: "red.600", _dark: "fg.error" };
/** @type {Part} */
export const Muted = ({ children, ...props }) => h(Text, { color: "fg.muted", fontSize: "sm", ...props }, children);
/** @type {Part} */
export const Problem = ({ children, ...props }) =>
  h(Text, { color: ERROR, fontSize: "sm", role: "alert", overflowWrap: "anywhere", whiteSpace: "pre-line", ...props }, children);
/**
 * What is shown of an answer beside its data: an error, and of when the data is that it has left.
 * @type {Part<{ data: { now: string } | null, error: string }>}
 */
export const Pending = ({ data, error }) =>
  error ? h(Problem, { marginBottom: "4" }, error, data !== null && `\n${fill(say.old, { at: when(data.now) })}`)
    : data === null && h(Muted, null, say.loading);
/** @type {Part<{ to: string }>} */
export const Link = ({ to, children }) =>
  h("a", { href: href(to) }, h(Text, { as: "span", color: "fg.info", overflowWrap: "anywhere" }, children));
/**
 * The page of a task of a run in Airflow, which has its log.
 * @type {(of: { dag_id: string, run_id: string, map_index: number }, task: string, tries?: number) => string}
 */
export const taskPage = ({ dag_id, run_id, map_index }, task, tries = 0) =>
  `dags/${encodeURIComponent(dag_id)}/runs/${encodeURIComponent(run_id)}/tasks/${encodeURIComponent(task)}${map_index >= 0 ? `/mapped/${map_index}` : ""}${tries ? `?try_number=${tries}` : ""}`;
/**
 * The last error of a run or a sink, and a link to its log.
 * @type {Part<{ of: Schemas["Failure"] }>}
 */
export const LastError = ({ of }) => h(Box, null,
  h(Fact, { name: of.kind + (of.code ? ` [${of.code}]` : "") }, of.message),
  of.remedy && h(Fact, { name: say.remedy }, of.remedy),
  of.at && h(Fact, { name: say.at }, when(of.at)),
  of.task_id && h(Fact, { name: say.log }, h(Link, { to: taskPage(of, of.task_id, of.try_number) }, fill(say.tried, { task: of.task_id, tries: of.try_number }))));
/** @type {Part} */
export const ActionButton = (props) => h(Button, { size: "xs", variant: "outline", type: "button", ...props });
/** @type {Part<{}>} */
export const Code = ({ children }) =>
  h(Box, { as: "pre", whiteSpace: "pre-wrap", overflowWrap: "anywhere", fontSize: "xs" }, children);

/**
 * A pipeline's condition, the most urgent first, and its colour.
 * @type {Record<Condition, string>}
 */
export const LOOK = {
  HALTED: "red", QUARANTINED: "red", IN_DOUBT: "orange", FAILED: "red", NOT_RUNNING: "orange", LATE: "orange", WAITING: "yellow", RUNNING: "blue", IDLE: "green",
  RENAMED: "gray",
};
/**
 * Conditions that need a person.
 * @type {Condition[]}
 */
export const URGENT = ["HALTED", "QUARANTINED", "IN_DOUBT", "FAILED", "NOT_RUNNING", "LATE"];
/** @param {Condition} condition */
export const words = (condition) => condition.replace("_", " ");

// The steps of a checkpoint, and what they are drawn in.
export const STEPS = ["stage", "prepare", "decide", "commit"];
/** @type {Record<string, string>} */
export const COLOUR = Object.fromEntries(STEPS.map((step, place) =>
  [step, `var(--chakra-colors-${["blue", "teal", "yellow", "green"][place]}-500)`]));

/**
 * What each step took, beside the longest of those around it.
 * @param {{ checkpoint: Timed, longest: number | null }} props
 */
export function StepBar({ checkpoint, longest }) {
  if (checkpoint.seconds === null) return "–";
  const label = STEPS.filter((step) => step in checkpoint.steps).map((step) => `${step} ${lasted(checkpoint.steps[step])}`).join(", ");
  return h(Box, { display: "flex", alignItems: "center", gap: "2", title: label },
    h(Box, { role: "img", "aria-label": label, width: "6rem", height: "10px", display: "flex", flexShrink: 0 },
      STEPS.map((step) => h("div", { key: step, style: { width: `${(100 * (checkpoint.steps[step] ?? 0)) / (longest || 1)}%`, background: COLOUR[step] } }))),
    h("span", { style: { fontVariantNumeric: "tabular-nums" } }, lasted(checkpoint.seconds)));
}

/** @type {Part<{ name: string }>} */
export const Fact = ({ name, children }) =>
  h(Box, { overflowWrap: "anywhere" }, h(Text, { as: "span", color: "fg.muted" }, `${name}: `), children);

/** @param {{ label: string, hint?: string, width?: string, field: (props: Props) => ReactNode }} props */
export function Labelled({ label, hint, width = "16rem", field }) {
  const id = useId();
  return h(Box, { display: "flex", flexDirection: "column", gap: "1", width, maxWidth: "100%" },
    h(Text, { as: "label", htmlFor: id, fontSize: "sm" }, label),
    field({ id, "aria-describedby": hint ? `${id}-hint` : undefined }),
    hint && h(Muted, { id: `${id}-hint`, fontSize: "xs" }, hint));
}

/**
 * One of several; `options` are values with their texts.
 * @param {{
 *   label: string, hint?: string, width?: string, value: string, onChange: (value: string) => void, options: string[][],
 * }} props
 */
export const Choice = ({ label, hint, width, value, onChange, options }) => h(Labelled, {
  label, hint, width, field: (props) => h(NativeSelect.Root, { size: "sm" },
    h(NativeSelect.Field, { ...props, value, onChange: (/** @type {any} */ event) => onChange(event.target.value) },
      options.map(([key, text]) => h("option", { key, value: key }, text))),
    h(NativeSelect.Indicator)),
});

/** @type {(props: { label: string, hint?: string, [more: string]: any }) => ReactNode} */
export const Field = ({ label, hint, ...more }) => h(Labelled, {
  label, hint, field: (props) => h(Input, { size: "sm", autoComplete: "off", spellCheck: false, ...props, ...more }),
});

/**
 * A table that scrolls sideways by itself; the columns named in `right` have numbers.
 * @type {Part<{ caption: string, head: string[], right?: string[] }>}
 */
export const Table = ({ caption, head, right = [], children }) =>
  h(Box, { overflowX: "auto", tabIndex: 0, role: "region", "aria-label": caption },
    h(Box, { as: "table", fontSize: "sm", width: "100%", borderCollapse: "collapse" },
      h("thead", null, h("tr", null, head.map((name) =>
        h("th", { key: name, scope: "col", style: { ...cell, textAlign: right.includes(name) ? "right" : "left" } },
          h(Muted, null, name))))),
      h("tbody", null, children)));
