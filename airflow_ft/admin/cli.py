"""`airflow ft ...`: the commands as Airflow's parser wants them; every start of `airflow` imports this module.

Their arguments are in `airflow_ft.admin.arguments`. What they do is in `airflow_ft.admin.commands`, which is imported
when one of them runs.
"""

from __future__ import annotations

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_YES,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

from airflow_ft.admin import arguments as arg


def _command(name: str, where: str, about: str, *args: Arg, reads_log: bool = True) -> ActionCommand:
    func = lazy_load_command(f"airflow_ft.admin.commands.{where}.{name.replace('-', '_')}")
    return ActionCommand(name=name, help=about, func=func, args=(*args, arg.STORE) if reads_log else args)


def get_ft_cli_commands() -> list[CLICommand]:
    """The group `ft`, named in `provider_info`."""
    return [
        GroupCommand(
            name="ft",
            help="Inspect and repair exactly-once pipelines",
            subcommands=(*_looking(), *_settling(), _savepoints(), _state()),
        )
    ]


def _looking() -> tuple[ActionCommand, ...]:
    return (
        _command("pipelines", "looking", "List all pipelines with their condition", ARG_OUTPUT),
        _command("checkpoints", "looking", "List a pipeline's newest checkpoints", arg.PIPELINE, arg.LIMIT, ARG_OUTPUT),
        _command(
            "events",
            "looking",
            "Print the event log, newest first",
            arg.PIPELINE,
            arg.ANY_NUMBER,
            arg.LIMIT,
            ARG_OUTPUT,
        ),
        _command(
            "doctor",
            "doctor",
            "Check everything that a pipeline needs, and print the fix for what is missing",
            arg.PIPELINE,
            arg.DAG,
            ARG_OUTPUT,
        ),
        _command(
            "dry-run",
            "doctor",
            "Compute what the next run would deliver and check it against the sinks; deliver nothing",
            arg.PIPELINE,
            arg.DAG,
            arg.SAMPLES,
            arg.EVERYTHING,
            ARG_OUTPUT,
        ),
        _command(
            "sinks",
            "installation",
            "List the sinks and strategies that are installed, with their promises",
            ARG_OUTPUT,
            reads_log=False,
        ),
        _command(
            "verify",
            "doctor",
            "Compare the write-ahead log with the sinks; changes nothing",
            arg.PIPELINE,
            arg.NUMBERS,
            arg.ALLOW_REPEATED,
            ARG_OUTPUT,
        ),
        _command(
            "setup",
            "setup",
            "Create what the sinks need before the first delivery (ledger tables, marker topic), or print the commands",
            arg.PIPELINE,
            arg.DAG,
            arg.PRINT,
            arg.TABLES,
            ARG_OUTPUT,
        ),
        _command(
            "sessions",
            "installation",
            "List the Spark sessions that this machine keeps for later runs",
            arg.END,
            ARG_OUTPUT,
            reads_log=False,
        ),
        _command(
            "yarn-archive",
            "installation",
            "Put Spark's jars on HDFS once, so that runs on YARN do not upload them",
            arg.TO,
            ARG_OUTPUT,
            reads_log=False,
        ),
        _command(
            "barriers",
            "barriers",
            "List barriers, newest first",
            arg.ANY_BARRIER,
            arg.LIMIT,
            ARG_OUTPUT,
        ),
        _command(
            "docs",
            "installation",
            "Read the documentation in the terminal",
            arg.PAGE,
            arg.SEARCH,
            ARG_OUTPUT,
            reads_log=False,
        ),
        _command(
            "show",
            "looking",
            "Show a checkpoint: plan, votes, proofs and the reason of a failure (default: the newest)",
            arg.PIPELINE,
            arg.ANY_NUMBER,
            ARG_OUTPUT,
        ),
        _command(
            "spec",
            "looking",
            "Show the job, sources, sinks and settings of a checkpoint (default: the newest)",
            arg.PIPELINE,
            arg.ANY_NUMBER,
            ARG_OUTPUT,
        ),
    )


