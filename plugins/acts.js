// Acts on savepoints. The page does none of them: it starts a run of a DAG ([airflow_ft] savepoint_dag) by Airflow's
// own API, so Airflow says whether this user may, and its audit log who did.
import { Act, ask, Link, Muted, Problem } from "./parts.js";

const { createElement: h, useEffect, useId, useRef, useState } = globalThis.React;
const { Box, Button, Heading, HStack, Text } = globalThis.ChakraUI;

const NEEDED = ["pipeline", "action", "savepoint", "savepoint_later", "savepoint_claim_mode", "allow_non_restored_state"];
const dagPath = (id, rest) => `api/v2/dags/${encodeURIComponent(id)}${rest}`;
const runPage = (run) => `dags/${encodeURIComponent(run.dag_id)}/runs/${encodeURIComponent(run.dag_run_id)}`;

// Whether the DAG is there, and does what is asked of it: { ready, why }. Asked again when `seen` is another one.
export function useDag(id, seen) {
  const [found, setFound] = useState({ ready: false, why: null });
  useEffect(() => {
    let stopped = false;
    const tell = (why) => stopped || setFound({ ready: why === null, why });
    ask(dagPath(id, "/details")).then((dag) => {
      const missing = NEEDED.filter((name) => !(name in (dag.params ?? {})));
      if (missing.length) {
        tell(h(Problem, null, `The DAG ${id} ([airflow_ft] savepoint_dag) has no parameter ${missing.join(", ")}: compare it with the example airflow_ft_savepoints.`));
      } else if (dag.is_paused) {
        tell(h(Muted, null, "To act on savepoints from here, unpause ", h(Link, { to: `dags/${encodeURIComponent(id)}` }, id), "."));
      } else tell(null);
    }, (error) => tell(error.status === 404 || error.status === 403
      ? h(Muted, null, `To act on savepoints from here, there has to be a DAG ${id} that you may see and trigger. To get it, put a file with this line into Airflow's DAG folder: `,
        h("code", null, "from airflow_ft.example_dags.airflow_ft_savepoints import dag"))
      : h(Problem, null, error.message)));
    return () => { stopped = true; };
  }, [id, seen]);
  return found;
}

// A button, what it asks before it starts a run, and what has become of that. `conf` are the run's parameters.
export function RunAct({ dag, label, title, conf, children, disabled, onDone, danger }) {
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const [run, setRun] = useState(null);
  const done = useRef(onDone);
  done.current = onDone;
  const dialog = useRef(null);
  const id = useId();
  // The browser's own: it keeps the focus inside, gives it back, and ends with Escape.
  useEffect(() => { if (open) dialog.current.showModal(); else dialog.current.close(); }, [open]);
  const over = run && ["success", "failed"].includes(run.state);
  useEffect(() => {
    if (!run || over) return undefined;
    const timer = setInterval(() => ask(dagPath(dag, `/dagRuns/${encodeURIComponent(run.dag_run_id)}`)).then((now) => {
      setRun(now);
      if (["success", "failed"].includes(now.state)) done.current();
    }, (problem) => setError(problem.message)), 3000);
    return () => clearInterval(timer);
  }, [run?.dag_run_id, over]);
  async function start() {
    setBusy(true);
    setError("");
    try {
      setRun(await ask(dagPath(dag, "/dagRuns"), { logical_date: null, conf }));
      setOpen(false);
    } catch (problem) {
      setError(problem.status === 403 ? `You may not trigger the DAG ${dag}. (${problem.message})` : problem.message);
    } finally {
      setBusy(false);
    }
  }
  return h(Box, null,
    h(Act, { disabled: disabled || (run && !over), onClick: () => { setError(""); setOpen(true); } }, label),
    run && h(Text, { as: "span", role: "status", fontSize: "sm", marginLeft: "2" },
      `${run.state}: `, h(Link, { to: runPage(run) }, run.dag_run_id)),
    !open && error && h(Problem, null, error),
    h(Box, {
      as: "dialog", ref: dialog, role: "alertdialog", "aria-labelledby": id, onClose: () => setOpen(false),
      bg: "bg.panel", color: "fg", borderWidth: "1px", borderColor: "border", borderRadius: "md", padding: "5",
      margin: "auto", width: "40rem", maxWidth: "90vw", whiteSpace: "normal", textAlign: "left",
      _backdrop: { bg: "blackAlpha.600" },
    }, open && h(Box, { display: "flex", flexDirection: "column", gap: "3", overflowWrap: "anywhere" },
      h(Heading, { id, size: "md" }, title),
      children,
      h(Muted, null, `This starts a run of the DAG ${dag} in your name.`),
      error && h(Problem, null, error),
      h(HStack, { gap: "2", justifyContent: "end" },
        h(Button, { size: "sm", variant: "outline", onClick: () => setOpen(false) }, "Cancel"),
        h(Button, { size: "sm", colorPalette: danger ? "red" : "blue", loading: busy, onClick: start }, label)))));
}
