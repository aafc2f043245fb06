// A pipeline's status: active processes, newest checkpoints, participants.
import {
  age, amount, behind, bytes, cell, count, Fact, LastError, lasted, line, Link, Muted, numeric, percent, StepBar, Table, wide,
} from "./parts.js";
import { hasActions, Settle } from "./actions.js";
import { State } from "./history.js";
import { when } from "./times.js";
import { fill, overview as say } from "./words.js";

const { createElement: h, Fragment } = globalThis.React;
const { Box, Heading, Text } = globalThis.ChakraUI;

/** @type {Part<{ title: string }>} */
const Card = ({ title, children }) =>
  h(Box, { as: "section", borderWidth: "1px", borderColor: "border", borderRadius: "md", bg: "bg.panel", padding: "3", flex: "1 1 15rem", minWidth: 0 },
    h(Heading, { as: "h3", size: "sm", paddingBottom: "1" }, title), h(Box, { fontSize: "sm" }, children));

/** @param {{ at: string, now: string }} props */
const Ago = ({ at, now }) => h(Text, { as: "span", title: when(at) }, fill(say.ago, { age: age(at, now) }));

/** @param {{ completed: Timed | null, now: string }} props */
function Completed({ completed, now }) {
  if (completed === null) return h(Muted, null, say.noneYet);
  return h(Fragment, null,
    h(Fact, { name: say.checkpoint }, `${completed.number}, `, h(Ago, { at: completed.completed_at, now })),
    h(Fact, { name: say.rows }, `${count(completed.rows)}, ${bytes(completed.bytes)}`),
    h(StepBar, { checkpoint: completed, longest: completed.seconds }));
}

/** @param {{ failed: Schemas["Failed"] | null, now: string }} props */
function Failed({ failed, now }) {
  if (failed === null) return h(Muted, null, say.none);
  return h(Fragment, null,
    h(Fact, { name: say.checkpoint }, fill(say.failedCheckpoint, { number: failed.number, reason: failed.reason }), h(Ago, { at: failed.triggered_at, now })),
    h(Fact, { name: say.why }, failed.cause), h(Fact, { name: say.itsRows }, failed.fate), h(Fact, { name: say.toDo }, failed.remedy));
}

/**
 * What each source has beyond the newest checkpoint; while a run is active, how much it has read.
 * @param {{ pipeline: Opened }} props
 */
function Sources({ pipeline }) {
  const { lag, now } = pipeline;
  if (lag.length === 0) return h(Muted, null, say.lagUnknown);
  const reading = Boolean(pipeline.at_work);
  return h(Fragment, null, lag.map((each) => h(Box, { key: each.source },
    h(Fact, { name: each.source }, h("span", { title: when(each.at) || undefined }, behind(each, now, reading))),
    reading && each.done < each.expected && h("progress", {
      value: each.done, max: each.expected, "aria-label": fill(say.sourceRead, { source: each.source }), style: { width: "100%" },
    }))));
}

/**
 * What the job could not use, and how much of that fails a checkpoint.
 * @param {{ of: Schemas["DeadLetters"] }} props
 */
function DeadLetters({ of }) {
  const bounds = [
    of.max_rows !== null && fill(say.mostRows, { max_rows: count(of.max_rows) }),
    of.max_share !== null && fill(say.mostShare, { max_share: percent(of.max_share) }),
  ].filter(Boolean);
  return h(Fragment, null,
    h(Fact, { name: say.sink }, of.sink),
    h(Fact, { name: fill(say.inTheNewest, { checkpoints: amount(of.checkpoints, say.ofCheckpoints) }) },
      fill(say.deadRows, { rows: count(of.rows), of: count(of.of), share: of.of ? ` (${percent(of.rows / of.of)})` : "" })),
    h(Fact, { name: say.aCheckpointFails }, bounds.length ? fill(say.bounded, { bounds: bounds.join(say.or) }) : say.unbounded));
}

/** @param {{ warnings: readonly Schemas["Warned"][], now: string }} props */
const Warnings = ({ warnings, now }) => h(Fragment, null, warnings.map((each) => h(Box, { key: `${each.code} ${each.subject}`, paddingBottom: "1" },
  h(Fact, { name: each.code + (each.subject ? ` (${each.subject})` : "") }, each.message, " ", h(Muted, { as: "span" }, h(Ago, { at: each.at, now }))),
  each.remedy && h(Fact, { name: say.toDo }, each.remedy))));

