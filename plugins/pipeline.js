// One pipeline: its status, and tabs with the details.
import { Actions } from "./actions.js";
import { route, useAnswer } from "./asking.js";
import { Charts, Summary } from "./charts.js";
import { Configuration, Job } from "./job.js";
import { History, UNFILTERED } from "./history.js";
import { Overview } from "./overview.js";
import { ActionButton, ERROR, LOOK, Muted, Pending, URGENT, words } from "./parts.js";
import { Savepoints } from "./savepoints.js";
import { OperatorState } from "./state.js";
import { fill, pipeline as say } from "./words.js";

const { createElement: h, Fragment } = globalThis.React;
const { Badge, Box, Heading, HStack, Tabs, Text } = globalThis.ChakraUI;

/** @typedef {{ pipeline: Opened, query: Query, go: Go, reload: () => void }} Tab */

/** @type {[string, string, Part<Tab>][]} */
const TABS = [
  ["overview", say.overview, Overview], ["history", say.history, History], ["summary", say.summary, Summary],
  ["charts", say.charts, Charts], ["state", say.state, OperatorState], ["savepoints", say.savepoints, Savepoints],
  ["configuration", say.configuration, Configuration], ["job", say.job, Job],
];

/** @param {{ pipeline: Opened }} props */
function Standing({ pipeline }) {
  const urgent = URGENT.includes(pipeline.condition);
  return h(Box, { paddingBottom: "3" },
    h(HStack, { gap: "3", flexWrap: "wrap" },
      h(Heading, { size: "lg", as: "h2", overflowWrap: "anywhere" }, pipeline.name),
      h(Badge, { colorPalette: LOOK[pipeline.condition], variant: urgent ? "solid" : "subtle" }, words(pipeline.condition)),
      h(Muted, null, pipeline.confirmed ? fill(say.confirmedUpTo, { confirmed: pipeline.confirmed }) : say.nothingConfirmed),
      pipeline.at_work && h(Muted, null, fill(say.atWork, { at_work: pipeline.at_work })),
      pipeline.doing.map((text) => h(Muted, { key: text }, text))),
    (urgent || pipeline.condition === "RENAMED") &&
      h(Text, { color: urgent ? ERROR : undefined, paddingTop: "1", overflowWrap: "anywhere", whiteSpace: "pre-line" }, pipeline.description));
}

/** @param {Tab} props */
function Tabbed({ pipeline, query, go, reload }) {
  const chosen = TABS.some(([key]) => key === query.tab) ? query.tab : "overview";
  return h(Fragment, null,
    h(Standing, { pipeline }),
    h(Actions, { pipeline, reload }),
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
    !alone && h(ActionButton, { onClick: () => go({ pipeline: "", tab: "", ...UNFILTERED }), marginBottom: "4" }, say.allPipelines),
    h(Pending, { data, error }),
    data !== null && h(Tabbed, { pipeline: data, query, go, reload }));
}
