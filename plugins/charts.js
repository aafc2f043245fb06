// How long a pipeline's newest checkpoints took, and what they brought: in figures, and drawn.
import { route, useAnswer } from "./asking.js";
import { bytes, cell, Choice, COLOUR, count, lasted, line, Muted, numeric, Pending, STEPS, Table } from "./parts.js";
import { when } from "./times.js";
import { fill, charts as say } from "./words.js";

const { createElement: h, Fragment, useState } = globalThis.React;
const { Box, Heading, HStack, Text } = globalThis.ChakraUI;

const TIMINGS = "/v1/pipelines/{name}/timings";
/** @type {[string, string, (value: number) => string][]} */
const MEASURES = [
  ["seconds", say.triggerToCompletion, lasted], ...STEPS.map((step) => /** @type {[string, string, typeof lasted]} */ ([step, `… ${step}`, lasted])),
  ["rows", say.rows, (n) => count(Math.round(n))], ["bytes", say.log, (n) => bytes(Math.round(n))],
  ["state_changes", say.stateChanges, (n) => bytes(Math.round(n))], ["state_snapshot", say.stateSnapshot, (n) => bytes(Math.round(n))],
];
/** @type {[keyof Schemas["Spread"], string][]} */
const FIGURES = [["minimum", say.minimum], ["mean", say.average], ["maximum", say.maximum], ["p50", "p50"], ["p95", "p95"], ["p99", "p99"]];
/** @param {Record<string, number>} counts */
const listed = (counts) => Object.entries(counts).map(([name, n]) => `${count(n)} ${name}`).join(", ");

/** @param {{ pipeline: Opened }} props */
export function Summary({ pipeline }) {
  const { data, error } = useAnswer(route(TIMINGS, { name: pipeline.name }, { each: false }), { live: true });
  const all = Object.values(data?.states ?? {}).reduce((a, b) => a + b, 0);
  if (data === null) return h(Pending, { data, error });
  if (all === 0) return h(Muted, null, say.none);
  return h(Fragment, null,
    h(Pending, { data, error }),
    h(Muted, { paddingBottom: "2" }, fill(say.newest, { all: count(all), states: listed(data.states) })
      + (Object.keys(data.reasons).length ? fill(say.failed, { reasons: listed(data.reasons) }) : "")
      + say.completedAlone),
    h(Table, { caption: say.summary, head: [say.ofACheckpoint, ...FIGURES.map(([, title]) => title)], right: FIGURES.map(([, title]) => title) },
      MEASURES.filter(([key]) => data.summary[key]).map(([key, title, text]) => line({ key },
        h("th", { scope: "row", style: { ...cell, fontWeight: "normal" } }, title),
        FIGURES.map(([figure]) => h("td", { key: figure, style: numeric }, text(data.summary[key][figure])))))));
}

const WIDTH = 720;
const HEIGHT = 140;
const LEFT = 84;
const TOP = 12;
const small = { fontSize: "11px", fill: "currentColor" };

/**
 * Where an axis ends: the next of 1, 2, 4, 6, 8, 10 of a power of ten, so that half of it is as easy to read.
 * @param {number} most the largest value, not 0
 * @param {number} unit of the power of ten
 */
function end(most, unit) {
  const ten = unit * 10 ** Math.floor(Math.log10(most / unit));
  return ten * ([1, 2, 4, 6, 8].find((n) => n * ten >= most) ?? 10);
}
/** @param {number} most */
const whole = (most) => end(Math.max(most, 2), 1);
/** @param {number} most */
const seconds = (most) => end(most || 1, [3600, 60, 1].find((unit) => most >= unit) ?? 1);

/**
 * Bars over the checkpoints, each of one or several parts: `parts(checkpoint)` are [colour, value].
 * @param {{
 *   title: string, checkpoints: Timed[], parts: (checkpoint: Timed) => [string, number][], text: (value: number) => string,
 *   axis?: (most: number) => number,
 * }} props
 */
