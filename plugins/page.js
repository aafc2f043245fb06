// The page "Checkpoints" of Airflow's UI, which takes the component from `globalThis.AirflowPlugin`; see parts.js.
import { OfRun } from "./history.js";
import { Pipeline } from "./pipeline.js";
import { Pipelines } from "./pipelines.js";

const { createElement: h, useEffect, useState } = globalThis.React;
const { Box, Heading } = globalThis.ChakraUI;

// What is shown is said by the address, so that it can be sent to others, and the browser's buttons lead back.
const asked = () => Object.fromEntries(new URLSearchParams(window.location.search));

// On the tab of a DAG, of its run or of a task instance, Airflow tells which.
function Checkpoints({ dagId, runId, mapIndex }) {
  const [query, setQuery] = useState(asked);
  useEffect(() => {
    const back = () => setQuery(asked());
    window.addEventListener("popstate", back);
    return () => window.removeEventListener("popstate", back);
  }, []);
  function go(changes, instead = false) {
    const wanted = Object.entries({ ...asked(), ...changes }).filter(([, value]) => value !== "");
    const address = `${window.location.pathname}${wanted.length ? "?" : ""}${new URLSearchParams(wanted)}`;
    window.history[instead ? "replaceState" : "pushState"](window.history.state, "", address);
    setQuery(asked());
  }
  return h(Box, { padding: { base: "3", md: "6" }, color: "fg", overflowY: "auto", height: "100%" },
    !dagId && h(Heading, { size: "xl", as: "h1", marginBottom: "4" }, "Checkpoints"),
    runId ? h(OfRun, { dagId, runId, mapIndex })
      : query.pipeline ? h(Pipeline, { key: query.pipeline, query, go })
        : h(Pipelines, { query, go, dag: dagId }));
}

globalThis.AirflowPlugin = Checkpoints;
