// The page "Checkpoints" of Airflow's UI, which takes the component from `globalThis.AirflowPlugin`; see parts.js.
import { age, ask, cell, Code, count, Disclosure, line, Link, ofPipeline } from "./parts.js";
import { Savepoints } from "./savepoints.js";
import { OperatorState } from "./state.js";

const { createElement: h, Fragment, useEffect, useState } = globalThis.React;
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
      h("td", { style: { ...cell, textAlign: "right", fontVariantNumeric: "tabular-nums" } }, count(total(checkpoint.rows))),
      h("td", { style: { ...cell, whiteSpace: "normal" } }, sinks.length ? sinks : waiting),
      h("td", { style: { ...cell, textAlign: "right" }, title: checkpoint.at }, age(checkpoint.at, now))),
    open && h("tr", null,
      h("td", { colSpan: 5, style: { padding: "0 12px 8px 32px" } }, h(Details, { pipeline, checkpoint }))));
}

function Pipeline({ pipeline, now, opened }) {
  const head = ["Checkpoint", "State", "Rows", "Sinks (✓ proven)", "Age"];
  const right = new Set(["Rows", "Age"]);
  return h(Box, { borderWidth: "1px", borderColor: "border", borderRadius: "md", bg: "bg.panel", marginBottom: "6", overflowX: "auto" },
    h(HStack, { padding: "3", gap: "3", flexWrap: "wrap" },
      h(Heading, { size: "md" }, pipeline.name),
      pipeline.halted
        ? h(Badge, { colorPalette: "red", variant: "solid" }, "HALTED")
        : h(Text, { color: "fg.muted", fontSize: "sm" },
            pipeline.confirmed ? `confirmed up to checkpoint ${pipeline.confirmed}` : "nothing confirmed yet"),
      pipeline.at_work && h(Text, { color: "fg.muted", fontSize: "sm" }, `at work: ${pipeline.at_work}`),
      pipeline.doing.map((text) => h(Text, { key: text, color: "fg.muted", fontSize: "sm" }, text))),
    pipeline.halted && h(Text, { paddingX: "3", paddingBottom: "3", color: "fg.error" }, pipeline.halted),
    h("table", { style: { width: "100%", borderCollapse: "collapse" } },
      h("thead", null, h("tr", null, head.map((name) =>
        h("th", { key: name, scope: "col", style: { ...cell, textAlign: right.has(name) ? "right" : "left" } },
          h(Text, { fontSize: "sm", color: "fg.muted" }, name))))),
      h("tbody", null, pipeline.checkpoints.map((checkpoint, index) =>
        h(Row, { key: checkpoint.number, pipeline: pipeline.name, checkpoint, now, opened: opened && index === 0 })))),
    h(Disclosure, { title: "Savepoints" }, () => h(Savepoints, { pipeline })),
    h(Disclosure, { title: "State" }, () => h(OperatorState, { pipeline })));
}

function Checkpoints() {
  const [data, setData] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    let stopped = false;
    async function load() {
      try {
        const body = await ask("airflow-ft/pipelines");
        if (stopped) return;
        setData(body);
        setError("");
      } catch (problem) {
        if (!stopped) setError(String(problem.message ?? problem));
      }
    }
    load();
    const timer = setInterval(load, 5000);
    return () => { stopped = true; clearInterval(timer); };
  }, []);
  const wanted = new URLSearchParams(window.location.search).get("pipeline");
  const shown = (data?.pipelines ?? []).filter((pipeline) => !wanted || pipeline.name === wanted);
  return h(Box, { padding: "6", color: "fg", overflowY: "auto", height: "100%" },
    h(Heading, { size: "xl", marginBottom: "4" }, "Checkpoints"),
    error && h(Text, { color: "fg.error", role: "alert", marginBottom: "4" }, error),
    data === null && !error && h(Text, { color: "fg.muted" }, "Loading …"),
    data !== null && shown.length === 0 && h(Text, { color: "fg.muted" },
      wanted ? `No checkpoints of ${wanted} that you may see.` : "No pipeline has run yet."),
    shown.map((pipeline) => h(Pipeline, { key: pipeline.name, pipeline, now: data.now, opened: Boolean(wanted) })));
}

globalThis.AirflowPlugin = Checkpoints;
