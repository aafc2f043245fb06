// A pipeline's savepoints, their details, and the actions on them.
import { hasActions, RunAction } from "./actions.js";
import { route, useAnswer } from "./asking.js";
import { ActionButton, bytes, cell, Choice, Code, count, ERROR, Field, line, Muted, numeric, Pending, Problem, Table, wide } from "./parts.js";
import { when } from "./times.js";
import { fill, savepoints as say } from "./words.js";

const { createElement: h, Fragment, useId, useState } = globalThis.React;
const { Badge, Box, HStack, Text } = globalThis.ChakraUI;

const SAVEPOINTS = "/v1/pipelines/{name}/savepoints";
const LATER = [
  ["refuse", say.laterRefuse],
  ["continue", say.laterContinue],
  ["write-again", say.laterWriteAgain],
];

/** @param {{ pipeline: string, name: string }} props */
function Details({ pipeline, name }) {
  const { data, error } = useAnswer(route(`${SAVEPOINTS}/{folder}`, { name: pipeline, folder: name }));
  if (data === null) return h(Pending, { data, error });
  const rows = Object.entries(data.rows).map(([sink, n]) => `${sink} ${count(n)}`).join(", ");
  return h(Box, { fontSize: "sm", display: "flex", flexDirection: "column", gap: "1" },
    data.problem ? h(Problem, null, data.problem) : h(Muted, null,
      fill(say.complete, { files: data.files, bytes: bytes(data.bytes) })),
    h(Text, { overflowWrap: "anywhere" }, fill(say.folder, { uri: data.uri })),
    h(Text, null, fill(say.checkpointAndBatch, { checkpoint: data.checkpoint, batch: data.batch, drained: data.drained ? say.drained : "" })),
    data.job && h(Text, { overflowWrap: "anywhere" }, fill(say.job, { job: data.job })),
    h(Text, null, fill(say.versions, { versions: Object.entries(data.versions).map(([each, version]) => `${each} ${version}`).join(", ") })),
    rows && h(Text, null, fill(say.rowsOfTheCheckpoint, { rows })),
    Object.entries(data.positions).map(([source, position]) =>
      h(Box, { key: source }, fill(say.positionOf, { source }), h(Code, null, JSON.stringify(position)))),
    data.operators.length > 0 && h(Text, null, fill(say.stateBackend, { backend: data.backend })),
    data.operators.length > 0 && h(Table, {
      caption: fill(say.operatorsIn, { name }), head: [say.operator, say.name, say.state, say.partitions, say.size], right: [say.partitions, say.size],
    }, data.operators.map((operator) => line({ key: operator.id },
      h("td", { style: cell }, operator.id),
      h("td", { style: wide }, operator.uid ? `${operator.uid} (${operator.name})` : operator.name),
      h("td", { style: wide }, Object.entries(operator.states ?? {}).map(([state, types]) =>
        h(Text, { key: state }, types ? `${state}: ${types}` : state))),
      h("td", { style: numeric }, operator.partitions),
      h("td", { style: numeric }, bytes(operator.bytes))))));
}

/** @param {{ pipeline: Opened, savepoint: Savepoint, reload: () => void }} props */
function Restore({ pipeline, savepoint, reload }) {
  const [later, setLater] = useState("refuse");
  const [leave, setLeave] = useState(false);
  const [typed, setTyped] = useState("");
  const to = typed.trim();
  const { name } = pipeline;
  const { checkpoint } = savepoint;
  const first = checkpoint + 1;
  const after = pipeline.confirmed >= first
    ? fill(say.deliveredAfter, { first, confirmed: pipeline.confirmed }) : say.nothingAfter;
  return h(RunAction, {
    pipeline, onDone: reload, label: say.restore, danger: true,
    title: fill(say.restoreTitle, { name, checkpoint }),
    conf: {
      action: "restore", savepoint: savepoint.uri, savepoint_claim_mode: "NO_CLAIM", allow_non_restored_state: leave,
      ...(to ? { pipeline: to, savepoint_rename: true } : { savepoint_later: later }),
    },
  },
    h(Text, null, fill(say.restoreSays, { name: to || name, taken_at: when(savepoint.taken_at), after })),
    to ? h(Text, null, fill(say.renameSays, { name, to }))
      : h(Choice, { label: say.later, width: "100%", value: later, onChange: setLater, options: LATER }),
    h(Field, { label: say.newName, hint: fill(say.newNameHint, { name }), value: typed,
      onChange: (/** @type {any} */ event) => setTyped(event.target.value) }),
    h("label", null, h("input", {
      type: "checkbox", checked: leave, onChange: (event) => setLeave(event.currentTarget.checked), style: { marginRight: "8px" },
    }), say.leaveState));
}

