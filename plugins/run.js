// The checkpoints of a DAG run, by pipeline.
import { pipelinePage, route, useAnswer } from "./asking.js";
import { Rows } from "./history.js";
import { Link, Muted, Pending } from "./parts.js";
import { run as say } from "./words.js";

const { createElement: h, Fragment } = globalThis.React;
const { Box, Heading } = globalThis.ChakraUI;

/**
 * For a task of a pipeline, only that pipeline (its id begins with the name). `mapIndex`: only this index of a group.
 * @param {{ dagId: string, runId: string, taskId?: string, mapIndex?: string }} props
 */
export function OfRun({ dagId, runId, taskId = "", mapIndex = "-1" }) {
  const { data, error } = useAnswer(route("/v1/runs", {}, { dag: dagId, run: runId }), { live: true });
  if (data === null) return h(Pending, { data, error });
  const all = data.pipelines.filter((each) => Number(mapIndex) < 0 || each.map_index === Number(mapIndex));
  const own = all.filter((each) => taskId.startsWith(`${each.name}.`));
  const made = (own.length > 0 ? own : all).filter((each) => each.checkpoints.length > 0);
  return h(Fragment, null,
    h(Pending, { data, error }),
    made.length === 0 && h(Muted, null, say.noCheckpoint),
    made.map(({ name, map_index: index, checkpoints }) => {
      const title = index >= 0 ? `${name} [${index}]` : name;
      return h(Box, { key: title, marginBottom: "6" },
        h(Heading, { size: "md", as: "h2", marginBottom: "2" }, h(Link, { to: pipelinePage(name) }, title)),
        h(Rows, { name, title, checkpoints }));
    }));
}
