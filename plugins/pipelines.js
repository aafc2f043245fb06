// All pipelines, a line each, the most urgent first; searched, filtered and cut into pages by the server.
import { href, pipelinePage, route, useAnswer } from "./asking.js";
import {
  ActionButton, age, amount, behind, cell, count, ERROR, Field, line, LOOK, measured, Muted, numeric, Pending, perSecond, Table, URGENT, wide, words,
} from "./parts.js";
import { Pipeline } from "./pipeline.js";
import { when } from "./times.js";
import { fill, pipelines as say } from "./words.js";

const { createElement: h, Fragment, useEffect, useRef, useState } = globalThis.React;
const { Badge, Box, HStack, Text } = globalThis.ChakraUI;

const LIMIT = 25;
/** @typedef {Schemas["PipelineInShort"]} InShort */

/**
 * The rows of the newest checkpoints, as bars of which the highest one is the most.
 * @param {{ recent: InShort["recent"] }} props
 */
function Recent({ recent }) {
  const most = Math.max(1, ...recent.map((each) => each.rows));
  const description = fill(say.recent, { first: recent[0].number, last: recent[recent.length - 1].number, most: count(most) });
  return h("svg", { width: 4 * recent.length, height: 20, role: "img", "aria-label": description },
    h("title", null, description),
    recent.map((each, place) => {
      const height = each.rows ? Math.max(1, (20 * each.rows) / most) : 0;
      return h("rect", { key: each.number, x: 4 * place, y: 20 - height, width: 3, height, fill: "currentColor" });
    }));
}

/**
 * Over all sources, by what they are counted in; and how long ago the oldest of it was measured.
 * @param {{ lag: SourceLag[], now: string }} props
 */
function Lag({ lag, now }) {
  const units = [...new Set(lag.map((each) => each.unit))];
  const known = measured(lag, now);
  return h(Fragment, null,
    units.map((unit) => h("div", { key: unit },
      amount(lag.filter((each) => each.unit === unit).reduce((sum, each) => sum + each.behind, 0), unit))),
    known && h(Muted, { fontSize: "xs" }, known));
}

/** @typedef {(event: React.MouseEvent, name: string) => void} Open */

/** @param {{ pipeline: InShort, now: string, open: Open }} props */
function Line({ pipeline, now, open }) {
  const { name, condition, description, confirmed } = pipeline;
  const urgent = URGENT.includes(condition);
  const doing = pipeline.doing.length ? pipeline.doing : [pipeline.at_work];
  return line({ _hover: { bg: "bg.subtle" } },
    h("td", { style: { ...wide, minWidth: "9rem" } },
      h("a", { href: href(pipelinePage(name)), onClick: (event) => open(event, name) },
        h(Text, { as: "span", color: "fg.info", overflowWrap: "anywhere" }, name)),
      pipeline.dags.length > 0 && h(Muted, { fontSize: "xs" }, pipeline.dags.join(" … "))),
    h("td", { style: wide },
      h(Badge, { colorPalette: LOOK[condition], variant: urgent ? "solid" : "subtle", title: description }, words(condition)),
      urgent && h(Muted, { fontSize: "xs", color: ERROR, whiteSpace: "pre-line" }, description),
      pipeline.warnings > 0 && h(Muted, { fontSize: "xs" }, pipeline.warnings === 1 ? say.warning : fill(say.warnings, { n: pipeline.warnings })),
      doing.filter(Boolean).map((text) => h(Muted, { key: text, fontSize: "xs" }, text))),
    h("td", { style: numeric, title: when(pipeline.confirmed_at) || undefined },
      confirmed ? h(Fragment, null, count(confirmed), h(Muted, { fontSize: "xs" }, fill(say.ago, { age: age(pipeline.confirmed_at, now) }))) : "–"),
    h("td", { style: numeric }, pipeline.waiting ? count(pipeline.waiting) : "–"),
    h("td", { style: numeric, title: pipeline.lag.map((each) => `${each.source}: ${behind(each, now)}`).join("\n") || undefined },
      pipeline.lag.length ? h(Lag, { lag: pipeline.lag, now }) : "–"),
    h("td", { style: numeric }, pipeline.rate === null ? "–" : perSecond(pipeline.rate)),
    h("td", { style: cell }, h(Box, { color: "fg.muted" }, pipeline.recent.length > 1 && h(Recent, { recent: pipeline.recent }))));
}