function Bars({ title, checkpoints, parts, text, axis = whole }) {
  const sums = checkpoints.map((each) => parts(each).reduce((sum, [, value]) => sum + value, 0));
  const most = Math.max(...sums);
  const full = axis(most);
  const height = HEIGHT / full;
  const step = (WIDTH - LEFT) / checkpoints.length;
  const label = fill(say.barsLabel, { title, first: checkpoints[0].number, last: checkpoints[checkpoints.length - 1].number, most: text(most) });
  return h(Box, { as: "figure", paddingBottom: "4" },
    h(Heading, { as: "h3", size: "sm", paddingBottom: "1" }, title),
    h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + TOP + 18}`, role: "img", "aria-label": label, style: { width: "100%", maxWidth: `${WIDTH}px`, height: "auto" } },
      [0, 0.5, 1].map((part) => h("g", { key: part },
        h("line", { x1: LEFT, x2: WIDTH, y1: HEIGHT * (1 - part) + TOP, y2: HEIGHT * (1 - part) + TOP, stroke: "currentColor", strokeOpacity: 0.2 }),
        h("text", { x: LEFT - 6, y: HEIGHT * (1 - part) + TOP + 4, textAnchor: "end", style: small }, text(full * part)))),
      checkpoints.map((each, place) => {
        let top = HEIGHT + TOP;
        return h("g", { key: each.number },
          h("title", null, fill(say.bar, { number: each.number, sum: text(sums[place]), at: when(each.triggered_at) })),
          h("rect", { x: LEFT + step * place, y: TOP, width: step, height: HEIGHT, fill: "transparent" }),
          parts(each).map(([colour, value], part) => {
            top -= height * value;
            return h("rect", { key: part, x: LEFT + step * (place + 0.1), y: top, width: step * 0.8, height: height * value, fill: colour });
          }));
      }),
      h("text", { x: LEFT, y: HEIGHT + TOP + 14, style: small }, fill(say.firstCheckpoint, { first: checkpoints[0].number })),
      h("text", { x: WIDTH, y: HEIGHT + TOP + 14, textAnchor: "end", style: small }, checkpoints[checkpoints.length - 1].number)));
}

const Legend = () =>
  h(HStack, { gap: "4", flexWrap: "wrap", paddingBottom: "2" }, STEPS.map((step) =>
    h(HStack, { key: step, gap: "1" },
      h("span", { "aria-hidden": true, style: { width: "12px", height: "12px", background: COLOUR[step], display: "inline-block" } }),
      h(Text, { fontSize: "sm" }, step))));

const MANY = [["50", "50"], ["100", "100"], ["200", "200"]];

/** @param {{ pipeline: Opened }} props */
export function Charts({ pipeline }) {
  const [limit, setLimit] = useState("100");
  const { data, error } = useAnswer(route(TIMINGS, { name: pipeline.name }, { limit: Number(limit) }), { live: true });
  const checkpoints = data?.checkpoints ?? [];
  const sources = [...new Set(checkpoints.flatMap((each) => Object.keys(each.lag)))].sort();
  const units = Object.fromEntries(pipeline.lag.map((each) => [each.source, each.unit]));
  return h(Fragment, null,
    h(HStack, { paddingBottom: "3" }, h(Choice, { label: say.newestCheckpoints, width: "10rem", value: limit, onChange: setLimit, options: MANY })),
    h(Pending, { data, error }),
    data !== null && (checkpoints.length === 0 ? h(Muted, null, say.none) : h(Fragment, null,
      h(Legend),
      h(Bars, { title: say.durationByStep, checkpoints, text: lasted, axis: seconds, parts: (each) => STEPS.map((step) => [COLOUR[step], each.steps[step] ?? 0]) }),
      h(Bars, { title: say.rows, checkpoints, text: (n) => n.toLocaleString("en", { maximumFractionDigits: 1 }), parts: (each) => [["var(--chakra-colors-blue-500)", each.rows]] }),
      sources.map((source) => h(Bars, {
        key: source, title: fill(say.lag, { source, unit: units[source] ? ` (${units[source]})` : "" }),
        checkpoints: checkpoints.filter((each) => source in each.lag),
        text: (n) => count(Math.round(n)), parts: (each) => [["var(--chakra-colors-orange-500)", each.lag[source]]],
      })),
      h(Bars, { title: say.log, checkpoints, text: (n) => bytes(Math.round(n)), parts: (each) => [["var(--chakra-colors-gray-500)", each.bytes]] }))));
}
