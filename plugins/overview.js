// How a pipeline stands: what is at work, what came last, which systems take part.
import { age, bytes, cell, count, Fact, lasted, line, Link, Muted, numeric, StepBar, Table, when, wide } from "./parts.js";
import { Settle } from "./acts.js";
import { State } from "./history.js";

const { createElement: h, Fragment } = globalThis.React;
const { Box, Heading, Text } = globalThis.ChakraUI;

const Card = ({ title, children }) =>
  h(Box, { as: "section", borderWidth: "1px", borderColor: "border", borderRadius: "md", bg: "bg.panel", padding: "3", flex: "1 1 15rem", minWidth: 0 },
    h(Heading, { as: "h3", size: "sm", paddingBottom: "1" }, title), h(Box, { fontSize: "sm" }, children));

const Ago = ({ at, now }) => h(Text, { as: "span", title: when(at) }, `${age(at, now)} ago`);

function Completed({ completed, now }) {
  if (completed === null) return h(Muted, null, "None yet.");
  return h(Fragment, null,
    h(Fact, { name: "Checkpoint" }, `${completed.number}, `, h(Ago, { at: completed.completed_at, now })),
    h(Fact, { name: "Rows" }, `${count(completed.rows)}, ${bytes(completed.bytes)}`),
    h(StepBar, { checkpoint: completed, longest: completed.seconds }));
}

function Failed({ failed, now }) {
  if (failed === null) return h(Muted, null, "None.");
  return h(Fragment, null,
    h(Fact, { name: "Checkpoint" }, `${failed.number} (${failed.reason}), triggered `, h(Ago, { at: failed.triggered_at, now })),
    h(Fact, { name: "Why" }, failed.cause), h(Fact, { name: "Its rows" }, failed.fate), h(Fact, { name: "To do" }, failed.remedy));
}

const Noted = ({ event, now, nothing }) =>
  event === null ? h(Muted, null, nothing) : h(Fragment, null, h(Ago, { at: event.at, now }), h(Text, { overflowWrap: "anywhere" }, event.message));

export function Overview({ pipeline, acts, reload }) {
  const { now, open } = pipeline;
  return h(Box, { display: "flex", flexDirection: "column", gap: "4" },
    h(Box, { display: "flex", flexWrap: "wrap", gap: "3" },
      h(Card, { title: "Checkpoints" },
        h(Fact, { name: "Numbers given out" }, count(pipeline.triggered)),
        h(Fact, { name: "Confirmed up to" }, pipeline.confirmed ? count(pipeline.confirmed) : "–"),
        h(Fact, { name: "Waiting for delivery" }, count(pipeline.waiting)),
        h(Fact, { name: "Epoch" }, count(pipeline.epoch)),
        h(Fact, { name: "DAG" }, pipeline.dags.map((dag, place) => h(Fragment, { key: dag }, place > 0 && ", ", h(Link, { to: `dags/${encodeURIComponent(dag)}` }, dag))))),
      h(Card, { title: "Latest completed" }, h(Completed, { completed: pipeline.completed, now })),
      h(Card, { title: "Latest failed" }, h(Failed, { failed: pipeline.failed, now })),
      h(Card, { title: "Latest savepoint" }, h(Noted, { event: pipeline.savepoint, now, nothing: "None was taken." })),
      h(Card, { title: "Latest restore" }, h(Noted, { event: pipeline.restored, now, nothing: "None: it has always gone on where it stood." }))),
    open.length === 0 ? h(Muted, null, "No checkpoint is open: all that was staged is delivered.") : h(Box, null,
      h(Heading, { as: "h3", size: "sm", paddingBottom: "1" }, "Open checkpoints"),
      h(Table, { caption: "Open checkpoints", head: ["Checkpoint", "State", "Rows", "So far", "Since", "What is known", "Acts"], right: ["Rows", "Since"] },
        open.map((each) => line({ key: each.number },
          h("td", { style: cell }, each.number),
          h("td", { style: cell }, h(State, { checkpoint: each })),
          h("td", { style: numeric }, count(each.rows)),
          h("td", { style: cell }, Object.entries(each.steps).map(([step, s]) => `${step} ${lasted(s)}`).join(", ") || "–"),
          h("td", { style: numeric, title: when(each.triggered_at) }, age(each.triggered_at, now)),
          h("td", { style: wide }, each.message || each.reasons[0] || ""),
          h("td", { style: cell }, h(Settle, { pipeline, acts, checkpoint: each, reload })))))));
}
