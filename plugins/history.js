// A pipeline's checkpoints, newest first, each with all that is known of it.
import { route, useAnswer } from "./asking.js";
import {
  ActionButton, amount, bytes, cell, Choice, Code, count, Fact, Field, lasted, line, Link, Muted, numeric, Pending, StepBar, STEPS, Table, taskPage, wide,
} from "./parts.js";
import { instant, local, when } from "./times.js";
import { fill, history as say } from "./words.js";

const { createElement: h, Fragment, useState } = globalThis.React;
const { Badge, Box, HStack, Text } = globalThis.ChakraUI;

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
  if (participant.proof) return fill(say.proof, { outcome: participant.outcome });
  if (participant.prepared) return fill(say.prepared, { prepared: participant.prepared });
  return participant.attempt ? fill(say.asked, { attempt: participant.attempt }) : say.notAskedYet;
}

/**
 * What the system itself remembers, and what it said when it voted: the id of a transaction, say.
 * @param {{ marker: Schemas["Marker"] }} props
 */
const Marked = ({ marker }) => h(Fragment, null,
  marker.digest ? h(Text, { title: marker.digest }, fill(say.digest, { digest: marker.digest.slice(0, 12), epoch: marker.epoch })) : h(Muted, null, say.notReadYet),
  [marker.notes, marker.detail].filter((part) => Object.keys(part).length > 0).map((part, place) => h(Code, { key: place }, JSON.stringify(part))));

/**
 * Which rows each system has taken, and what proves it.
 * @param {{ checkpoint: Schemas["CheckpointWhole"] }} props
 */
const Participants = ({ checkpoint }) =>
  h(Table, { caption: fill(say.sinksOfCheckpoint, { number: checkpoint.number }), head: [say.system, say.strategy, say.sinksAndRows, say.outcome, say.marker] },
    checkpoint.participants.map((each) => line({ key: each.name },
      h("td", { style: wide }, each.name, checkpoint.commit_point === each.name && h(Muted, null, say.decides)),
      h("td", { style: cell }, `${each.kind} ${each.strategy}`, h(Muted, null, each.promise)),
      h("td", { style: wide }, each.sinks.map((sink) => (sink in each.counts ? `${sink} ${count(each.counts[sink])}` : sink)).join(", ")),
      h("td", { style: cell }, `${each.proof ? "✓" : "○"} ${voted(each)}`),
      h("td", { style: wide }, checkpoint.markers.filter((marker) => marker.participant === each.name).map((marker) =>
        h(Marked, { key: marker.participant, marker }))))));

/**
 * What each step took; the last one follows the confirmation: sources get their offsets, retention begins.
 * @param {Schemas["CheckpointWhole"]} checkpoint
 */
function took(checkpoint) {
  const { steps, completed_at: completed, finalised_at: finalised } = checkpoint;
  const found = STEPS.filter((step) => step in steps).map((step) => `${step} ${lasted(steps[step])}`);
  return completed && finalised ? [...found, fill(say.confirm, { time: lasted((Date.parse(finalised) - Date.parse(completed)) / 1000) })] : found;
}

/**
 * True if the details are final. Only later pruning and savepoints still change them.
 * @param {Schemas["CheckpointWhole"]} checkpoint
 */
const isFinal = ({ state, finalised_at: finalised }) => state === "COMPLETED" && Boolean(finalised);

/** @param {{ pipeline: string, number: number, only?: (checkpoint: Checkpoint) => void }} props */
function Whole({ pipeline, number, only }) {
  const { data, error } = useAnswer(route(CHECKPOINT, { name: pipeline, number }), { live: true, final: isFinal });
  const [made, setMade] = useState(false);
  if (data === null) return h(Pending, { data, error });
  const run = data.dag_id.startsWith("python:") ? fill(say.ofProgram, { run_id: data.run_id })
    : data.run_id ? h(Link, { to: `dags/${encodeURIComponent(data.dag_id)}/runs/${encodeURIComponent(data.run_id)}` },
        `${data.dag_id} / ${data.run_id}${data.map_index >= 0 ? ` [${data.map_index}]` : ""}`)
      : say.noDagRun;
  const rows = Object.entries(data.rows_of).map(([sink, n]) => `${sink} ${count(n)}`).join(", ");
  return h(Box, { fontSize: "sm", display: "flex", flexDirection: "column", gap: "1" },
    h(Pending, { data, error }),
    data.message && h(Text, null, data.message),
    data.reason && h(Fragment, null,
      h(Fact, { name: say.why }, data.cause), h(Fact, { name: say.itsRows }, data.fate), h(Fact, { name: say.toDo }, data.remedy)),
    h(Fact, { name: say.run }, run, only && data.run_id && h(Fragment, null, " ", h(ActionButton, { onClick: () => only(data) }, say.onlyOfThisRun))),
    data.task && h(Fact, { name: say.log }, h(Link, { to: taskPage(data, data.task) }, data.task)),
    (data.application || data.spark) && h(Fact, { name: say.spark },
      data.spark ? h(Link, { to: data.spark }, data.application || data.spark) : data.application),
    h(Fact, { name: say.triggered }, when(data.triggered_at)),
    data.completed_at && h(Fact, { name: say.completed }, when(data.completed_at)),
    h(Fact, { name: say.took }, took(data).join(", ") || say.nothingHasEndedYet),
    rows && h(Fact, { name: say.rows }, fill(say.rowsIn, { rows, bytes: bytes(data.bytes), log: data.log })),
    data.state_sizes && h(Fact, { name: say.state }, stateText(data.state_sizes)),
    data.delivers.length > 0 && h(Fact, { name: say.plan }, fill(say.deliversCheckpoint, { delivers: data.delivers.join(", ") }),
      data.reasons.map((reason) => h(Muted, { key: reason }, reason))),
    data.plan && h(Fact, { name: say.itsMarker }, data.plan),
    data.participants.length > 0 && h(Participants, { checkpoint: data }),
    Object.entries(data.positions).map(([source, position]) =>
      h(Box, { key: source }, h(Fact, { name: fill(say.readOf, { source }) }), h(Code, null, JSON.stringify(position)))),
    data.events.length > 0 && h(Table, { caption: fill(say.eventsOfCheckpoint, { number: data.number }), head: [say.at, say.event] },
      data.events.map((event, place) => line({ key: place },
        h("td", { style: cell }, when(event.at)), h("td", { style: wide }, event.message)))),
    data.spec && h(Box, null, made ? h(Specification, { pipeline, number })
      : h(ActionButton, { onClick: () => setMade(true) }, say.showSpecification)));
}