/** @param {{ pipeline: Opened, savepoint: Savepoint | Schemas["SavepointDamaged"], reload: () => void }} props */
function Row({ pipeline, savepoint, reload }) {
  const [open, setOpen] = useState(false);
  const id = useId();
  if (!savepoint.readable) {
    return line(null,
      h("td", { style: wide }, savepoint.name, " ", h(Badge, { colorPalette: "red", variant: "subtle" }, say.notUsable)),
      h("td", { style: wide, colSpan: 5 }, h(Text, { color: ERROR, fontSize: "sm" }, savepoint.problem)));
  }
  return h(Fragment, null,
    line(null,
      h("td", { style: wide }, h("button", {
        type: "button", "aria-expanded": open, "aria-controls": id, onClick: () => setOpen(!open),
        "aria-label": fill(say.detailsOf, { name: savepoint.name }), style: { textAlign: "left", cursor: "pointer" },
      }, `${open ? "▾" : "▸"} ${savepoint.name}`)),
      h("td", { style: numeric }, savepoint.checkpoint),
      h("td", { style: cell }, when(savepoint.taken_at)),
      h("td", { style: wide }, savepoint.taken_by),
      h("td", { style: numeric }, bytes(savepoint.bytes)),
      hasActions(pipeline) && h("td", { style: cell }, h(HStack, { gap: "2", flexWrap: "wrap" },
        h(Restore, { pipeline, savepoint, reload }),
        h(RunAction, {
          pipeline, onDone: reload, label: say.delete, danger: true, title: fill(say.deleteTitle, { name: savepoint.name }),
          conf: { action: "dispose", savepoint: savepoint.uri },
        }, h(Text, null, fill(say.deleteSays, { uri: savepoint.uri })))))),
    h("tr", { id, hidden: !open }, open && h("td", { colSpan: 6, style: { padding: "0 12px 8px 32px" } },
      h(Details, { pipeline: pipeline.name, name: savepoint.name }))));
}

/** @param {{ pipeline: Opened, data: Schemas["Savepoints"], reload: () => void }} props */
function Take({ pipeline, data, reload }) {
  const [chosen, setChosen] = useState("");
  const options = [["", say.newest],
    ...data.checkpoints.map(({ number, at }) => [String(number), fill(say.checkpointAt, { number, at: when(at) })])];
  return h(HStack, { gap: "3", flexWrap: "wrap", alignItems: "end", paddingBottom: "2" },
    h(Choice, { label: say.checkpoint, value: chosen, onChange: setChosen, options }),
    h(RunAction, {
      pipeline, disabled: !data.checkpoints.length, onDone: reload, label: say.take,
      conf: { action: "savepoint", ...(chosen && { checkpoint: Number(chosen) }) },
    }, h(Text, null, fill(say.takeSays, { which: chosen ? fill(say.ofCheckpoint, { chosen }) : say.ofNewest, folder: data.folder }))),
    h(RunAction, {
      pipeline, hidden: !pipeline.fitting.includes("stop_with_savepoint"), onDone: reload, label: say.stop, danger: true,
      conf: { action: "stop_with_savepoint" },
    }, h(Text, null, say.stopSays)),
    h(RunAction, {
      pipeline, hidden: !pipeline.fitting.includes("drain_with_savepoint"), onDone: reload, label: say.drain, danger: true,
      conf: { action: "drain_with_savepoint" },
    }, h(Text, null, say.drainSays)));
}

/** @param {{ pipeline: Opened }} props */
export function Savepoints({ pipeline }) {
  const { data, error, loading, reload } = useAnswer(route(SAVEPOINTS, { name: pipeline.name }));
  const pending = h(Fragment, null, h(Pending, { data, error }), error && h(ActionButton, { onClick: reload }, say.tryAgain));
  if (data === null) return pending;
  return h(Box, null,
    pending,
    h(HStack, { gap: "3", flexWrap: "wrap", paddingBottom: "2" },
      h(Muted, { overflowWrap: "anywhere" }, fill(say.inFolder, { folder: data.folder })),
      h(ActionButton, { onClick: reload, loading }, say.lookAgain)),
    hasActions(pipeline) && h(Take, { pipeline, data, reload }),
    data.savepoints.length === 0
      ? h(Muted, null, fill(say.none, { name: pipeline.name }))
      : h(Table, {
        caption: fill(say.savepointsOf, { name: pipeline.name }), head: [say.savepoint, say.checkpoint, say.taken, say.by, say.size, ...(hasActions(pipeline) ? [say.actions] : [])],
        right: [say.checkpoint, say.size],
      }, data.savepoints.map((savepoint) =>
        h(Row, { key: savepoint.name, pipeline, savepoint, reload }))),
    data.left_out > 0 && h(Muted, null, fill(say.leftOut, { left_out: data.left_out })));
}
