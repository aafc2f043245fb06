// One pipeline: how it stands, and behind tabs all that is known of it.
import { Acts } from "./acts.js";
import { route, useAnswer } from "./asking.js";
import { Charts, Summary } from "./charts.js";
import { Configuration, Job } from "./job.js";
import { History, UNFILTERED } from "./history.js";
import { Overview } from "./overview.js";
import { Act, ERROR, LOOK, Muted, Pending, URGENT, words } from "./parts.js";
import { Savepoints } from "./savepoints.js";
import { OperatorState } from "./state.js";

const { createElement: h, Fragment } = globalThis.React;
const { Badge, Box, Heading, HStack, Tabs, Text } = globalThis.ChakraUI;

/** @typedef {{ pipeline: Opened, query: Query, go: Go, reload: () => void }} Tab */

/** @type {[string, string, Part<Tab>][]} */
const TABS = [
  ["overview", "Overview", Overview], ["history", "History", History], ["summary", "Summary", Summary],
  ["charts", "Charts", Charts], ["state", "State", OperatorState], ["savepoints", "Savepoints", Savepoints],
  ["configuration", "Configuration", Configuration], ["job", "Job", Job],
];

/** @param {{ pipeline: Opened }} props */
function Standing({ pipeline }) {
  const urgent = URGENT.includes(pipeline.condition);
  return h(Box, { paddingBottom: "3" },
    h(HStack, { gap: "3", flexWrap: "wrap" },
      h(Heading, { size: "lg", as: "h2", overflowWrap: "anywhere" }, pipeline.name),
      h(Badge, { colorPalette: LOOK[pipeline.condition], variant: urgent ? "solid" : "subtle" }, words(pipeline.condition)),
      h(Muted, null, pipeline.confirmed ? `confirmed up to checkpoint ${pipeline.confirmed}` : "nothing confirmed yet"),
      pipeline.at_work && h(Muted, null, `at work: ${pipeline.at_work}`),
      pipeline.doing.map((text) => h(Muted, { key: text }, text))),
    urgent && h(Text, { color: ERROR, paddingTop: "1", overflowWrap: "anywhere" }, pipeline.told));
}

/** @param {Tab} props */
function Tabbed({ pipeline, query, go, reload }) {
  const chosen = TABS.some(([key]) => key === query.tab) ? query.tab : "overview";
  return h(Fragment, null,
    h(Standing, { pipeline }),
    h(Acts, { pipeline, reload }),
    h(Tabs.Root, {
      value: chosen, lazyMount: true, unmountOnExit: true, size: "sm",
      onValueChange: (/** @type {{ value: string }} */ { value }) => go({ tab: value === "overview" ? "" : value, ...UNFILTERED }),
    },
      h(Tabs.List, { flexWrap: "wrap" }, TABS.map(([key, title]) => h(Tabs.Trigger, { key, value: key }, title))),
      TABS.map(([key, , Part]) =>
        h(Tabs.Content, { key, value: key }, h(Part, { pipeline, query, go, reload })))));
}

/** @param {{ query: Query, go: Go, alone?: boolean }} props */
export function Pipeline({ query, go, alone = false }) {
  const { data, error, reload } = useAnswer(route("/v1/pipelines/{name}", { name: query.pipeline }), { live: true });
  return h(Fragment, null,
    !alone && h(Act, { onClick: () => go({ pipeline: "", tab: "", ...UNFILTERED }), marginBottom: "4" }, "← All pipelines"),
    h(Pending, { data, error }),
    data !== null && h(Tabbed, { pipeline: data, query, go, reload }));
}
