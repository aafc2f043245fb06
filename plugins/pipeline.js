// One pipeline: how it stands, its checkpoints, its savepoints and its state.
import { Act, age, ask, cell, Code, count, Disclosure, line, Link, Muted, numeric, ofPipeline, Pending, pipelinePath, Table, useLive } from "./parts.js";
import { Savepoints } from "./savepoints.js";
import { OperatorState } from "./state.js";

const { createElement: h, Fragment, useState } = globalThis.React;
const { Badge, Box, Heading, HStack, Text } = globalThis.ChakraUI;

const PALETTE = {
  TRIGGERED: "gray", STAGED: "cyan", PREPARED: "blue", COMMITTING: "orange",
  COMPLETED: "green", SUBSUMED: "green", ABORTED: "gray", QUARANTINED: "red",
};
const total = (rows) => Object.values(rows).reduce((a, b) => a + b, 0);

const State = ({ checkpoint }) =>
  h(Badge, { colorPalette: PALETTE[checkpoint.state] ?? "gray", variant: "subtle", title: checkpoint.message || undefined },
    checkpoint.reason ? `${checkpoint.state} (${checkpoint.reason})` : checkpoint.state);

function Specification({ pipeline, checkpoint }) {
  const [text, setText] = useState("");
  async function load() {
    try {
      const path = ofPipeline(pipeline, `checkpoints/${checkpoint.number}/spec`);
      setText(JSON.stringify(await ask(path), null, 2));
    } catch (problem) {
      setText(problem.message);
    }
  }
  if (!text) {
    return h("button", { type: "button", onClick: load }, h(Text, { as: "span", color: "fg.info" }, "Show what it was made with"));
  }
  return h(Code, null, text);
}

function Details({ pipeline, checkpoint }) {
  const runs = checkpoint.run_id
    ? h(Link, { to: `dags/${encodeURIComponent(checkpoint.dag_id)}/runs/${encodeURIComponent(checkpoint.run_id)}` },
        `${checkpoint.dag_id} / ${checkpoint.run_id}${checkpoint.map_index >= 0 ? ` [${checkpoint.map_index}]` : ""}`)
    : "no DAG run";
  const rows = Object.entries(checkpoint.rows).map(([sink, n]) => `${sink} ${count(n)}`).join(", ");
  return h(Box, { fontSize: "sm", color: "fg.muted", paddingY: "1" },
    checkpoint.message && h(Text, { color: "fg" }, checkpoint.message),
    checkpoint.reason && h(Text, null, `Why: ${checkpoint.cause}`),
    checkpoint.reason && h(Text, null, `Its rows: ${checkpoint.fate}`),
    checkpoint.reason && h(Text, null, `To do: ${checkpoint.remedy}`),
    h(Text, null, "Run: ", runs),
    rows && h(Text, null, `Rows: ${rows}`),
    checkpoint.delivers.length > 0 && h(Text, null, `Plan: delivers checkpoint ${checkpoint.delivers.join(", ")}`),
    checkpoint.reasons.map((reason) => h(Text, { key: reason, paddingLeft: "4" }, reason)),
    checkpoint.spec && h(Specification, { pipeline, checkpoint }));
}

function Row({ pipeline, checkpoint, now, opened }) {
  const [open, setOpen] = useState(opened);
  const sinks = checkpoint.participants.map((p) =>
    h(Text, { key: p.name, as: "span", title: `${p.kind}, strategy ${p.strategy}; sinks ${p.sinks.join(", ")}` },
      `${p.proof ? "✓" : "○"} ${p.name}  `));
  const waiting = checkpoint.delivered_by ? `with checkpoint ${checkpoint.delivered_by}`
    : checkpoint.state === "ABORTED" ? "" : "not planned yet";
  const toggle = () => setOpen(!open);
  return h(Fragment, null,
    line({ cursor: "pointer", onClick: toggle, _hover: { bg: "bg.subtle" } },
      h("td", { style: cell },
        h("button", { type: "button", "aria-expanded": open, "aria-label": `Details of checkpoint ${checkpoint.number}` },
          `${open ? "▾" : "▸"} ${checkpoint.number}`)),
      h("td", { style: cell }, h(State, { checkpoint })),
      h("td", { style: numeric }, count(total(checkpoint.rows))),
      h("td", { style: { ...cell, whiteSpace: "normal" } }, sinks.length ? sinks : waiting),
      h("td", { style: { ...cell, textAlign: "right" }, title: checkpoint.at }, age(checkpoint.at, now))),
    open && h("tr", null,
      h("td", { colSpan: 5, style: { padding: "0 12px 8px 32px" } }, h(Details, { pipeline, checkpoint }))));
}

