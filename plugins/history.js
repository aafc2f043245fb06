// A pipeline's checkpoints, newest first, each with all that is known of it; and those of a DAG's run.
import { pipelinePage, route, useAnswer } from "./asking.js";
import {
  Act, age, bytes, cell, Code, count, Fact, lasted, line, Link, Muted, numeric, Pending, StepBar, STEPS, Table, when, wide,
} from "./parts.js";

const { createElement: h, Fragment, useState } = globalThis.React;
const { Badge, Box, Heading, HStack, Text } = globalThis.ChakraUI;

const CHECKPOINT = "/v1/pipelines/{name}/checkpoints/{number}";
/** @type {Record<Schemas["CheckpointState"], string>} */
const PALETTE = {
  TRIGGERED: "gray", STAGED: "cyan", PREPARED: "blue", COMMITTING: "orange",
  COMPLETED: "green", SUBSUMED: "green", ABORTED: "gray", QUARANTINED: "red",
};

/** @param {{ checkpoint: Checkpoint }} props */
export const State = ({ checkpoint }) =>
  h(Badge, { colorPalette: PALETTE[checkpoint.state], variant: "subtle", title: checkpoint.message || undefined },
    checkpoint.reason ? `${checkpoint.state} (${checkpoint.reason})` : checkpoint.state);

/** @param {{ pipeline: string, number: number }} props */
function Specification({ pipeline, number }) {
  const { data, error } = useAnswer(route(`${CHECKPOINT}/spec`, { name: pipeline, number }));
  if (data === null) return h(Pending, { data, error });
  const { now, ...spec } = data;
  return h(Code, null, JSON.stringify(spec, null, 2));
}

/** @param {Schemas["Participant"]} participant */
function voted(participant) {
  if (participant.proof) return `proof: ${participant.outcome}`;
  if (participant.prepared) return `prepared (attempt ${participant.prepared})`;
  return participant.attempt ? `asked (attempt ${participant.attempt})` : "not asked yet";
}

/**
 * Which rows each system has taken, and what proves it.
 * @param {{ checkpoint: Schemas["CheckpointWhole"] }} props
 */
const Participants = ({ checkpoint }) =>
  h(Table, { caption: `Sinks of checkpoint ${checkpoint.number}`, head: ["System", "Strategy", "Sinks and rows", "Outcome"] },
    checkpoint.participants.map((each) => line({ key: each.name },
      h("td", { style: wide }, each.name, checkpoint.commit_point === each.name && h(Muted, null, "decides")),
      h("td", { style: cell }, `${each.kind} ${each.strategy}`, h(Muted, null, each.promise)),
      h("td", { style: wide }, each.sinks.map((sink) => (sink in each.counts ? `${sink} ${count(each.counts[sink])}` : sink)).join(", ")),
      h("td", { style: cell }, `${each.proof ? "✓" : "○"} ${voted(each)}`))));

/** @param {{ pipeline: string, number: number }} props */
function Whole({ pipeline, number }) {
  const { data, error } = useAnswer(route(CHECKPOINT, { name: pipeline, number }));
  const [made, setMade] = useState(false);
  if (data === null) return h(Pending, { data, error });
  const run = data.dag_id.startsWith("python:") ? `${data.run_id}, of a program`
    : data.run_id ? h(Link, { to: `dags/${encodeURIComponent(data.dag_id)}/runs/${encodeURIComponent(data.run_id)}` },
        `${data.dag_id} / ${data.run_id}${data.map_index >= 0 ? ` [${data.map_index}]` : ""}`)
      : "no DAG run";
  const rows = Object.entries(data.rows_of).map(([sink, n]) => `${sink} ${count(n)}`).join(", ");
  return h(Box, { fontSize: "sm", display: "flex", flexDirection: "column", gap: "1" },
    data.message && h(Text, null, data.message),
    data.reason && h(Fragment, null,
      h(Fact, { name: "Why" }, data.cause), h(Fact, { name: "Its rows" }, data.fate), h(Fact, { name: "To do" }, data.remedy)),
    h(Fact, { name: "Run" }, run),
    h(Fact, { name: "Triggered" }, when(data.triggered_at)),
    h(Fact, { name: "Took" }, STEPS.filter((step) => step in data.steps).map((step) => `${step} ${lasted(data.steps[step])}`).join(", ")
      || "nothing has ended yet"),
    rows && h(Fact, { name: "Rows" }, `${rows}; ${bytes(data.bytes)} in ${data.log}`),
    data.delivers.length > 0 && h(Fact, { name: "Plan" }, `delivers checkpoint ${data.delivers.join(", ")}`,
      data.reasons.map((reason) => h(Muted, { key: reason }, reason))),
    data.participants.length > 0 && h(Participants, { checkpoint: data }),
    Object.entries(data.positions).map(([source, position]) =>
      h(Box, { key: source }, h(Fact, { name: `Read of ${source}` }), h(Code, null, JSON.stringify(position)))),
    data.events.length > 0 && h(Table, { caption: `Events of checkpoint ${data.number}`, head: ["At", "Event"] },
      data.events.map((event, place) => line({ key: place },
        h("td", { style: cell }, when(event.at)), h("td", { style: wide }, event.message)))),
    data.spec && h(Box, null, made ? h(Specification, { pipeline, number })
      : h(Act, { onClick: () => setMade(true) }, "Show what it was made with")));
}

