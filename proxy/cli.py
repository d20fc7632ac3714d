"""The command line: every command, what it takes and what its exit status says.

Exit 0 is success, 2 a configuration or usage error, 1 anything else that failed.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import proxy
from conf.issues import ConfigError, Issue
from conf.load import Loaded, load
from conf.schema import schema
from conf.show import render
from conf.units import plain
from proxy import admin_client
from proxy.admin_state import set_admin_state
from proxy.explain import explain
from proxy.log_lines import log_to_stderr
from proxy.source import Source
from proxy.status import status

T = TypeVar("T")
YEAR_S: Final = 31_536_000.0
_EXITS = "exit status: 0 success, 2 a configuration or usage error, 1 anything else that failed"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["sim"]:
        from bench.sim.cli import main as sim

        return sim(arguments[1:])
    if arguments[:1] == ["bench"]:
        from bench.cli import main as bench

        return bench(arguments[1:])
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.command(parsed))
    except ConfigError as error:
        for issue in error.issues:
            print(issue, file=sys.stderr)
        return 2
    except admin_client.AdminError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"penstock: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="A token-aware proxy in front of a fleet of vLLM servers.",
        epilog=f"Try it without a GPU: penstock demo. {_EXITS}.",
    )
    build = "compiled" if proxy.compiled() else "interpreted"
    version = f"penstock {proxy.__version__} ({build}, CPython {platform.python_version()})"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands)
    check = commands.add_parser(
        "check",
        help="validate configurations, print every error",
        description="Prints every error as FILE:LINE: key.path: what is wrong, and, as warnings, "
        "what is probably not meant.",
        epilog="Example: penstock check --strict conf/*.yaml; exit status 2 when a file has an "
        "error, 0 when none has.",
    )
    check.add_argument("files", type=Path, nargs="+", metavar="FILE")
    check.add_argument("--strict", action="store_true", help="warnings are errors")
    check.set_defaults(command=_check)
    _add_config(commands)
    _add_operations(commands)
    demo = commands.add_parser(
        "demo",
        help="simulated vLLM servers and the proxy, on loopback",
        epilog="Example: penstock demo --once; exit status 0 only if the stream ended with [DONE].",
    )
    demo.add_argument("--backends", type=int, default=3, metavar="N", help="servers (default 3)")
    demo.add_argument("--port", type=int, default=0, help="data port (default: a free one)")
    demo.add_argument("--admin-port", type=int, help="admin port (default 9321 where it is free)")
    demo.add_argument("--once", action="store_true", help="stream one completion and exit")
    demo.set_defaults(command=_demo)
    commands.add_parser("sim", help="one simulated vLLM server (penstock sim --help)")
    commands.add_parser("bench", help="benchmarks (penstock bench --help)")
    return parser


def _add_config(commands: Any) -> None:
    config = commands.add_parser(
        "config",
        help="show the effective configuration, or its schema",
        epilog="Example: penstock config show penstock.yaml; exit status 2 when the file is wrong.",
    )
    kinds = config.add_subparsers(required=True, metavar="WHAT")
    show = kinds.add_parser(
        "show",
        help="effective values with their origin, secrets masked",
        epilog="Example: PENSTOCK_LISTEN__PORT=9000 penstock config show penstock.yaml; "
        "exit status 2 when the file is wrong.",
    )
    show.add_argument("file", type=Path)
    show.set_defaults(command=_show)
    kinds.add_parser(
        "schema",
        help="JSON Schema for editors",
        epilog="Example: penstock config schema > penstock.schema.json; exit status 0.",
    ).set_defaults(command=_schema)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="run the proxy",
        epilog="Flags override environment variables (PENSTOCK_LISTEN__PORT=…), which override "
        "the file; without a file, --backend is enough. Example: "
        "penstock serve --backend http://10.0.0.1:8000 --backend http://10.0.0.2:8000; "
        "SIGHUP reads the configuration again; LISTEN_FDS hands over a listening socket; "
        "exit status 0 after a drain (SIGTERM), 2 on a configuration error, 1 when a port is "
        "taken.",
    )
    serve.add_argument("--config", type=Path, metavar="FILE", help="YAML configuration")
    serve.add_argument(
        "--backend", action="append", metavar="URL", help="a vLLM server; repeat for more"
    )
    serve.add_argument("--host", metavar="H", help="data port's address (default 0.0.0.0)")
    serve.add_argument("--port", type=int, metavar="P", help="data port (default 8080)")
    serve.add_argument("--admin-host", metavar="H", help="admin address (default 127.0.0.1)")
    serve.add_argument("--admin-port", type=int, metavar="P", help="admin port (default 9321)")
    serve.add_argument("--policy", metavar="NAME", help="how backends are chosen, in every pool")
    serve.add_argument(
        "--reuse-port",
        action="store_true",
        default=None,
        help="share the port (SO_REUSEPORT), at best effort: an inherited socket loses nothing",
    )
    serve.add_argument("--log-level", metavar="L", help="debug, info, warning or error")
    serve.set_defaults(command=_serve)


def _add_operations(commands: Any) -> None:
    """What an operator asks of a running proxy."""
    fleet = commands.add_parser(
        "status",
        help="one table of the fleet",
        epilog="Example: penstock status --json | jq '.[] | select(.state != \"ready\")'; exit "
        "status 1 when nothing can serve, the proxy drains, or nobody answers.",
    )
    fleet.add_argument("--json", action="store_true", help="the whole listing, as JSON")
    admin_client.add_arguments(fleet)
    fleet.set_defaults(command=status)
    dry = commands.add_parser(
        "explain",
        help="which backend would take a request, with the cost of each",
        description="A dry run: nothing is sent, reserved or remembered.",
        epilog="Example: penstock explain request.json --header 'x-session-id: abc'; FILE holds a "
        "request's body, - is standard input; exit status 1 when nobody can take it, or nobody "
        "answers.",
    )
    dry.add_argument("file", type=Path, metavar="FILE", help="a request's body, as JSON")
    dry.add_argument("--path", metavar="PATH", help="where it would be sent (default: by its keys)")
    dry.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="sent with it"
    )
    dry.add_argument("--tenant", metavar="NAME", help="whose it would be, of those configured")
    dry.add_argument("--json", action="store_true", help="the whole answer, as JSON")
    admin_client.add_arguments(dry)
    dry.set_defaults(command=explain)
    for state, text in (
        ("drain", "send a backend no new requests; running ones finish"),
        ("ready", "send it requests again"),
        ("maint", "the same as drain, and leave it unprobed"),
    ):
        change = commands.add_parser(
            state,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=f"Example: penstock {state} gpu-0 --wait; exit status 1 when that is not "
            "reached in time, or there is no such backend.",
        )
        change.add_argument("backend", metavar="BACKEND", help="its name in the configuration")
        change.add_argument(
            "--wait",
            action="store_true",
            help="return when it takes requests again"
            if state == "ready"
            else "return when nothing is in flight there",
        )
        change.add_argument(
            "--timeout", type=_seconds, default=600.0, metavar="S", help="of --wait (default 600)"
        )
        admin_client.add_arguments(change)
        change.set_defaults(command=set_admin_state, state=state)


def _seconds(text: str) -> float:
    """A duration that ends."""
    with contextlib.suppress(ValueError):
        told = plain(text, "s")
        if 0 <= (seconds := float(text if told is None else told)) <= YEAR_S:
            return seconds
    raise argparse.ArgumentTypeError(
        f"must be seconds from 0 to {YEAR_S:.0f}, or such as 5m, got {text!r}"
    )


def _serve(parsed: argparse.Namespace) -> int:
    flags = {
        "backends": parsed.backend,
        "listen.host": parsed.host,
        "listen.port": parsed.port,
        "listen.reuse_port": parsed.reuse_port,
        "admin.host": parsed.admin_host,
        "admin.port": parsed.admin_port,
        "policy": parsed.policy,
        "log.level": parsed.log_level,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    config = parsed.config
    if config is None and os.environ.get("PENSTOCK_CONFIG"):
        config = Path(os.environ["PENSTOCK_CONFIG"])
    # Until it reloads, which needs the loop, it must not end us: the file is read just now.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    source = Source(config, os.environ, given)
    loaded = source.load()
    log_to_stderr(loaded.settings.log.level)
    run_loop(_serve_until_signal(source, loaded))
    return 0


async def _serve_until_signal(source: Source, loaded: Loaded) -> None:
    from proxy.app import App
    from proxy.notify import notify

    app = App(source, loaded, *source.files(loaded))
    try:
        await app.start()
    except OSError:
        await app.close()
        raise
    app.take_signals()
    # In the log's form, but at every level: it tells which free ports were taken.
    print(
        f"{time.time():.3f} INFO {__name__} penstock {proxy.__version__} "
        f"listening on {app.host}:{app.port}, "
        f"admin on {loaded.settings.admin.host}:{app.admin_port}",
        file=sys.stderr,
        flush=True,
    )
    notify("READY=1", f"STATUS=listening on port {app.port}, admin on {app.admin_port}")
    await app.run()


def _check(parsed: argparse.Namespace) -> int:
    sound = [_is_sound(file, strict=parsed.strict) for file in parsed.files]
    return 0 if all(sound) else 2


def _is_sound(file: Path, *, strict: bool) -> bool:
    """Whether a file can be used; tells all that is wrong with it."""
    source = Source(file, os.environ, {})
    warnings: tuple[Issue, ...] = ()
    sound = False
    try:
        loaded = source.load()
        warnings = loaded.warnings
        source.files(loaded)
        sound = not (strict and warnings)
    except ConfigError as error:
        print(error, file=sys.stderr)
    for each in warnings:
        print(each if strict else each.as_warning(), file=sys.stderr)
    if sound:
        print(f"{file}: ok")
    return sound


def _show(parsed: argparse.Namespace) -> int:
    print(render(load(parsed.file, os.environ, {})), end="")
    return 0


def _schema(parsed: argparse.Namespace) -> int:
    print(schema(), end="")
    return 0


def _demo(parsed: argparse.Namespace) -> int:
    from proxy.demo import demo

    log_to_stderr("warning")
    return run_loop(
        demo(
            backends=parsed.backends,
            port=parsed.port,
            admin_port=parsed.admin_port,
            once=parsed.once,
        )
    )


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop; without it on plain asyncio, which is slower."""
    try:
        import uvloop
    except ImportError:
        logging.getLogger(__name__).warning(
            "uvloop is missing: running on plain asyncio, at about twice the CPU per token"
        )
        return asyncio.run(main)
    return uvloop.run(main)