/**
 * What a table of checkpoints has beside their numbers and states: title, whether it is a number, what is shown.
 * @typedef {[string, boolean, (checkpoint: Checkpoint, longest: number) => ReactNode]} Shown
 */

/** @param {Checkpoint} checkpoint */
const elsewhere = (checkpoint) => (checkpoint.delivered_by ? fill(say.deliveredWith, { delivered_by: checkpoint.delivered_by }) : "");

/** @param {Checkpoint} checkpoint */
function sinks(checkpoint) {
  if (checkpoint.participants.length === 0) return elsewhere(checkpoint) || (checkpoint.state === "ABORTED" ? "" : say.notPlannedYet);
  return checkpoint.participants.map((p) =>
    h(Text, { key: p.name, as: "span", title: fill(say.participant, { kind: p.kind, strategy: p.strategy, sinks: p.sinks.join(", ") }) },
      `${p.proof ? "✓" : "○"} ${p.name}  `));
}

/** @param {Schemas["StateSizes"]} sizes */
const stateText = ({ changes, snapshot, replayed }) => fill(say.changed, { changes: bytes(changes) })
  + (snapshot ? fill(say.inSnapshot, { snapshot: bytes(snapshot), replayed: amount(replayed, say.microBatches) }) : say.noFullSnapshotYet);

/** @type {Record<"rows" | "log" | "state" | "sinks" | "took" | "triggered" | "ended", Shown>} */
const SHOWN = {
  rows: [say.rows, true, (each) => count(each.rows)],
  log: [say.log, true, (each) => bytes(each.bytes)],
  state: [say.stateSize, true, ({ state_sizes: sizes }) =>
    (sizes ? h("span", { title: stateText(sizes) }, bytes(sizes.snapshot || sizes.changes)) : "–")],
  sinks: [say.sinksProven, false, sinks],
  took: [say.took, false, (each, longest) => h(StepBar, { checkpoint: each, longest })],
  triggered: [say.triggered, false, (each) => when(each.triggered_at)],
  ended: [say.completed, false, (each) => when(each.completed_at) || elsewhere(each) || "–"],
};

/**
 * @param {{
 *   pipeline: string, checkpoint: Checkpoint, columns: Shown[], longest: number, only?: (checkpoint: Checkpoint) => void,
 * }} props
 */
function Row({ pipeline, checkpoint, columns, longest, only }) {
  const [open, setOpen] = useState(false);
  return h(Fragment, null,
    line({ cursor: "pointer", onClick: () => setOpen(!open), _hover: { bg: "bg.subtle" } },
      h("td", { style: cell },
        h("button", { type: "button", "aria-expanded": open, "aria-label": fill(say.detailsOfCheckpoint, { number: checkpoint.number }) },
          `${open ? "▾" : "▸"} ${checkpoint.number}`)),
      h("td", { style: cell }, h(State, { checkpoint })),
      columns.map(([title, isNumber, shown]) => h("td", {
        key: title, style: isNumber ? numeric : title === SHOWN.sinks[0] ? { ...wide, minWidth: "6rem" } : cell,
      }, shown(checkpoint, longest)))),
    open && h("tr", null,
      h("td", { colSpan: columns.length + 2, style: { padding: "0 12px 8px 32px" } }, h(Whole, { key: String(checkpoint.state === "COMPLETED"), pipeline, number: checkpoint.number, only }))));
}

/**
 * Table of checkpoints. Each row opens to its details.
 * @param {{
 *   name: string, title: string, checkpoints: Checkpoint[], only?: (checkpoint: Checkpoint) => void,
 * }} props
 */