/** @param {{ pipeline: string, checkpoint: Checkpoint, now: string, longest: number, opened: boolean }} props */
function Row({ pipeline, checkpoint, now, longest, opened }) {
  const [open, setOpen] = useState(opened);
  const sinks = checkpoint.participants.map((p) =>
    h(Text, { key: p.name, as: "span", title: `${p.kind}, strategy ${p.strategy}; sinks ${p.sinks.join(", ")}` },
      `${p.proof ? "✓" : "○"} ${p.name}  `));
  const waiting = checkpoint.delivered_by ? `with checkpoint ${checkpoint.delivered_by}`
    : checkpoint.state === "ABORTED" ? "" : "not planned yet";
  return h(Fragment, null,
    line({ cursor: "pointer", onClick: () => setOpen(!open), _hover: { bg: "bg.subtle" } },
      h("td", { style: cell },
        h("button", { type: "button", "aria-expanded": open, "aria-label": `Details of checkpoint ${checkpoint.number}` },
          `${open ? "▾" : "▸"} ${checkpoint.number}`)),
      h("td", { style: cell }, h(State, { checkpoint })),
      h("td", { style: numeric }, count(checkpoint.rows)),
      h("td", { style: numeric }, bytes(checkpoint.bytes)),
      h("td", { style: { ...wide, minWidth: "6rem" } }, sinks.length ? sinks : waiting),
      h("td", { style: cell }, h(StepBar, { checkpoint, longest })),
      h("td", { style: numeric, title: when(checkpoint.at) }, age(checkpoint.at, now))),
    open && h("tr", null,
      h("td", { colSpan: 7, style: { padding: "0 12px 8px 32px" } }, h(Whole, { pipeline, number: checkpoint.number }))));
}

/** @param {{ name: string, title: string, checkpoints: Checkpoint[], now: string, opened: boolean }} props */
function Rows({ name, title, checkpoints, now, opened }) {
  const longest = Math.max(...checkpoints.map((each) => each.seconds ?? 0));
  return h(Table, {
    caption: `Checkpoints of ${title}`, right: ["Rows", "Log", "Age"],
    head: ["Checkpoint", "State", "Rows", "Log", "Sinks (✓ proven)", "Took", "Age"],
  }, checkpoints.map((checkpoint, place) => h(Row, {
    key: checkpoint.number, pipeline: name, checkpoint, now, longest, opened: opened && place === 0,
  })));
}

/** @type {[Schemas["Only"] | "", string][]} */
const ONLY = [["", "All"], ["open", "Open"], ["completed", "Completed"], ["failed", "Failed"]];

/** @param {{ pipeline: Opened, query: Query, go: Go }} props */
export function History({ pipeline, query, go }) {
  const only = ONLY.find(([key]) => key && key === query.only)?.[0] || null;
  const { data, error } = useAnswer(route("/v1/pipelines/{name}/checkpoints", { name: pipeline.name }, {
    limit: 20, before: Number(query.before) || null, only,
  }), { live: true });
  const last = data?.checkpoints.at(-1)?.number ?? 0;
  return h(Fragment, null,
    h(HStack, { gap: "1", flexWrap: "wrap", role: "group", "aria-label": "Show only", paddingBottom: "3" },
      ONLY.map(([key, text]) => h(Act, {
        key, "aria-pressed": key === (query.only ?? ""), variant: key === (query.only ?? "") ? "solid" : "outline",
        onClick: () => go({ only: key, before: "" }),
      }, text))),
    h(Pending, { data, error }),
    data !== null && (data.checkpoints.length === 0
      ? h(Muted, null, query.before ? "There are no older checkpoints." : query.only ? "No checkpoint is like that." : "It has no checkpoints yet.")
      : h(Rows, { name: pipeline.name, title: pipeline.name, checkpoints: data.checkpoints, now: data.now, opened: false })),
    data !== null && h(HStack, { paddingY: "3", gap: "2" },
      query.before && h(Act, { onClick: () => go({ before: "" }) }, "Newest"),
      h(Act, { disabled: last <= 1 || data.checkpoints.length < 20, onClick: () => go({ before: last }) }, "Older")));
}

/**
 * What a DAG's run has made; `mapIndex`: what this expansion of a mapped group has.
 * @param {{ dagId: string, runId: string, mapIndex?: string }} props
 */
export function OfRun({ dagId, runId, mapIndex = "-1" }) {
  const { data, error } = useAnswer(route("/v1/runs", {}, { dag: dagId, run: runId }), { live: true });
  if (data === null) return h(Pending, { data, error });
  const made = data.pipelines.filter((each) =>
    each.checkpoints.length > 0 && (Number(mapIndex) < 0 || each.map_index === Number(mapIndex)));
  return h(Fragment, null,
    h(Pending, { data, error }),
    made.length === 0 && h(Muted, null, "This run has made no checkpoint."),
    made.map(({ name, map_index, checkpoints }) => {
      const title = map_index >= 0 ? `${name} [${map_index}]` : name;
      return h(Box, { key: title, marginBottom: "6" },
        h(Heading, { size: "md", as: "h2", marginBottom: "2" },
          h(Link, { to: pipelinePage(name) }, title)),
        h(Rows, { name, title, checkpoints, now: data.now, opened: false }));
    }));
}
