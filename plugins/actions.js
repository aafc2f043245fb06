// Acts on a pipeline. The page does none of them: it starts a run of a DAG ([airflow_ft] maintenance_dags) by Airflow's
// own API, so Airflow says whether this user may, and its audit log who did.
import { ask, wordsOf } from "./asking.js";
import { ActionButton, ERROR, Field, Link, Muted, Problem } from "./parts.js";
import { when } from "./times.js";
import { fill, actions as say } from "./words.js";

const { createElement: h, Fragment, useEffect, useId, useRef, useState } = globalThis.React;
const { Box, Button, Heading, HStack, Text } = globalThis.ChakraUI;

/**
 * A run of a DAG, as Airflow reports it.
 * @typedef {{ dag_id: string, dag_run_id: string, state: string, run_after: string, conf: Record<string, unknown> | null }} Run
 */

/**
 * Ids of runs by action and what it acts on, until an answer shows that the run exists. A lost answer leads to another
 * try with the same id, also from a dialog that was opened again meanwhile.
 * @type {Map<string, string>}
 */
const wanted = new Map();

/** @type {(id: string, rest: string) => string} */
const dagPath = (id, rest) => `api/v2/dags/${encodeURIComponent(id)}${rest}`;
/** @param {Run} run */
const runPage = (run) => `dags/${encodeURIComponent(run.dag_id)}/runs/${encodeURIComponent(run.dag_run_id)}`;
/** The id of a new run, in the form of Airflow's own ids. */
const newRunId = () => `manual__${new Date().toISOString()}_${Math.random().toString(36).slice(2)}`;
/** @param {unknown} problem */
const statusOf = (problem) => (problem instanceof Error && "status" in problem ? Number(problem.status) : 0);
/**
 * What a run has got, where it differs from what was sent.
 * @type {(run: Run, sent: Record<string, unknown>) => string}
 */
const otherThan = (run, sent) => [...new Set([...Object.keys(sent), ...Object.keys(run.conf ?? {})])]
  .filter((name) => JSON.stringify(sent[name]) !== JSON.stringify(run.conf?.[name]))
  .map((name) => `${name}: ${JSON.stringify(run.conf?.[name]) ?? say.absent}`).join(", ");
/** @param {Run | null} run */
const over = (run) => run !== null && ["success", "failed"].includes(run.state);

/**
 * Whether the user may do anything at all.
 * @param {Opened} pipeline
 */
export const hasActions = (pipeline) => Object.keys(pipeline.actions).length > 0;

/** @type {Record<Schemas["Hindrance"], (id: string) => ReactNode>} */
const HINDRANCES = {
  MISSING: (id) => h(Muted, null, fill(say.missing, { id }),
    h("code", null, "from airflow_ft.example_dags.airflow_ft_maintenance import dag")),
  FORBIDDEN: (id) => h(Muted, null, fill(say.forbidden, { id })),
  UNSUITABLE: (id) => h(Problem, null, fill(say.unsuitable, { id })),
  PAUSED: (id) => h(Muted, null, say.paused, h(Link, { to: `dags/${encodeURIComponent(id)}` }, id), "."),
};

/**
 * Why the user may do nothing.
 * @param {{ pipeline: Opened }} props
 */
function Hindrance({ pipeline }) {
  const [first] = pipeline.hindered;
  return hasActions(pipeline) || !first ? null : HINDRANCES[first.why](first.dag);
}

/**
 * A button, what it asks before it starts a run, and what has become of that. `conf` are the run's parameters beside
 * the pipeline. An action that the user may not do is not shown. `hidden`: show only its outcome.
 * @type {Part<{
 *   pipeline: Opened, label: string, of?: string, title?: string, conf: Params,
 *   disabled?: boolean, hidden?: boolean, onDone?: () => void, danger?: boolean, reasoned?: boolean,
 * }>}
 */
