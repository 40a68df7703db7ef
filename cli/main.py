"""The `headrace` command: a table of subcommands, imported when used, and one way to fail.

A fault of the caller's or of the suite's is one line on standard error and exit code 1, never a traceback.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Any

import typer
from typer.core import TyperGroup

# Nothing of ours forks once gRPC runs, but a library may start a program: gRPC would prepare for it, and write a line.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong there is told by our errors, in one line
if version_of("grpcio").startswith("1.8"):  # a version that did not know the names would write a line
    # gRPC's older I/O loop hands a message over one thread less: a first token comes 0.4 to 1.1 ms sooner (three pairs
    # of runs, cold caches), and the scheduler uses a tenth less processor time
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

COMMANDS = {
    "up": "headrace.cli.up:up",
    "demo": "headrace.cli.demo:demo",
    "generate": "headrace.cli.generate:generate",
    "results": "headrace.cli.results:app",
    "keys": "headrace.cli.keys:app",
    "certs": "headrace.cli.certs:certs",
    "screen": "headrace.cli.screen:screen",
    "embed": "headrace.cli.encode:embed",
    "rerank": "headrace.cli.encode:rerank",
    "classify": "headrace.cli.encode:classify",
    "trace": "headrace.cli.trace:trace",
    "health": "headrace.cli.health:health",
    "top": "headrace.cli.top:top",
    "doctor": "headrace.cli.doctor:doctor",
    "hardware": "headrace.cli.hardware:hardware",
    "tune": "headrace.cli.tune:tune",
    "models": "headrace.cli.models:app",
    "engines": "headrace.cli.engines:app",
    "bench": "headrace.cli.bench:app",
    "soak": "headrace.cli.soak:soak",
    "simulate": "headrace.cli.simulate:simulate",
    "gateway": "headrace.cli.services:gateway",
    "scheduler": "headrace.cli.scheduler:app",
    "executor": "headrace.cli.services:executor",
    "encoder": "headrace.cli.services:encoder",
    "preprocess": "headrace.cli.services:preprocess",
    "version": "headrace.cli.main:version",
}
"""Name -> module:attribute; a function is a command, a Typer a group of them."""

INTERRUPTED = 130


class _Lazy(TyperGroup):
    """Imports a subcommand's module when it is asked for: `headrace version` must not load gRPC."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        target = getattr(import_module(module), attribute)
        if isinstance(target, typer.Typer):
            command: Any = typer.main.get_group(target)
        else:
            holder = typer.Typer(add_completion=False)
            holder.command()(target)
            command = typer.main.get_command(holder)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Lazy,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(help="Serves transformer models over gRPC with dynamic batching.")
def _root() -> None: ...


def version() -> None:
    """Print the version."""
    print(version_of("headrace"))


def main() -> None:
    """Runs the command line and exits."""
    try:
        app(prog_name="headrace")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        from headrace.standalone.services import cause

        known = cause(error)
        if known is None:
            raise
        print(f"error: {known.message}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
