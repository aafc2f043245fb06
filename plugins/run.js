// What a DAG's run has made of its pipelines, and what one of its tasks had to do with that.
import { pipelinePage, route, useAnswer } from "./asking.js";
import { COLUMNS, elsewhere, Rows, SHOWN } from "./history.js";
import { bytes, cell, count, lasted, line, Link, Muted, Pending, Table, wide } from "./parts.js";
import { when } from "./times.js";
import { fill, run as say } from "./words.js";

const { createElement: h, Fragment } = globalThis.React;
const { Box, Heading } = globalThis.ChakraUI;

/** @typedef {import("./history.js").Shown} Shown */
/** @typedef {Schemas["RunOfPipeline"]} Made */

/**
 * The pipelines of which `part` shows something.
 * @param {{ made: Made[], part: (made: Made, title: string) => ReactNode, nothing: string }} props
 */
function Each({ made, part, nothing }) {
  return h(Fragment, null,
    made.length === 0 && h(Muted, null, nothing),
    made.map((each) => {
      const title = each.map_index >= 0 ? `${each.name} [${each.map_index}]` : each.name;
      return h(Box, { key: title, marginBottom: "6" },
        h(Heading, { size: "md", as: "h2", marginBottom: "2" }, h(Link, { to: pipelinePage(each.name) }, title)),
        part(each, title));
    }));
}

/** @type {(made: Made[], mapIndex: string) => Made[]} */
const ofIndex = (made, mapIndex) => made.filter((each) => Number(mapIndex) < 0 || each.map_index === Number(mapIndex));

/**
 * `mapIndex`: what this expansion of a mapped group has.
 * @param {{ dagId: string, runId: string, mapIndex?: string }} props
 */
export function OfRun({ dagId, runId, mapIndex = "-1" }) {
  const { data, error } = useAnswer(route("/v1/runs", {}, { dag: dagId, run: runId }), { live: true });
  if (data === null) return h(Pending, { data, error });
  return h(Fragment, null,
    h(Pending, { data, error }),
    h(Each, {
      made: ofIndex(data.pipelines, mapIndex).filter((each) => each.checkpoints.length > 0), nothing: say.noCheckpoint,
      part: ({ name, checkpoints }, title) => h(Rows, { name, title, checkpoints }),
    }));
}

/** @param {Record<string, number>} rows */
const bySink = (rows) => Object.entries(rows).map(([sink, n]) => `${sink} ${count(n)}`).join(", ");

/**
 * What a task that prepares or commits has to do with a system.
 * @type {(name: string, of: (participant: Schemas["Participant"]) => string) => (checkpoint: Checkpoint) => string}
 */
const by = (name, of) => (checkpoint) => {
  const found = checkpoint.participants.find((each) => each.name === name);
  return found ? of(found) : elsewhere(checkpoint) || say.notPlannedYet;
};

/**
 * What a task of the kind shows of each checkpoint of its run.
 * @type {Record<string, (participant: string) => Shown[]>}
 */
const PARTS = {
  stage: () => [
    [say.rowsBySink, false, (each) => bySink(each.rows_of)], SHOWN.log, SHOWN.triggered,
    [say.stagedIn, false, (each) => ("stage" in each.steps ? lasted(each.steps.stage) : "–")],
  ],
  prepare: (name) => [
    [say.sinks, false, by(name, (each) => each.sinks.join(", "))],
    [fill(say.voteOf, { name }), false, by(name, (each) => (each.prepared ? fill(say.prepared, { prepared: each.prepared }) : each.attempt ? fill(say.asked, { attempt: each.attempt }) : say.notAsked))],
    SHOWN.rows, [say.log, true, (each) => bytes(each.bytes)],
  ],
  commit: (name) => [
    [say.rowsTaken, false, by(name, (each) => bySink(each.counts) || "–")],
    [fill(say.proofOf, { name }), false, by(name, (each) => (each.proof ? `✓ ${each.outcome}` : say.noProof))],
    [say.attempt, false, by(name, (each) => (each.attempt ? count(each.attempt) : "–"))], SHOWN.ended,
  ],
  confirmed: () => [SHOWN.rows, SHOWN.sinks, SHOWN.took, SHOWN.ended],
  stream: () => COLUMNS,
};
const ROLE = /(?:^|\.)(?:(recover|stage|stream|confirmed)|(prepare|commit)\.([\w.-]+))$/;

/** @param {{ settled: Schemas["Event"][], title: string }} props */
const Settled = ({ settled, title }) => (settled.length === 0
  ? h(Muted, null, say.nothingSettled)
  : h(Table, { caption: fill(say.settledOf, { title }), head: [say.at, say.settled] }, settled.map((event, place) =>
    line({ key: place }, h("td", { style: cell }, when(event.at)), h("td", { style: wide }, event.message)))));

/**
 * The part of a task, which is known by the names that the tasks of a pipeline have; of others that of its run.
 * @param {{ dagId: string, runId: string, taskId: string, mapIndex?: string }} props
 */
export function OfTask({ dagId, runId, taskId, mapIndex = "-1" }) {
  const { data, error } = useAnswer(route("/v1/runs", {}, { dag: dagId, run: runId, task: taskId }), { live: true });
  const found = ROLE.exec(taskId);
  if (!found) return h(OfRun, { dagId, runId, mapIndex });
  if (data === null) return h(Pending, { data, error });
  const role = found[1] ?? found[2];
  const group = taskId.slice(0, found.index);
  const all = ofIndex(data.pipelines, mapIndex);
  const made = all.some((each) => each.name === group) ? all.filter((each) => each.name === group) : all;
  return h(Fragment, null,
    h(Pending, { data, error }),
    role === "recover"
      ? h(Each, { made, nothing: say.noPipeline, part: ({ settled }, title) => h(Settled, { settled, title }) })
      : h(Each, {
        made: made.filter((each) => each.checkpoints.length > 0), nothing: say.noCheckpoint,
        part: ({ name, checkpoints }, title) => h(Rows, { name, title, checkpoints, columns: PARTS[role](found[3]) }),
      }));
}
