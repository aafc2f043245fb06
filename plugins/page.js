// The page "Checkpoints" of Airflow's UI. Plain ES module without a build step: Airflow provides React and Chakra UI
// as globals, and takes the component from `globalThis.AirflowPlugin`. Colours are Chakra's semantic tokens, which
// follow Airflow's light and dark mode.
const { createElement: h, Fragment, useEffect, useState } = globalThis.React;
const { Badge, Box, Heading, HStack, Text } = globalThis.ChakraUI;

const PALETTE = {
  TRIGGERED: "gray", STAGED: "cyan", PREPARED: "blue", COMMITTING: "orange",
  COMPLETED: "green", SUBSUMED: "green", ABORTED: "gray", QUARANTINED: "red",
};
const count = (n) => n.toLocaleString("en");
const total = (rows) => Object.values(rows).reduce((a, b) => a + b, 0);

function age(at, now) {
  const s = Math.max(0, (new Date(now) - new Date(at)) / 1000);
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

const State = ({ checkpoint }) =>
  h(Badge, { colorPalette: PALETTE[checkpoint.state] ?? "gray", variant: "subtle", title: checkpoint.message || undefined },
    checkpoint.reason ? `${checkpoint.state} (${checkpoint.reason})` : checkpoint.state);

const cell = { padding: "8px 12px", textAlign: "left", verticalAlign: "top", whiteSpace: "nowrap" };
const line = (props, ...children) =>
  h(Box, { as: "tr", borderTopWidth: "1px", borderColor: "border", ...props }, ...children);

function Specification({ pipeline, checkpoint }) {
  const [text, setText] = useState("");
  async function load() {
    try {
      const path = `airflow-ft/pipelines/${encodeURIComponent(pipeline)}/checkpoints/${checkpoint.number}/spec`;
      const answer = await fetch(new URL(path, document.baseURI));
      const body = await answer.json();
      setText(answer.ok ? JSON.stringify(body, null, 2) : String(body.detail ?? answer.statusText));
    } catch (problem) {
      setText(String(problem.message ?? problem));
    }
  }
  if (!text) {
    return h("button", { type: "button", onClick: load }, h(Text, { as: "span", color: "fg.info" }, "Show what it was made with"));
  }
  return h(Box, { as: "pre", whiteSpace: "pre-wrap", overflowWrap: "anywhere", fontSize: "xs" }, text);
}

function Details({ pipeline, checkpoint }) {
  const runs = checkpoint.run_id
    ? h("a", { href: new URL(`dags/${encodeURIComponent(checkpoint.dag_id)}/runs/${encodeURIComponent(checkpoint.run_id)}`, document.baseURI).href },
        h(Text, { as: "span", color: "fg.info" }, `${checkpoint.dag_id} / ${checkpoint.run_id}${checkpoint.map_index >= 0 ? ` [${checkpoint.map_index}]` : ""}`))
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
      pipeline.at_work && h(Text, { color: "fg.muted", fontSize: "sm" }, `at work: ${pipeline.at_work}`)),
    pipeline.halted && h(Text, { paddingX: "3", paddingBottom: "3", color: "fg.error" }, pipeline.halted),
    h("table", { style: { width: "100%", borderCollapse: "collapse" } },
      h("thead", null, h("tr", null, head.map((name) =>
        h("th", { key: name, scope: "col", style: { ...cell, textAlign: right.has(name) ? "right" : "left" } },
          h(Text, { fontSize: "sm", color: "fg.muted" }, name))))),
      h("tbody", null, pipeline.checkpoints.map((checkpoint, index) =>
        h(Row, { key: checkpoint.number, pipeline: pipeline.name, checkpoint, now, opened: opened && index === 0 })))));
}

function Checkpoints() {
  const [data, setData] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    let stopped = false;
    async function load() {
      try {
        const answer = await fetch(new URL("airflow-ft/pipelines", document.baseURI));
        const body = await answer.json();
        if (stopped) return;
        if (!answer.ok) throw new Error(body.detail ?? answer.statusText);
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
