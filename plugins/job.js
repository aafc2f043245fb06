// What a pipeline was made with: its settings, and a picture of what reads what and writes where.
import { route, useAnswer } from "./asking.js";
import { behind, cell, Code, count, Fact, line, Muted, Pending, Table, wide } from "./parts.js";
import { fill, job as say } from "./words.js";

const { createElement: h, Fragment } = globalThis.React;
const { Box, Heading, Text } = globalThis.ChakraUI;

/** @param {unknown} value */
const asText = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));

/** @param {Opened} pipeline */
const useJob = (pipeline) => useAnswer(route("/v1/pipelines/{name}/job", { name: pipeline.name }), { live: true });

/** @param {{ pipeline: Opened }} props */
export function Configuration({ pipeline }) {
  const { data, error } = useJob(pipeline);
  if (data === null) return h(Pending, { data, error });
  if (!data.checkpoint) return h(Muted, null, say.notMadeYet);
  return h(Fragment, null,
    h(Pending, { data, error }),
    h(Muted, { paddingBottom: "2" }, fill(say.counted, { checkpoint: count(data.checkpoint) })),
    h(Table, { caption: say.configuration, head: [say.setting, say.value, say.comesFrom] }, data.settings.map(({ name, value, origin }) => line({ key: name },
      h("td", { style: cell }, name),
      h("td", { style: wide }, h(Code, null, asText(value))),
      h("td", { style: cell }, origin)))));
}

/** @type {Part<{ title: string, kind: string }>} */
const Node = ({ title, kind, children }) =>
  h(Box, { borderWidth: "1px", borderColor: "border", borderRadius: "md", bg: "bg.panel", padding: "3", fontSize: "sm", overflowWrap: "anywhere" },
    h(Muted, { fontSize: "xs" }, kind), h(Text, { fontWeight: "bold" }, title), children);

/** @type {Part<{ title: string }>} */
const Column = ({ title, children }) =>
  h(Box, { as: "section", flex: "1 1 14rem", minWidth: 0, display: "flex", flexDirection: "column", gap: "3" },
    h(Heading, { as: "h3", size: "sm" }, title), children);

const Arrow = () => h(Box, { alignSelf: "center", fontSize: "2xl", color: "fg.muted", "aria-hidden": true }, "→");

// What says where something is, of the settings of a source or a sink.
const PLACES = ["topics", "topic", "path", "table", "database", "folder", "url", "bootstrap_servers", "format", "host", "port", "group_id"];
/** @param {Props} settings */
const places = (settings) => PLACES.filter((name) => settings[name] !== undefined && settings[name] !== null)
  .map((name) => h(Fact, { key: name, name }, asText(settings[name])));

/** @param {{ of: Schemas["Positions"], source: string, title: string }} props */
function Position({ of, source, title }) {
  const position = /** @type {Props} */ (of.sources)[source];
  return position === undefined ? null : h(Box, { paddingTop: "1" },
    h(Muted, { fontSize: "xs" }, `${title} ${count(of.checkpoint)}`), h(Code, null, JSON.stringify(position.end ?? position)));
}

/** @param {{ pipeline: Opened }} props */
export function Job({ pipeline }) {
  const { data, error } = useJob(pipeline);
  if (data === null) return h(Pending, { data, error });
  if (!data.checkpoint) return h(Muted, null, say.notReadYet);
  const spec = /** @type {Props} */ (data.spec);
  const letters = pipeline.dead_letters?.sink;
  return h(Fragment, null,
    h(Pending, { data, error }),
    h(Box, { display: "flex", flexWrap: "wrap", gap: "4" },
      h(Column, { title: say.sources }, Object.entries(spec.sources).map(([name, source]) =>
        h(Node, { key: name, title: name, kind: source.kind ?? source.type ?? say.source }, places(source.settings ?? source),
          pipeline.lag.filter((each) => each.source === name).map((each) => h(Fact, { key: say.lag, name: say.lag }, behind(each, pipeline.now))),
          h(Position, { of: data.confirmed, source: name, title: say.delivered }),
          data.read.checkpoint > data.confirmed.checkpoint && h(Position, { of: data.read, source: name, title: say.read })))),
      h(Arrow),
      h(Column, { title: say.job }, h(Node, { title: spec.job, kind: spec.streaming ? say.stream : say.scheduled },
        Object.entries(spec.job_args ?? {}).map(([name, value]) => h(Fact, { key: name, name }, asText(value))),
        spec.job_source && h(Code, null, spec.job_source))),
      h(Arrow),
      h(Column, { title: say.sinks }, Object.entries(spec.sinks).map(([name, sink]) =>
        h(Node, { key: name, title: name, kind: `${name === letters ? say.deadLetters : ""}${sink.kind}, ${sink.strategy}, ${sink.promise}` },
          sink.conn_id && h(Fact, { name: say.connection }, sink.conn_id), places(sink))))));
}
