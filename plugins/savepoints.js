// A pipeline's savepoints, what each of them tells, and what can be done with them.
import { mayAct, RunAct } from "./acts.js";
import { route, useAnswer } from "./asking.js";
import { Act, bytes, cell, Choice, Code, count, ERROR, line, Muted, numeric, Pending, Problem, Table, wide } from "./parts.js";
import { when } from "./times.js";

const { createElement: h, Fragment, useId, useState } = globalThis.React;
const { Badge, Box, HStack, Text } = globalThis.ChakraUI;

const SAVEPOINTS = "/v1/pipelines/{name}/savepoints";
const LATER = [
  ["refuse", "refuse: nothing is restored while there are such"],
  ["continue", "continue: it stays, and is computed once more for the state alone"],
  ["write-again", "write-again: it is read and delivered once more"],
];

/** @param {{ pipeline: string, name: string }} props */
function Details({ pipeline, name }) {
  const { data, error } = useAnswer(route(`${SAVEPOINTS}/{folder}`, { name: pipeline, folder: name }));
  if (data === null) return h(Pending, { data, error });
  const rows = Object.entries(data.rows).map(([sink, n]) => `${sink} ${count(n)}`).join(", ");
  return h(Box, { fontSize: "sm", display: "flex", flexDirection: "column", gap: "1" },
    data.problem ? h(Problem, null, data.problem) : h(Muted, null,
      `${data.files} files, ${bytes(data.bytes)}; all are there in their size. \`airflow ft savepoint show\` reads what is in them.`),
    h(Text, { overflowWrap: "anywhere" }, `Folder: ${data.uri}`),
    h(Text, null, `Checkpoint ${data.checkpoint}, Spark's micro-batch ${data.batch}${data.drained ? ", drained" : ""}`),
    data.job && h(Text, { overflowWrap: "anywhere" }, `Job: ${data.job}${data.sha256 ? `, source ${data.sha256.slice(0, 12)}` : ""}`),
    h(Text, null, `Versions: ${Object.entries(data.versions).map(([each, version]) => `${each} ${version}`).join(", ")}`),
    rows && h(Text, null, `Rows of the checkpoint: ${rows}`),
    Object.entries(data.positions).map(([source, position]) =>
      h(Box, { key: source }, `Position of ${source}:`, h(Code, null, JSON.stringify(position)))),
    data.operators.length > 0 && h(Text, null, `State backend: ${data.backend}`),
    data.operators.length > 0 && h(Table, {
      caption: `Operators in ${name}`, head: ["Operator", "Name", "State", "Partitions", "Size"], right: ["Partitions", "Size"],
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
  const first = savepoint.checkpoint + 1;
  const after = pipeline.confirmed >= first
    ? `Checkpoints ${first} to ${pipeline.confirmed} were delivered after it.` : "Nothing was delivered after it.";
  return h(RunAct, {
    pipeline, onDone: reload, label: "Restore", danger: true,
    title: `Restore ${pipeline.name} to checkpoint ${savepoint.checkpoint}?`,
    conf: {
      action: "restore", savepoint: savepoint.uri, savepoint_later: later,
      savepoint_claim_mode: "NO_CLAIM", allow_non_restored_state: leave,
    },
  },
    h(Text, null, `The next run of ${pipeline.name} goes on from the savepoint of ${when(savepoint.taken_at)}. ${after} `
      + "It is refused while a run is at work."),
    h(Choice, { label: "What was delivered after it", width: "100%", value: later, onChange: setLater, options: LATER }),
    h("label", null, h("input", {
      type: "checkbox", checked: leave, onChange: (event) => setLeave(event.currentTarget.checked), style: { marginRight: "8px" },
    }), "The job may lack operators whose state is in it: that is left behind"));
}

/** @param {{ pipeline: Opened, savepoint: Savepoint | Schemas["SavepointDamaged"], reload: () => void }} props */
function Row({ pipeline, savepoint, reload }) {
  const [open, setOpen] = useState(false);
  const id = useId();
  if (!savepoint.readable) {
    return line(null,
      h("td", { style: wide }, savepoint.name, " ", h(Badge, { colorPalette: "red", variant: "subtle" }, "not usable")),
      h("td", { style: wide, colSpan: 5 }, h(Text, { color: ERROR, fontSize: "sm" }, savepoint.problem)));
  }
  return h(Fragment, null,
    line(null,
      h("td", { style: wide }, h("button", {
        type: "button", "aria-expanded": open, "aria-controls": id, onClick: () => setOpen(!open),
        "aria-label": `Details of ${savepoint.name}`, style: { textAlign: "left", cursor: "pointer" },
      }, `${open ? "▾" : "▸"} ${savepoint.name}`)),
      h("td", { style: numeric }, savepoint.checkpoint),
      h("td", { style: cell }, when(savepoint.taken_at)),
      h("td", { style: wide }, savepoint.taken_by),
      h("td", { style: numeric }, bytes(savepoint.bytes)),
      mayAct(pipeline) && h("td", { style: cell }, h(HStack, { gap: "2", flexWrap: "wrap" },
        h(Restore, { pipeline, savepoint, reload }),
        h(RunAct, {
          pipeline, onDone: reload, label: "Delete", danger: true, title: `Delete ${savepoint.name}?`,
          conf: { action: "dispose", savepoint: savepoint.uri },
        }, h(Text, null, `Its folder ${savepoint.uri} is deleted for good. The pipeline does not need it.`))))),
    h("tr", { id, hidden: !open }, open && h("td", { colSpan: 6, style: { padding: "0 12px 8px 32px" } },
      h(Details, { pipeline: pipeline.name, name: savepoint.name }))));
}

/** @param {{ pipeline: Opened, data: Schemas["Savepoints"], reload: () => void }} props */
function Take({ pipeline, data, reload }) {
  const [chosen, setChosen] = useState("");
  const options = [["", "the newest that is confirmed"],
    ...data.checkpoints.map(({ number, at }) => [String(number), `checkpoint ${number}, ${when(at)}`])];
  return h(HStack, { gap: "3", flexWrap: "wrap", alignItems: "end", paddingBottom: "2" },
    h(Choice, { label: "Checkpoint", value: chosen, onChange: setChosen, options }),
    h(RunAct, {
      pipeline, disabled: !data.checkpoints.length, onDone: reload, label: "Take a savepoint",
      title: `Take a savepoint of ${pipeline.name}?`,
      conf: { action: "savepoint", ...(chosen && { checkpoint: Number(chosen) }) },
    }, h(Text, null, `Positions and state of ${chosen ? `checkpoint ${chosen}` : "the newest confirmed checkpoint"} are `
      + `copied into ${data.folder}. The pipeline may run; it does not notice.`)),
    pipeline.streaming && h(RunAct, {
      pipeline, onDone: reload, label: "Stop with a savepoint", danger: true,
      title: `Stop ${pipeline.name}, and keep where it stands?`,
      conf: { action: "stop_with_savepoint" },
    }, h(Text, null, "The stream ends after the checkpoint under way, all of it delivered, and a savepoint of that is taken. "
      + "It goes on when its DAG runs again.")),
    pipeline.streaming && h(RunAct, {
      pipeline, onDone: reload, label: "Drain with a savepoint", danger: true,
      title: `Drain ${pipeline.name} for good, and keep where it stands?`,
      conf: { action: "drain_with_savepoint" },
    }, h(Text, null, "The stream ends with a checkpoint of what is still open in windows, joins and timers, and a savepoint is taken. "
      + "Going on after that, or from the savepoint, needs a choice: what was open would come once more.")));
}

/** @param {{ pipeline: Opened }} props */
export function Savepoints({ pipeline }) {
  const { data, error, loading, reload } = useAnswer(route(SAVEPOINTS, { name: pipeline.name }));
  if (error || data === null) return h(Box, null, h(Pending, { data, error }), error && h(Act, { onClick: reload }, "Try again"));
  return h(Box, null,
    h(HStack, { gap: "3", flexWrap: "wrap", paddingBottom: "2" },
      h(Muted, { overflowWrap: "anywhere" }, `In ${data.folder}`),
      h(Act, { onClick: reload, loading }, "Look again")),
    mayAct(pipeline) && h(Take, { pipeline, data, reload }),
    data.savepoints.length === 0
      ? h(Muted, null, `No savepoint of ${pipeline.name} is there yet. One keeps where the pipeline stands, to go back to it.`)
      : h(Table, {
        caption: `Savepoints of ${pipeline.name}`, head: ["Savepoint", "Checkpoint", "Taken", "By", "Size", ...(mayAct(pipeline) ? ["Acts"] : [])],
        right: ["Checkpoint", "Size"],
      }, data.savepoints.map((savepoint) =>
        h(Row, { key: savepoint.name, pipeline, savepoint, reload }))),
    data.left_out > 0 && h(Muted, null, `${data.left_out} more folders were not looked at: \`airflow ft savepoint list\`.`));
}