export function Rows({ name, title, checkpoints, only }) {
  const columns = Object.values(SHOWN).filter((each) => each !== SHOWN.state || checkpoints.some(({ state_sizes: sizes }) => sizes));
  const longest = Math.max(...checkpoints.map((each) => each.seconds ?? 0));
  return h(Table, {
    caption: fill(say.checkpointsOf, { title }), right: columns.filter(([, isNumber]) => isNumber).map(([of]) => of),
    head: [say.checkpoint, say.state, ...columns.map(([of]) => of)],
  }, checkpoints.map((checkpoint) => h(Row, { key: checkpoint.number, pipeline: name, checkpoint, columns, longest, only })));
}

/** @type {[Schemas["Only"] | "", string][]} */
const ONLY = [["", say.all], ["open", say.open], ["completed", say.completed], ["failed", say.failed]];
/**
 * In the order in which a checkpoint meets them; with a place for each, so that none is forgotten here.
 * @type {Record<Schemas["AbortReason"], string>}
 */
const REASONS = {
  JOB_FAILED: "JOB_FAILED", TOO_MANY_DEAD_LETTERS: "TOO_MANY_DEAD_LETTERS", STAGE_FAILED: "STAGE_FAILED", DATA_LOSS: "DATA_LOSS",
  SEAL_FAILED: "SEAL_FAILED", PUBLISH_FAILED: "PUBLISH_FAILED", HALTED: "HALTED", STOPPED: "STOPPED", FENCED: "FENCED",
  ATTEMPT_ENDED: "ATTEMPT_ENDED", EXPIRED: "EXPIRED", DECLINED: "DECLINED", SUPERSEDED: "SUPERSEDED",
  PREDECESSOR_ABORTED: "PREDECESSOR_ABORTED", USER: "USER",
};
/** What the address says of the history when all of it is shown, from its end. */
export const UNFILTERED = { before: "", only: "", reason: "", until: "", of: "", run: "", map: "" };

/** @param {{ query: Query, go: Go }} props */
function Filters({ query, go }) {
  /** @type {(name: string, text: (value: string) => string | number) => (event: any) => void} */
  const change = (name, text) => (event) => go({ before: "", [name]: text(event.target.value) }, true);
  const chosen = query.only ?? "";
  return h(Fragment, null,
    h(HStack, { gap: "1", flexWrap: "wrap", role: "group", "aria-label": say.showOnly, paddingBottom: "3" },
      ONLY.map(([key, text]) => h(ActionButton, {
        key, "aria-pressed": key === chosen, variant: key === chosen ? "solid" : "outline", onClick: () => go({ only: key, before: "", reason: "" }),
      }, text))),
    h(HStack, { gap: "3", flexWrap: "wrap", alignItems: "end", paddingBottom: "3" },
      h(Choice, {
        label: say.reason, width: "14rem", value: query.reason ?? "", onChange: (reason) => go({ reason, before: "" }),
        options: [["", say.any], ...Object.entries(REASONS)],
      }),
      h(Field, {
        label: say.upToCheckpoint, type: "number", min: 1, value: Number(query.before) > 1 ? Number(query.before) - 1 : "",
        onChange: change("before", (value) => (Number(value) > 0 ? Number(value) + 1 : "")),
      }),
      h(Field, { label: say.triggeredUntil, type: "datetime-local", value: local(query.until ?? ""), onChange: change("until", instant) }),
      query.run && h(ActionButton, { onClick: () => go({ of: "", run: "", map: "", before: "" }) }, fill(say.allRuns, { run: query.run }))));
}

/** @param {{ pipeline: Opened, query: Query, go: Go }} props */
export function History({ pipeline, query, go }) {
  const only = ONLY.find(([key]) => key && key === query.only)?.[0] || null;
  const reason = /** @type {Schemas["AbortReason"] | null} */ (query.reason in REASONS ? query.reason : null);
  const { data, error } = useAnswer(route("/v1/pipelines/{name}/checkpoints", { name: pipeline.name }, {
    limit: 20, before: Number(query.before) || null, only, reason, until: query.until || null,
    dag: query.of, run: query.run, map_index: Number(query.map || -1),
  }), { live: true });
  const last = data?.checkpoints.at(-1)?.number ?? 0;
  const filtered = query.only || query.reason || query.run || query.until;
  return h(Fragment, null,
    h(Filters, { query, go }),
    h(Pending, { data, error }),
    data !== null && (data.checkpoints.length === 0
      ? h(Muted, null, filtered ? say.noneLikeThat : query.before ? say.noneOlder : say.none)
      : h(Rows, {
        name: pipeline.name, title: pipeline.name, checkpoints: data.checkpoints,
        only: (each) => go({ of: each.dag_id, run: each.run_id, map: each.map_index >= 0 ? each.map_index : "", before: "" }),
      })),
    data !== null && h(HStack, { paddingY: "3", gap: "2" },
      query.before && h(ActionButton, { onClick: () => go({ before: "" }) }, say.newest),
      h(ActionButton, { disabled: last <= 1 || data.checkpoints.length < 20, onClick: () => go({ before: last }) }, say.older)));
}