/** @param {{ counts: Partial<Record<Condition, number>>, chosen: string, choose: (condition: string) => void }} props */
function Conditions({ counts, chosen, choose }) {
  const all = Object.values(counts).reduce((a, b) => a + b, 0);
  const conditions = /** @type {Condition[]} */ (Object.keys(LOOK));
  /** @type {[string, string, number][]} */
  const offered = [["", say.all, all]];
  for (const each of conditions) offered.push([each, words(each), counts[each] ?? 0]);
  return h(HStack, { gap: "1", flexWrap: "wrap", role: "group", "aria-label": say.showOnly },
    offered.filter(([key, , n]) => n > 0 || !key || key === chosen).map(([key, text, n]) =>
      h(ActionButton, { key, "aria-pressed": key === chosen, variant: key === chosen ? "solid" : "outline", onClick: () => choose(key) },
        `${text} ${count(n)}`)));
}

/** @param {{ query: Query, go: Go, dag?: string }} props */
export function Pipelines({ query, go, dag = "" }) {
  const [text, setText] = useState(query.search ?? "");
  const sent = useRef(text); // what this field has asked for; another search comes from the browser's buttons
  useEffect(() => {
    if ((query.search ?? "") === sent.current) return;
    sent.current = query.search ?? "";
    setText(sent.current);
  }, [query.search]);
  const offset = Math.max(0, Number(query.offset) || 0);
  const condition = /** @type {Condition | null} */ (query.condition ?? null); // the API reports others
  const { data, error } = useAnswer(
    route("/v1/pipelines", {}, { limit: LIMIT, offset, search: query.search ?? "", condition, dag }), { live: true });
  useEffect(() => {
    if (text === (query.search ?? "")) return undefined;
    const timer = setTimeout(() => { sent.current = text; go({ search: text, offset: "" }, true); }, 300);
    return () => clearTimeout(timer);
  }, [text]);
  /** @type {Open} */
  const open = (event, name) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a new tab or window
    event.preventDefault();
    go({ pipeline: name });
  };
  // A DAG's only pipeline is opened on its tab.
  if (dag && data?.total === 1 && !query.search && !query.condition) {
    return h(Pipeline, { query: { ...query, pipeline: data.pipelines[0].name }, go, alone: true });
  }
  const last = data === null ? 0 : Math.min(offset + LIMIT, data.total);
  return h(Fragment, null,
    h(HStack, { gap: "4", marginBottom: "4", flexWrap: "wrap", alignItems: "end" },
      h(Field, { label: say.search, type: "search", placeholder: say.searchHint, value: text, onChange: (/** @type {any} */ event) => setText(event.target.value) }),
      data !== null && h(Conditions, {
        counts: data.conditions, chosen: query.condition ?? "", choose: (key) => go({ condition: key, offset: "" }),
      })),
    h(Pending, { data, error }),
    data !== null && data.total === 0 && h(Muted, null,
      query.search || query.condition ? say.noneLikeThat : say.none),
    data !== null && data.total > 0 && h(Fragment, null,
      h(Table, {
        caption: say.pipelines, head: [say.pipeline, say.state, say.confirmed, say.waiting, say.lag, say.rowsASecond, say.newestCheckpoints],
        right: [say.confirmed, say.waiting, say.lag, say.rowsASecond],
      }, data.pipelines.map((pipeline) => h(Line, { key: pipeline.name, pipeline, now: data.now, open }))),
      h(HStack, { paddingY: "3", gap: "2" },
        h(ActionButton, { disabled: offset === 0, onClick: () => go({ offset: Math.max(0, offset - LIMIT) || "" }) }, say.previous),
        h(ActionButton, { disabled: last >= data.total, onClick: () => go({ offset: offset + LIMIT }) }, say.next),
        h(Muted, { role: "status" }, fill(say.shown, { first: count(offset + 1), last: count(last), total: count(data.total) })))));
}