const HEAD = { head: ["Checkpoint", "State", "Rows", "Sinks (✓ proven)", "Age"], right: ["Rows", "Age"] };

// What a DAG's run has made.
export function OfRun({ dagId, runId }) {
  const { data, error } = useLive(`airflow-ft/runs?${new URLSearchParams({ dag: dagId, run: runId })}`);
  const made = (data?.pipelines ?? []).filter((each) => each.checkpoints.length > 0);
  return h(Fragment, null,
    h(Pending, { data, error }),
    data !== null && made.length === 0 && h(Muted, null, "This run has made no checkpoint."),
    made.map(({ name, map_index, checkpoints }) => {
      const title = map_index >= 0 ? `${name} [${map_index}]` : name;
      return h(Box, { key: title, marginBottom: "6" },
        h(Heading, { size: "md", as: "h2", marginBottom: "2" }, h(Link, { to: `plugin/airflow-ft?pipeline=${encodeURIComponent(name)}` }, title)),
        h(Table, { caption: `Checkpoints of ${title}`, ...HEAD },
          checkpoints.map((checkpoint) => h(Row, { key: checkpoint.number, pipeline: name, checkpoint, now: data.now, opened: false }))));
    }));
}

export function Pipeline({ query, go, alone = false }) {
  const { data, error } = useLive(`${pipelinePath(query.pipeline)}${query.before ? `?before=${Number(query.before)}` : ""}`);
  const newest = () => go({ before: "" });
  return h(Fragment, null,
    !alone && h(Act, { onClick: () => go({ pipeline: "", before: "" }), marginBottom: "4" }, "← All pipelines"),
    h(Pending, { data, error }),
    data !== null && h(Box, { borderWidth: "1px", borderColor: "border", borderRadius: "md", bg: "bg.panel" },
      h(HStack, { padding: "3", gap: "3", flexWrap: "wrap" },
        h(Heading, { size: "md", as: "h2", overflowWrap: "anywhere" }, data.name),
        data.halted
          ? h(Badge, { colorPalette: "red", variant: "solid" }, "HALTED")
          : h(Muted, null, data.confirmed ? `confirmed up to checkpoint ${data.confirmed}` : "nothing confirmed yet"),
        data.at_work && h(Muted, null, `at work: ${data.at_work}`),
        data.doing.map((text) => h(Muted, { key: text }, text))),
      data.halted && h(Text, { paddingX: "3", paddingBottom: "3", color: "fg.error" }, data.halted),
      data.checkpoints.length === 0
        ? h(Muted, { padding: "3" }, query.before ? "There are no older checkpoints." : "It has no checkpoints yet.")
        : h(Table, { caption: `Checkpoints of ${data.name}`, ...HEAD },
            data.checkpoints.map((checkpoint, index) =>
              h(Row, { key: checkpoint.number, pipeline: data.name, checkpoint, now: data.now, opened: !query.before && index === 0 }))),
      h(HStack, { padding: "3", gap: "2" },
        query.before && h(Act, { onClick: newest }, "Newest"),
        h(Act, { disabled: !(data.checkpoints.at(-1)?.number > 1), onClick: () => go({ before: data.checkpoints.at(-1).number }) }, "Older")),
      h(Disclosure, { title: "Savepoints" }, () => h(Savepoints, { pipeline: data })),
      h(Disclosure, { title: "State" }, () => h(OperatorState, { pipeline: data }))));
}