def _settling() -> tuple[ActionCommand, ...]:
    return (
        _command(
            "in-doubt",
            "doubt",
            "List checkpoints in doubt with each sink's answer; an option with a NUMBER acts on one",
            arg.IN_PIPELINE,
            arg.action("commit", "deliver this checkpoint"),
            arg.action("abort", "abort this checkpoint; fails if it is decided"),
            arg.action("quarantine", "hold this checkpoint and all later ones until you decide"),
            arg.action(
                "redeliver",
                "deliver this decided checkpoint, even into a sink that lost its marker and has none of its rows",
            ),
            arg.action("dead-letter", "deliver this decided checkpoint, and set aside the rows that a sink refuses"),
            arg.action("give-up", "give up prepared rows of this ABORTED checkpoint in a sink that is gone (--sink)"),
            arg.GONE_SINK,
            arg.REWIND,
            arg.REASON,
            ARG_YES,
            ARG_OUTPUT,
        ),
        _command(
            "recover", "settling", "Complete or abort the checkpoints in doubt of a pipeline", arg.PIPELINE, arg.MIN_AGE
        ),
        _command(
            "rewind",
            "settling",
            "Discard all undelivered rows; the next run computes them again, or your program gives them again",
            arg.PIPELINE,
            arg.REASON,
            ARG_YES,
        ),
        _command(
            "reset-state",
            "settling",
            "Drop a pipeline's operator state but keep its source positions",
            arg.PIPELINE,
            arg.FORGET_SOURCE,
            arg.REASON,
            ARG_YES,
        ),
        _command(
            "stop",
            "savepoints",
            "Stop a stream after its current checkpoint; the next run continues from there",
            arg.PIPELINE,
            arg.NOW,
            arg.DRAIN,
            arg.WITH_SAVEPOINT,
            arg.DIR,
            arg.WAIT,
        ),
        _command(
            "inject-barrier",
            "barriers",
            "Inject a barrier into pipelines: rows now in their sources lie before it",
            arg.BARRIER,
            arg.PIPELINES,
            ARG_OUTPUT,
        ),
        _command("retire", "settling", "Silence a pipeline's alerts until its next run", arg.PIPELINE, ARG_YES),
        _command("resume", "settling", "Let a HALTED pipeline continue", arg.PIPELINE, arg.REASON, ARG_YES),
        _command(
            "adopt",
            "settling",
            "Take over the sinks of a lost decision log; lists first what it left there",
            arg.PIPELINE,
            arg.PREPARED,
            arg.ACCEPT_PARTIAL,
            ARG_YES,
        ),
    )


def _savepoints() -> GroupCommand:
    return GroupCommand(
        name="savepoint",
        help="Take, inspect, restore, change and delete savepoints",
        subcommands=(
            _command(
                "trigger",
                "savepoints",
                "Take a savepoint of a confirmed checkpoint; the pipeline may be running",
                arg.PIPELINE,
                arg.OF_CHECKPOINT,
                arg.DIR,
                ARG_OUTPUT,
            ),
            _command("list", "savepoints", "List savepoints, newest first", arg.DIR, ARG_OUTPUT, reads_log=False),
            _command(
                "show", "savepoints", "Show the contents of a savepoint", arg.SAVEPOINT, ARG_OUTPUT, reads_log=False
            ),
            _command(
                "restore",
                "savepoints",
                "Restore a pipeline from a savepoint; its next run continues from there",
                arg.SAVEPOINT,
                arg.UNDER_NAME,
                arg.RENAME,
                arg.LATER,
                arg.CLAIM_MODE,
                arg.ALLOW_NON_RESTORED,
                arg.ALLOW_CHANGED,
                arg.WAL_ROOT,
                ARG_YES,
            ),
            _command(
                "rescale",
                "savepoints",
                "Copy a savepoint with another number of state partitions",
                arg.SAVEPOINT,
                arg.PARTITIONS,
                arg.DIR,
                ARG_OUTPUT,
                reads_log=False,
            ),
            _command(
                "convert",
                "savepoints",
                "Copy a savepoint into the other state backend",
                arg.SAVEPOINT,
                arg.BACKEND,
                arg.DIR,
                ARG_OUTPUT,
                reads_log=False,
            ),
            _command("dispose", "savepoints", "Delete a savepoint", arg.SAVEPOINT, ARG_YES, reads_log=False),
        ),
    )


def _state() -> GroupCommand:
    return GroupCommand(
        name="state",
        help="Query operator state as of a confirmed checkpoint; the pipeline may be running",
        subcommands=(
            _command(
                "show", "state", "List operators with their states, keys and sizes", arg.STATE_OF, arg.AT, ARG_OUTPUT
            ),
            _command(
                "get",
                "state",
                "Print an operator's state for a key",
                arg.STATE_OF,
                arg.OPERATOR,
                arg.KEY,
                arg.ONE_STATE,
                arg.AT,
                ARG_OUTPUT,
            ),
            _command(
                "export",
                "state",
                "Export a state into a file",
                arg.STATE_OF,
                arg.OPERATOR,
                arg.FILE,
                arg.ONE_STATE,
                arg.AT,
            ),
            _command(
                "changes",
                "state",
                "Print what changed between two checkpoints, one line of JSON per key",
                arg.STATE_OF,
                arg.OPERATOR,
                arg.SINCE,
                arg.UNTIL,
                arg.ONE_STATE,
                ARG_OUTPUT,
            ),
        ),
    )
