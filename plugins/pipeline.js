// One pipeline: how it stands, and behind tabs all that is known of it.
import { Acts, useActs } from "./acts.js";
import { Charts, Summary } from "./charts.js";
import { Configuration, Job } from "./job.js";
import { History } from "./history.js";
import { Overview } from "./overview.js";
import { Act, LOOK, Muted, Pending, pipelinePath, useLive, words } from "./parts.js";
import { Savepoints } from "./savepoints.js";
import { OperatorState } from "./state.js";

const { createElement: h, Fragment } = globalThis.React;
const { Badge, Box, Heading, HStack, Tabs, Text } = globalThis.ChakraUI;

const TABS = [
  ["overview", "Overview", Overview], ["history", "History", History], ["summary", "Summary", Summary],
  ["charts", "Charts", Charts], ["state", "State", OperatorState], ["savepoints", "Savepoints", Savepoints],
  ["configuration", "Configuration", Configuration], ["job", "Job", Job],
];

function Standing({ pipeline }) {
  const urgent = ["HALTED", "QUARANTINED", "IN_DOUBT"].includes(pipeline.condition);
  return h(Box, { paddingBottom: "3" },
    h(HStack, { gap: "3", flexWrap: "wrap" },
      h(Heading, { size: "lg", as: "h2", overflowWrap: "anywhere" }, pipeline.name),
      h(Badge, { colorPalette: LOOK[pipeline.condition], variant: urgent ? "solid" : "subtle" }, words(pipeline.condition)),
      h(Muted, null, pipeline.confirmed ? `confirmed up to checkpoint ${pipeline.confirmed}` : "nothing confirmed yet"),
      pipeline.at_work && h(Muted, null, `at work: ${pipeline.at_work}`),
      pipeline.doing.map((text) => h(Muted, { key: text }, text))),
    urgent && h(Text, { color: "fg.error", paddingTop: "1", overflowWrap: "anywhere" }, pipeline.told));
}

function Opened({ pipeline, query, go, reload }) {
  const acts = useActs(pipeline);
  const chosen = TABS.some(([key]) => key === query.tab) ? query.tab : "overview";
  return h(Fragment, null,
    h(Standing, { pipeline }),
    h(Acts, { pipeline, acts, reload }),
    h(Tabs.Root, {
      value: chosen, lazyMount: true, unmountOnExit: true, size: "sm",
      onValueChange: ({ value }) => go({ tab: value === "overview" ? "" : value, before: "", only: "" }),
    },
      h(Tabs.List, { flexWrap: "wrap" }, TABS.map(([key, title]) => h(Tabs.Trigger, { key, value: key }, title))),
      TABS.map(([key, , Part]) =>
        h(Tabs.Content, { key, value: key }, h(Part, { pipeline, acts, query, go, reload })))));
}

export function Pipeline({ query, go, alone = false }) {
  const { data, error, reload } = useLive(pipelinePath(query.pipeline));
  return h(Fragment, null,
    !alone && h(Act, { onClick: () => go({ pipeline: "", tab: "", before: "", only: "" }), marginBottom: "4" }, "← All pipelines"),
    h(Pending, { data, error }),
    data !== null && h(Opened, { pipeline: data, query, go, reload }));
}