export function RunAction({ pipeline, label, of = pipeline.name, title, conf, children, disabled, hidden = false, onDone, danger, reasoned = false }) {
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [reason, setReason] = useState("");
  const [error, setError] = useState("");
  const [notice, setNotice] = useState("");
  const [run, setRun] = useState(/** @type {Run | null} */ (null));
  const done = useRef(onDone);
  done.current = onDone;
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const id = useId();
  const dag = pipeline.actions[conf.action] ?? null;
  const ended = over(run);
  // The browser's own: it keeps the focus inside, gives it back, and ends with Escape.
  useEffect(() => { if (open) dialog.current?.showModal(); else dialog.current?.close(); }, [open]);
  useEffect(() => {
    if (!run || ended) return undefined;
    const path = dagPath(run.dag_id, `/dagRuns/${encodeURIComponent(run.dag_run_id)}`);
    const timer = setInterval(() => ask(path).then((now) => {
      setError("");
      setRun(now);
      if (over(now)) done.current?.();
    }, (problem) => setError(wordsOf(problem))), 2000);
    return () => clearInterval(timer);
  }, [run?.dag_run_id, ended]);
  /** @param {string} by */
  async function start(by) {
    setBusy(true);
    setError("");
    setNotice("");
    const key = JSON.stringify([pipeline.name, conf.action, conf.checkpoint, conf.savepoint]);
    const runId = wanted.get(key) ?? newRunId();
    wanted.set(key, runId);
    const runs = dagPath(by, "/dagRuns");
    const sent = { pipeline: pipeline.name, ...conf, ...(reason.trim() && { reason: reason.trim() }) };
    try {
      const started = await ask(runs, { dag_run_id: runId, logical_date: null, conf: sent }).catch(async (problem) => {
        if (statusOf(problem) !== 409) throw problem;
        const earlier = await ask(`${runs}/${encodeURIComponent(runId)}`);
        const other = otherThan(earlier, sent);
        setNotice(fill(other ? say.earlierOther : say.earlier, { at: when(earlier.run_after), other }));
        return earlier;
      });
      wanted.delete(key);
      setRun(started);
      setOpen(false);
      if (over(started)) done.current?.();
    } catch (problem) {
      const status = statusOf(problem);
      if (status === 403) setError(fill(say.refused, { by, problem: wordsOf(problem) }));
      else setError(status >= 400 && status < 500 ? wordsOf(problem) : `${wordsOf(problem)}\n${fill(say.lost, { by })}`);
    } finally {
      setBusy(false);
    }
  }
  if ((dag === null || hidden) && run === null) return null;
  return h(Box, null,
    !hidden && h(ActionButton, { disabled: disabled || dag === null || (run !== null && !ended), onClick: () => { setError(""); setOpen(true); } }, label),
    run && h(Text, { as: "span", role: "status", fontSize: "sm", marginLeft: "2", color: run.state === "failed" ? ERROR : undefined },
      `${run.state}: `, h(Link, { to: runPage(run) }, run.state === "failed" ? say.failed : run.dag_run_id)),
    run && notice && h(Problem, null, notice),
    !open && error && h(Problem, null, error),
    h(Box, {
      as: "dialog", ref: dialog, role: "alertdialog", "aria-labelledby": id, onClose: () => setOpen(false),
      bg: "bg.panel", color: "fg", borderWidth: "1px", borderColor: "border", borderRadius: "md", padding: "5",
      margin: "auto", width: "40rem", maxWidth: "90vw", whiteSpace: "normal", textAlign: "left",
      _backdrop: { bg: "blackAlpha.600" },
    }, open && h(Box, { display: "flex", flexDirection: "column", gap: "3", overflowWrap: "anywhere" },
      h(Heading, { id, size: "md" }, title ?? fill(say.asks, { label, of })),
      children,
      reasoned && h(Field, { label: say.reason, hint: say.reasonHint, value: reason, onChange: (/** @type {any} */ event) => setReason(event.target.value) }),
      h(Muted, null, fill(say.startsRun, { dag })),
      error && h(Problem, null, error),
      h(HStack, { gap: "2", justifyContent: "end" },
        h(Button, { size: "sm", variant: "outline", onClick: () => setOpen(false) }, say.cancel),
        h(Button, { size: "sm", colorPalette: danger ? "red" : "blue", loading: busy, onClick: () => dag !== null && start(dag) }, label)))));
}

/** @type {Part<{}>} */
const Says = ({ children }) => h(Text, { whiteSpace: "pre-line" }, children);

/**
 * On the pipeline as a whole: what its state calls for first.
 * @param {{ pipeline: Opened, reload: () => void }} props
 */
export function Actions({ pipeline, reload }) {
  const { halt } = pipeline;
  /** @type {(action: string, label: string, says: string, danger?: boolean) => ReactNode} */
  const button = (action, label, says, danger = false) => h(RunAction, {
    key: action, pipeline, label, conf: { action, ...(action === "resume" && halt && { halt_reason: halt.reason }) },
    hidden: !pipeline.fitting.includes(action), onDone: reload, danger, reasoned: true,
  }, h(Says, null, says));
  return h(Fragment, null,
    h(Hindrance, { pipeline }),
    h(HStack, { gap: "2", flexWrap: "wrap", paddingBottom: "3", alignItems: "start", role: "group", "aria-label": say.actions },
      button("resume", say.resume, fill(say.resumeSays, { why: pipeline.description }), true),
      button("retire", say.retire, say.retireSays),
      button("recover", say.recover, say.recoverSays),
      button("stop", say.stop, say.stopSays),
      button("stop_now", say.stopNow, say.stopNowSays, true),
      button("drain", say.drain, say.drainSays, true),
      button("rewind", say.rewind, say.rewindSays, true),
      button("reset_state", say.resetState, say.resetStateSays, true),
      button("verify", say.verify, say.verifySays),
      button("doctor", say.examine, say.examineSays)));
}

/**
 * On one checkpoint that is open.
 * @param {{ pipeline: Opened, checkpoint: Schemas["CheckpointOpen"], reload: () => void }} props
 */
export function Settle({ pipeline, checkpoint, reload }) {
  const [again, setAgain] = useState(false);
  const { number, state } = checkpoint;
  const of = fill(say.checkpoint, { number, state, rows: checkpoint.rows.toLocaleString("en") });
  /** @type {(action: string, label: string, says: string, conf?: object, more?: ReactNode) => ReactNode} */
  const button = (action, label, says, conf = {}, more = null) => h(RunAction, {
    key: action, pipeline, label, of, conf: { action, checkpoint: number, ...conf }, onDone: reload, danger: true, reasoned: true,
    hidden: !checkpoint.fitting.includes(action),
  }, h(Says, null, says), more);
  return h(HStack, { gap: "1", flexWrap: "wrap", alignItems: "start" },
    button("commit", say.deliver, say.deliverSays),
    button("abort", say.abort, say.abortSays, { rewind: again },
      h("label", null, h("input", {
        type: "checkbox", checked: again, onChange: (event) => setAgain(event.target.checked), style: { marginRight: "8px" },
      }), say.abortRewinds)),
    button("quarantine", say.quarantine, say.quarantineSays),
    button("redeliver", say.redeliver, say.redeliverSays),
    button("dead_letter", say.setRowsAside, say.setRowsAsideSays));
}
