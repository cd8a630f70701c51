"""`striderl`: the command line.

    striderl train TASK [--algorithm NAME] [--any.config.field VALUE] …      train; runs/<task>/<time>/ has the result
    striderl sweep TASK --space SETTING=RANGE … --trials N                   search settings; sweeps/<name>/ has them
    striderl play | evaluate | record | export | resume RUN                  use a trained policy, or resume
    striderl view RUN                                                        a live view of a run in the browser
    striderl plot RUN …                                                      learning curves as a picture
    striderl report RUN …                                                    everything about runs on one HTML page
    striderl compare RUN …                                                   scores over seeds, with intervals
    striderl diff A B                                                        the first step and tensor that differ
    striderl doctor ENV | RUN                                                what is wrong with an env or a run
    striderl dataset TASK | RUN FOLDER                                       record what offline algorithms learn from
    striderl import-trajectories OLD NEW                                     convert recordings of pickle files
    striderl clips trot | record | import | export | show …                  motion clips
    striderl list [tasks | algorithms | recipes]

Under torchrun, `train` and `resume` make one run of all processes; every other command runs in rank 0 alone.

Exit codes: 0 done, 1 something failed on the way, 2 the command line is wrong, 129, 130 and 143 ended by SIGHUP, SIGINT
and SIGTERM after saving. Each command is a module that is loaded when it is used, so that help comes at once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from striderl import __version__
from striderl.cli.terminal import (
    UsageError,
    be_patient,
    complain,
    is_of_env,
    leave_closed_terminal,
    message_of,
    rank_of_torchrun,
    say,
)
from striderl.data.naming import suggestion
from striderl.data.registry import load_reference


@dataclass(frozen=True, kw_only=True)
class Command:
    """One word of the command line."""

    summary: str
    """What it does, in a line."""
    run: str
    """'module:function', imported when it is wanted: takes the words behind it and returns the exit code."""


COMMANDS: dict[str, Command] = {
    "train": Command(summary="train a policy for a task", run="striderl.cli.train:train"),
    "sweep": Command(
        summary="search the settings that learn best, in any number of processes", run="striderl.cli.sweep:sweep"
    ),
    "resume": Command(summary="go on with a run that was stopped", run="striderl.cli.train:resume"),
    "play": Command(
        summary="watch a run's policy in a window, or as a video where there is no display",
        run="striderl.cli.play:play",
    ),
    "view": Command(
        summary="watch a run in the browser, also while it trains in another process",
        run="striderl.cli.view.command:view",
    ),
    "evaluate": Command(
        summary="play whole episodes and print returns and metrics", run="striderl.cli.seeing.evaluate:evaluate_run"
    ),
    "record": Command(summary="write a video of a run's policy", run="striderl.cli.play:record"),
    "export": Command(
        summary="write a run's policy as ONNX and torch files that need no striderl",
        run="striderl.cli.export:export_run",
    ),
    "plot": Command(summary="draw the learning curves of one or several runs", run="striderl.cli.seeing.plot:plot"),
    "report": Command(summary="write one HTML page about one or several runs", run="striderl.cli.seeing.report:report"),
    "compare": Command(
        summary="compare runs over their seeds: what is better, what is not distinguishable",
        run="striderl.cli.seeing.compare:compare",
    ),
    "diff": Command(
        summary="find the first step and tensor at which two runs part", run="striderl.cli.seeing.diff:diff"
    ),
    "doctor": Command(
        summary="watch an env or a run and name what is wrong with it", run="striderl.cli.seeing.doctor:doctor"
    ),
    "dataset": Command(
        summary="record a dataset for algorithms that learn from one", run="striderl.cli.dataset:record_dataset"
    ),
    "clips": Command(summary="make, record, convert and look at motion clips", run="striderl.cli.clips:clips"),
    "import-trajectories": Command(
        summary="bring recordings of pickle files over, without running them",
        run="striderl.cli.dataset:import_trajectories",
    ),
    "list": Command(
        summary="list tasks, algorithms, terms, recipes, or the runs that were trained",
        run="striderl.cli.seeing.list_names:list_names",
    ),
}
"""Every command."""
BEGINNING = (
    "striderl train cartpole             learns in a minute, and names the page that shows it",
    "striderl doctor my_pkg.envs:MyEnv   looks for mistakes in an env of your own, before it is trained",
    "striderl list runs                  lists what was trained; compare, play, export take such a folder",
)
"""What a newcomer may type first."""
TOGETHER = ("train", "resume")
"""The commands that the processes of torchrun do together."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    be_patient()
    words = list(sys.argv[1:] if argv is None else argv)
    rank, _ = rank_of_torchrun()
    if rank and (not words or words[0] not in TOGETHER):
        return 0  # rank 0 does it
    if rank:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open as long as the process)
    if not words or words[0] in ("-h", "--help"):
        say(overview())
        return 0 if words else 2
    if words[0] == "--version":
        say(f"striderl {__version__}")
        return 0
    # other ranks log only what rank 0 does not: their errors, and the non-finite numbers of their envs
    where = f"rank {rank}: " if rank else ""
    logging.basicConfig(level=logging.ERROR if rank else logging.WARNING, format=f"%(levelname)s: {where}%(message)s")
    logging.getLogger("striderl.training.guard").setLevel(logging.WARNING)
    try:
        if words[0] not in COMMANDS:
            raise UsageError(
                f"there is no command {words[0]!r}. {suggestion(words[0], [*COMMANDS, '--version', '--help'])}"
                f"Available: {', '.join(COMMANDS)}"
            )
        run: Callable[[list[str]], int] = load_reference(COMMANDS[words[0]].run)
        return run(words[1:])
    except UsageError as error:
        if not rank:  # all ranks raise the same
            complain(message_of(error))
        return 2
    except SystemExit as ending:  # how the parser of flags ends after a message of its own
        return ending.code if isinstance(ending.code, int) else 2
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except BrokenPipeError:  # 'striderl list runs | head' has seen enough
        leave_closed_terminal()
        return 141
    except Exception as error:
        if not is_of_env(error):
            raise
        complain("\n".join([str(error).rstrip(), *getattr(error, "__notes__", ())]))
        return 1


def overview() -> str:
    """Return the help of the whole program."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: striderl COMMAND …",
            "",
            "Reinforcement learning for robots and beyond.",
            "",
            "commands:",
            *lines,
            "",
            "to begin:",
            *(f"  {line}" for line in BEGINNING),
            "",
            "'striderl COMMAND --help' explains a command.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
