// The page "Checkpoints" of Airflow's UI, which takes the component from `globalThis.AirflowPlugin`; see parts.js.
import { OfRun } from "./run.js";
import { Pipeline } from "./pipeline.js";
import { Muted } from "./parts.js";
import { Pipelines } from "./pipelines.js";
import { useZone } from "./times.js";
import { fill, page as say } from "./words.js";

const { createElement: h, useEffect } = globalThis.React;
const { useSearchParams } = globalThis.ReactRouterDOM;
const { Box, Heading } = globalThis.ChakraUI;

// What is shown is said by the address, so that it can be sent to others, and the browser's buttons lead back.
const asked = () => Object.fromEntries(new URLSearchParams(window.location.search));

// Airflow renders a component that it has just loaded inside a lazy one, and from its next rendering on without that.
// React then creates it again, and a field that somebody is typing into is gone. So that happens at once.
let isJustLoaded = true;

/**
 * On the tab of a DAG, of its run or of a task instance, Airflow names it.
 * @param {{ dagId?: string, runId?: string, taskId?: string, mapIndex?: string }} props
 */
function Checkpoints({ dagId, runId, taskId, mapIndex }) {
  const zone = useZone();
  const [params, setParams] = useSearchParams(); // Airflow's router: its menu and tabs change them, too
  const query = Object.fromEntries(params);
  useEffect(() => {
    if (isJustLoaded) setParams([...params], { replace: true });
    isJustLoaded = false;
  }, []);
  /** @type {Go} */
  function go(changes, instead = false) {
    const wanted = Object.entries({ ...asked(), ...changes }).filter(([, value]) => value !== "");
    setParams(wanted.map(([key, value]) => [key, String(value)]), { replace: instead });
  }
  return h(Box, { padding: { base: "3", md: "6" }, color: "fg", overflowY: "auto", height: "100%" },
    !dagId && h(Heading, { size: "xl", as: "h1", marginBottom: "4" }, say.checkpoints),
    dagId && runId ? h(OfRun, { dagId, runId, taskId, mapIndex })
      : query.pipeline ? h(Pipeline, { key: query.pipeline, query, go })
        : h(Pipelines, { query, go, dag: dagId }),
    h(Muted, { fontSize: "xs", paddingTop: "4" }, fill(say.zone, { zone })));
}

globalThis.AirflowPlugin = Checkpoints;
