// What the operators of a pipeline know of a key, as of a confirmed checkpoint.
import { ask, route, useAnswer, wordsOf } from "./asking.js";
import { ActionButton, bytes, Choice, Code, ERROR, Field, line, Muted, numeric, Pending, Problem, Table, wide, cell } from "./parts.js";
import { when } from "./times.js";
import { fill, state as say } from "./words.js";

const { createElement: h, useState } = globalThis.React;
const { Box, HStack, Text } = globalThis.ChakraUI;

const STATE = "/v1/pipelines/{name}/state";

/** @param {Schemas["Column"][]} each */
const columns = (each) => each.map(({ name, type }) => `${name} ${type}`).join(", ");
/** @param {Schemas["StatefulOperator"]} operator */
const known = (operator) => operator.uid || operator.name;

/** @param {{ data: Schemas["Operators"] }} props */
const Operators = ({ data }) =>
  h(Table, {
    caption: say.operators, head: [say.operator, say.state, say.kind, say.key, say.value, say.partitions, say.size], right: [say.partitions, say.size],
  }, data.operators.flatMap((operator) => (operator.states.length ? operator.states : [null]).map((state, index) =>
    line({ key: `${operator.id} ${index}` },
      h("td", { style: wide }, index ? "" : `${operator.id} ${known(operator)}`),
      state ? [
        h("td", { key: 1, style: wide }, state.name),
        h("td", { key: 2, style: cell }, state.ttl ? fill(say.withTtl, { kind: state.kind }) : state.kind),
        h("td", { key: 3, style: wide }, columns(state.key)),
        h("td", { key: 4, style: wide }, columns(state.value)),
      ] : h("td", { style: wide, colSpan: 4 }, operator.problem
        ? h(Text, { color: ERROR, fontSize: "sm" }, operator.problem) : h(Muted, null, say.noState)),
      h("td", { style: numeric }, index ? "" : operator.partitions),
      h("td", { style: numeric }, index ? "" : bytes(operator.bytes))))));

/** @param {{ state: Schemas["Found"] }} props */
function Entries({ state }) {
  const several = state.entries.some((entry) => entry.at);
  const expires = state.entries.some((entry) => entry.expires);
  const head = [...(several ? [say.at] : []), say.value, ...(expires ? [say.expires] : [])];
  return h(Box, { paddingTop: "2" },
    h(Text, { fontSize: "sm" }, `${state.name} (${state.kind})`),
    h(Table, { caption: fill(say.valuesIn, { name: state.name }), head },
      state.entries.map((entry, index) => line({ key: index },
        several && h("td", { style: wide }, h(Code, null, JSON.stringify(entry.at))),
        h("td", { style: wide }, h(Code, null, JSON.stringify(entry.value, null, 2))),
        expires && h("td", { style: cell }, entry.expires ? when(entry.expires) : say.never)))),
    state.cut && h(Muted, null, fill(say.cut, { count: state.entries.length })));
}

/** @param {{ name: string, data: Schemas["Operators"], at: string }} props */
function LookUp({ name, data, at }) {
  const able = data.operators.filter((operator) => operator.states.length);
  const [chosen, setChosen] = useState(String(able[0].id));
  const [state, setState] = useState("");
  const [key, setKey] = useState(/** @type {Record<string, string>} */ ({}));
  const [found, setFound] = useState(/** @type {Schemas["LookedUp"] | null} */ (null));
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const operator = able.find((each) => String(each.id) === chosen) ?? able[0];
  const parts = (operator.states.find((each) => each.name === state) ?? operator.states[0]).key;
  const hidden = parts.filter((part) => !part.example);
  const forget = () => { setFound(null); setError(""); };
  /** @param {SubmitEvent} event */
  async function submit(event) {
    event.preventDefault();
    setBusy(true);
    try {
      const question = { operator: String(operator.id), key: parts.map((part) => key[part.name] ?? ""), state: state || null };
      forget();
      setFound(await ask(route(STATE, { name }), at ? { ...question, at: Number(at) } : question));
    } catch (problem) {
      setError(wordsOf(problem));
    } finally {
      setBusy(false);
    }
  }
  /** @type {(set: (value: string) => void) => (value: string) => void} */
  const change = (set) => (value) => { set(value); forget(); };
  return h(Box, { as: "form", onSubmit: submit, paddingTop: "3" },
    h(HStack, { gap: "3", flexWrap: "wrap", alignItems: "start" },
      able.length > 1 && h(Choice, {
        label: say.operator, value: chosen, onChange: change((value) => { setChosen(value); setState(""); }),
        options: able.map((each) => [String(each.id), `${each.id} ${known(each)}`]),
      }),
      operator.states.length > 1 && h(Choice, {
        label: say.state, value: state, onChange: change(setState),
        options: [["", say.allStates], ...operator.states.map((each) => [each.name, each.name])],
      }),
      parts.map((part) => h(Field, {
        key: part.name, label: fill(say.keyField, { name: part.name }), hint: fill(say.keyHint, { type: part.type, example: part.example ? fill(say.example, { example: part.example }) : "" }),
        value: key[part.name] ?? "", onChange: (/** @type {any} */ event) => { setKey({ ...key, [part.name]: event.target.value }); forget(); },
      })),
      h(ActionButton, { type: "submit", size: "sm", marginTop: "6", loading: busy, disabled: hidden.length > 0 }, say.lookUp)),
    hidden.length > 0 && h(Muted, null, fill(say.keyHidden, { columns: columns(hidden) })),
    h(Box, { "aria-live": "polite" },
      error && h(Problem, null, error),
      found !== null && found.states.length === 0 && h(Text, { paddingTop: "2" },
        fill(say.unknownKey, { checkpoint: found.checkpoint })),
      found !== null && found.states.length > 0 && h(Muted, { paddingTop: "2" }, fill(say.asOfCheckpoint, { checkpoint: found.checkpoint })),
      found?.states.map((each) => h(Entries, { key: each.name, state: each }))));
}

/** @param {{ pipeline: Opened }} props */
export function OperatorState({ pipeline }) {
  const [at, setAt] = useState("");
  const { data, error, loading, reload } = useAnswer(route(STATE, { name: pipeline.name }, { at: Number(at) || null }));
  const again = h(ActionButton, { onClick: () => { setAt(""); reload(); }, loading }, say.lookAgain);
  if (error || data === null) return h(Box, null, h(Pending, { data: null, error }), error && again);
  return h(Box, null,
    h(HStack, { gap: "3", flexWrap: "wrap", alignItems: "end", paddingBottom: "2" },
      h(Choice, {
        label: say.asOf, value: at, onChange: setAt,
        options: [["", say.newest], ...data.checkpoints.map((n) => [String(n), fill(say.checkpoint, { n })])],
      }),
      again,
      h(Muted, null, fill(say.shown, { checkpoint: data.checkpoint }))),
    data.operators.length === 0
      ? h(Muted, null, fill(say.none, { name: pipeline.name }))
      : h(Operators, { data }),
    data.operators.some((operator) => operator.states.length) && (data.may_look_up
      ? h(LookUp, { name: pipeline.name, data, at })
      : h(Muted, null, say.forbidden)));
}
