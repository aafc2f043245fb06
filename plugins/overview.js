// How a pipeline stands: what is at work, what came last, which systems take part.
import { age, amount, behind, bytes, cell, count, Fact, lasted, line, Link, Muted, numeric, percent, StepBar, Table, wide } from "./parts.js";
import { mayAct, Settle } from "./acts.js";
import { State } from "./history.js";
import { when } from "./times.js";

const { createElement: h, Fragment } = globalThis.React;
const { Box, Heading, Text } = globalThis.ChakraUI;

/** @type {Part<{ title: string }>} */
const Card = ({ title, children }) =>
  h(Box, { as: "section", borderWidth: "1px", borderColor: "border", borderRadius: "md", bg: "bg.panel", padding: "3", flex: "1 1 15rem", minWidth: 0 },
    h(Heading, { as: "h3", size: "sm", paddingBottom: "1" }, title), h(Box, { fontSize: "sm" }, children));

/** @param {{ at: string, now: string }} props */
const Ago = ({ at, now }) => h(Text, { as: "span", title: when(at) }, `${age(at, now)} ago`);

/** @param {{ completed: Timed | null, now: string }} props */
function Completed({ completed, now }) {
  if (completed === null) return h(Muted, null, "None yet.");
  return h(Fragment, null,
    h(Fact, { name: "Checkpoint" }, `${completed.number}, `, h(Ago, { at: completed.completed_at, now })),
    h(Fact, { name: "Rows" }, `${count(completed.rows)}, ${bytes(completed.bytes)}`),
    h(StepBar, { checkpoint: completed, longest: completed.seconds }));
}

/** @param {{ failed: Schemas["Failed"] | null, now: string }} props */
function Failed({ failed, now }) {
  if (failed === null) return h(Muted, null, "None.");
  return h(Fragment, null,
    h(Fact, { name: "Checkpoint" }, `${failed.number} (${failed.reason}), triggered `, h(Ago, { at: failed.triggered_at, now })),
    h(Fact, { name: "Why" }, failed.cause), h(Fact, { name: "Its rows" }, failed.fate), h(Fact, { name: "To do" }, failed.remedy));
}

/**
 * What each source has beyond the newest checkpoint; while a run is at work, how much it has read.
 * @param {{ pipeline: Opened }} props
 */
function Sources({ pipeline }) {
  const { lag, now } = pipeline;
  if (lag.length === 0) return h(Muted, null, "How far it is behind them is not known.");
  const reading = Boolean(pipeline.at_work);
  return h(Fragment, null, lag.map((each) => h(Box, { key: each.source },
    h(Fact, { name: each.source }, behind(each, reading), h(Muted, { as: "span" }, " as of ", h(Ago, { at: each.at, now }))),
    reading && each.done < each.expected && h("progress", {
      value: each.done, max: each.expected, "aria-label": `${each.source} read`, style: { width: "100%" },
    }))));
}

/**
 * What the job could not use, and how much of that fails a checkpoint.
 * @param {{ of: Schemas["DeadLetters"] }} props
 */
function DeadLetters({ of }) {
  const bounds = [
    of.max_rows !== null && `${count(of.max_rows)} rows`,
    of.max_share !== null && `${percent(of.max_share)} of its rows`,
  ].filter(Boolean);
  return h(Fragment, null,
    h(Fact, { name: "Sink" }, of.sink),
    h(Fact, { name: `In the newest ${amount(of.checkpoints, "checkpoints")}` },
      `${count(of.rows)} of ${count(of.of)} rows${of.of ? ` (${percent(of.rows / of.of)})` : ""}`),
    h(Fact, { name: "A checkpoint fails" }, bounds.length ? `with more than ${bounds.join(", or ")}` : "with no number of them"));
}

/** @param {{ event: Schemas["Noted"] | null, now: string, nothing: string }} props */
const Noted = ({ event, now, nothing }) =>
  event === null ? h(Muted, null, nothing) : h(Fragment, null, h(Ago, { at: event.at, now }), h(Text, { overflowWrap: "anywhere" }, event.message));

/** @param {{ pipeline: Opened, reload: () => void }} props */
export function Overview({ pipeline, reload }) {
  const { now, open, counts } = pipeline;
  const acts = mayAct(pipeline);
  return h(Box, { display: "flex", flexDirection: "column", gap: "4" },
    h(Box, { display: "flex", flexWrap: "wrap", gap: "3" },
      h(Card, { title: "Checkpoints" },
        h(Fact, { name: "Triggered" }, count(counts.triggered)),
        h(Fact, { name: "In progress" }, count(counts.in_progress)),
        h(Fact, { name: "Completed" }, count(counts.completed)),
        counts.subsumed > 0 && h(Fact, { name: "Delivered with a later one" }, count(counts.subsumed)),
        h(Fact, { name: "Failed" }, count(counts.failed)),
        h(Fact, { name: "Restored" }, count(counts.restored)),
        h(Fact, { name: "Confirmed up to" }, pipeline.confirmed ? count(pipeline.confirmed) : "–"),
        h(Fact, { name: "Waiting for delivery" }, count(pipeline.waiting)),
        pipeline.held_back && h(Fact, { name: "Held back" }, `${pipeline.held_back.reason}, nothing was triggered since `, h(Ago, { at: pipeline.held_back.since, now }),
          h(Muted, null, `${pipeline.held_back.cause} ${pipeline.held_back.remedy}`)),
        h(Fact, { name: "Epoch" }, count(pipeline.epoch)),
        h(Fact, { name: "DAG" }, pipeline.dags.map((dag, place) => h(Fragment, { key: dag }, place > 0 && ", ", h(Link, { to: `dags/${encodeURIComponent(dag)}` }, dag))))),
      h(Card, { title: "Sources" }, h(Sources, { pipeline })),
      h(Card, { title: "Latest completed" }, h(Completed, { completed: pipeline.completed, now })),
      h(Card, { title: "Latest failed" }, h(Failed, { failed: pipeline.failed, now })),
      h(Card, { title: "Latest savepoint" }, h(Noted, { event: pipeline.savepoint, now, nothing: "None was taken." })),
      pipeline.dead_letters && h(Card, { title: "Dead letters" }, h(DeadLetters, { of: pipeline.dead_letters })),
      h(Card, { title: "Latest restore" }, h(Noted, { event: pipeline.restored, now, nothing: "None: it has always gone on where it stood." }))),
    open.length === 0 ? h(Muted, null, "No checkpoint is open: all that was staged is delivered.") : h(Box, null,
      h(Heading, { as: "h3", size: "sm", paddingBottom: "1" }, "Open checkpoints"),
      h(Table, { caption: "Open checkpoints", head: ["Checkpoint", "State", "Rows", "So far", "Since", "What is known", ...(acts ? ["Acts"] : [])], right: ["Rows", "Since"] },
        open.map((each) => line({ key: each.number },
          h("td", { style: cell }, each.number),
          h("td", { style: cell }, h(State, { checkpoint: each })),
          h("td", { style: numeric }, count(each.rows)),
          h("td", { style: cell }, Object.entries(each.steps).map(([step, s]) => `${step} ${lasted(s)}`).join(", ") || "–"),
          h("td", { style: numeric, title: when(each.triggered_at) }, age(each.triggered_at, now)),
          h("td", { style: wide }, each.message || each.reasons[0] || ""),
          acts && h("td", { style: cell }, h(Settle, { pipeline, checkpoint: each, reload })))))));
}