/**
 * What is known of an open checkpoint: what was said of it, and what each sink that lacks it answered last.
 * @param {{ checkpoint: Schemas["CheckpointOpen"] }} props
 */
const Known = ({ checkpoint }) => h(Fragment, null,
  checkpoint.message || checkpoint.reasons[0] || "",
  checkpoint.participants.map((each) => each.problem && h(Box, { key: each.name, fontSize: "sm" },
    h(Muted, null, fill(say.lastErrorOf, { name: each.name })), h(LastError, { of: each.problem }))));

/** @param {{ event: Schemas["Noted"] | null, now: string, nothing: string }} props */
const Noted = ({ event, now, nothing }) =>
  event === null ? h(Muted, null, nothing) : h(Fragment, null, h(Ago, { at: event.at, now }), h(Text, { overflowWrap: "anywhere" }, event.message));

/** @param {{ pipeline: Opened, reload: () => void }} props */
export function Overview({ pipeline, reload }) {
  const { now, open, counts } = pipeline;
  const actions = hasActions(pipeline);
  return h(Box, { display: "flex", flexDirection: "column", gap: "4" },
    h(Box, { display: "flex", flexWrap: "wrap", gap: "3" },
      pipeline.failure && h(Card, { title: pipeline.condition === "FAILED" ? say.lastRunFailed : say.lastError }, h(LastError, { of: pipeline.failure })),
      pipeline.warnings.length > 0 && h(Card, { title: say.warnings }, h(Warnings, { warnings: pipeline.warnings, now })),
      h(Card, { title: say.checkpoints },
        h(Fact, { name: say.triggered }, count(counts.triggered)),
        h(Fact, { name: say.inProgress }, count(counts.in_progress)),
        h(Fact, { name: say.completed }, count(counts.completed)),
        counts.subsumed > 0 && h(Fact, { name: say.deliveredWithALaterOne }, count(counts.subsumed)),
        h(Fact, { name: say.failed }, count(counts.failed)),
        h(Fact, { name: say.restored }, count(counts.restored)),
        h(Fact, { name: say.confirmedUpTo }, pipeline.confirmed ? count(pipeline.confirmed) : "–"),
        h(Fact, { name: say.waitingForDelivery }, count(pipeline.waiting)),
        pipeline.held_back && h(Fact, { name: say.heldBack }, fill(say.heldBackSince, { reason: pipeline.held_back.reason }), h(Ago, { at: pipeline.held_back.since, now }),
          h(Muted, null, `${pipeline.held_back.cause} ${pipeline.held_back.remedy}`)),
        h(Fact, { name: say.epoch }, count(pipeline.epoch)),
        h(Fact, { name: say.dag }, pipeline.dags.map((dag, place) => h(Fragment, { key: dag }, place > 0 && ", ", h(Link, { to: `dags/${encodeURIComponent(dag)}` }, dag))))),
      h(Card, { title: say.sources }, h(Sources, { pipeline })),
      h(Card, { title: say.latestCompleted }, h(Completed, { completed: pipeline.completed, now })),
      h(Card, { title: say.latestFailed }, h(Failed, { failed: pipeline.failed, now })),
      h(Card, { title: say.latestSavepoint }, h(Noted, { event: pipeline.savepoint, now, nothing: say.noneWasTaken })),
      pipeline.dead_letters && h(Card, { title: say.deadLetters }, h(DeadLetters, { of: pipeline.dead_letters })),
      h(Card, { title: say.latestRestore }, h(Noted, { event: pipeline.restored, now, nothing: say.neverRestored }))),
    open.length === 0 ? h(Muted, null, say.nothingOpen) : h(Box, null,
      h(Heading, { as: "h3", size: "sm", paddingBottom: "1" }, say.openCheckpoints),
      h(Table, { caption: say.openCheckpoints, head: [say.checkpoint, say.state, say.rows, say.soFar, say.since, say.whatIsKnown, ...(actions ? [say.actions] : [])], right: [say.rows, say.since] },
        open.map((each) => line({ key: each.number },
          h("td", { style: cell }, each.number),
          h("td", { style: cell }, h(State, { checkpoint: each })),
          h("td", { style: numeric }, count(each.rows)),
          h("td", { style: cell }, Object.entries(each.steps).map(([step, s]) => `${step} ${lasted(s)}`).join(", ") || "–"),
          h("td", { style: numeric, title: when(each.triggered_at) }, age(each.triggered_at, now)),
          h("td", { style: wide }, h(Known, { checkpoint: each })),
          actions && h("td", { style: cell }, h(Settle, { pipeline, checkpoint: each, reload })))))));
}
