"""The command line: all commands, their arguments and their exit statuses.

Exit 0 is success, 2 a configuration or usage error, 130 Ctrl-C, 1 anything else that failed.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import platform
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from penstock import proxy
from penstock.conf.issues import ConfigError, Issue
from penstock.conf.load import Loaded, load
from penstock.conf.pools import BackendSettings
from penstock.conf.settings import Settings
from penstock.conf.show import render, schema
from penstock.conf.units import plain
from penstock.proxy.commands import admin_client
from penstock.proxy.commands.alerts import add_boards
from penstock.proxy.commands.changes import add_canary, add_reload, add_restart, set_admin_state
from penstock.proxy.commands.explain import explain
from penstock.proxy.commands.imports.command import add_imports
from penstock.proxy.commands.requests import add_requests, add_trace
from penstock.proxy.commands.status import add_status, several_of
from penstock.proxy.commands.top.command import add_top
from penstock.proxy.commands.usage import usage
from penstock.proxy.process.loop import run_loop
from penstock.proxy.process.supervisor import CHANNEL
from penstock.proxy.reload.source import Source
from penstock.proxy.telemetry.log_lines import log_to_stderr
from penstock.proxy.wire.host import Lookup, Lookups

logger = logging.getLogger(__name__)

DEMO_BREAKS: Final = ("slow", "hung", "errors", "kv", "flood", "thinking", "cold")
YEAR_S: Final = 31_536_000.0
# `check` waits so long for DNS, which tells it nothing that is an error.
LOOKUPS_S: Final = 2.0
_EXITS = (
    "Exit status: 0 success, 2 a configuration or usage error, 130 Ctrl-C, 1 anything else that "
    "failed"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["sim"]:
        from penstock.bench.sim.cli import main as sim

        return sim(arguments[1:])
    if arguments[:1] == ["bench"]:
        from penstock.bench.cli import main as bench

        return bench(arguments[1:])
    parsed = _parser().parse_args(arguments)
    try:
        status = int(parsed.command(parsed))
        sys.stdout.flush()
        return status
    except ConfigError as error:
        for issue in error.issues:
            print(issue, file=sys.stderr)
        return 2
    except admin_client.AdminError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # as in `penstock requests | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"penstock: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


class _Command(argparse.ArgumentParser):
    """The parser of a command. It refuses arguments itself, with its own usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="A token-aware proxy in front of a fleet of vLLM servers.",
        epilog=f"Try it without a GPU: penstock demo. {_EXITS}.",
    )
    version = f"penstock {proxy.__version__} ({proxy.build()}, CPython {platform.python_version()})"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Command)
    _add_serve(commands)
    check = commands.add_parser(
        "check",
        help="check configuration files, print every error",
        description="Prints every error as FILE:LINE: key.path: what is wrong. Also prints a "
        "warning for each valid value that is probably a mistake.",
        epilog="Example: penstock check --strict conf/*.yaml; exit status 2 when a file has an "
        "error, otherwise 0.",
    )
    check.add_argument("files", type=Path, nargs="+", metavar="FILE")
    check.add_argument("--strict", action="store_true", help="treat warnings as errors")
    check.set_defaults(command=_check)
    _add_config(commands)
    add_imports(commands)
    _add_alerts(commands)
    add_boards(commands)
    _add_operations(commands)
    demo = commands.add_parser(
        "demo",
        help="run simulated vLLM servers and the proxy on this machine",
        epilog="Example: penstock demo --once; exit status 0 only if the stream ended with [DONE].",
    )
    demo.add_argument("--backends", type=int, default=3, metavar="N", help="servers (default 3)")
    demo.add_argument(
        "--port", type=int, default=0, metavar="P", help="data port (default: a free one)"
    )
    demo.add_argument(
        "--admin-port", type=int, metavar="P", help="admin port (default 9321, if it is free)"
    )
    how = demo.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="stream one completion, then exit")
    how.add_argument("--break", dest="breaks", choices=DEMO_BREAKS, help="what goes wrong")
    demo.set_defaults(command=_demo)
    commands.add_parser("sim", help="run simulated vLLM servers (penstock sim --help)")
    commands.add_parser("bench", help="run a benchmark (penstock bench --help)")
    return parser


def _add_config(commands: Any) -> None:
    config = commands.add_parser(
        "config",
        help="show the effective configuration or its schema",
        epilog="Example: penstock config show penstock.yaml; exit status 2 when the file is wrong.",
    )
    kinds = config.add_subparsers(required=True, metavar="WHAT")
    show = kinds.add_parser(
        "show",
        help="show each value with its origin; secrets are masked",
        epilog="Example: PENSTOCK_LISTEN__PORT=9000 penstock config show penstock.yaml; "
        "exit status 2 when the file is wrong.",
    )
    show.add_argument("file", type=Path, metavar="FILE", help="YAML configuration")
    show.set_defaults(command=_show)
    kinds.add_parser(
        "schema",
        help="print the JSON Schema, for editors",
        epilog="Example: penstock config schema > penstock.schema.json; exit status 0.",
    ).set_defaults(command=_schema)


def _add_alerts(commands: Any) -> None:
    rules = commands.add_parser(
        "alerts",
        help="print Prometheus alert rules for a configuration",
        description="Prints rules for the fleet and for each SLO of the configuration, as YAML.",
        epilog="Example: penstock alerts penstock.yaml > alerts.yml; exit status 2 when the file "
        "is wrong.",
    )
    rules.add_argument("file", type=Path, metavar="FILE", help="YAML configuration")
    rules.add_argument(
        "--runbook",
        metavar="URL",
        help="your copy of docs/runbook.md, to which each rule leads (default admin.runbook_url)",
    )
    rules.set_defaults(command=_alerts)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="run the proxy",
        epilog="Flags override environment variables (PENSTOCK_LISTEN__PORT=…). Those override "
        "the file. Without a file, --backend is enough. Example: "
        "penstock serve --backend http://10.0.0.1:8000 --backend http://10.0.0.2:8000. "
        "SIGHUP reloads the configuration. LISTEN_FDS passes a listening socket. "
        "Exit status: 0 after a drain (SIGTERM), 2 on a configuration error, 1 when a port is "
        "taken.",
    )
    serve.add_argument("--config", type=Path, metavar="FILE", help="YAML configuration")
    serve.add_argument(
        "--backend",
        action="append",
        metavar="URL",
        help="a vLLM server; repeat it for more. They replace all pools of the file",
    )
    serve.add_argument("--host", metavar="H", help="address of the data port (default 0.0.0.0)")
    serve.add_argument("--port", type=int, metavar="P", help="data port (default 8080)")
    serve.add_argument("--admin-host", metavar="H", help="admin port's address (default 127.0.0.1)")
    serve.add_argument("--admin-port", type=int, metavar="P", help="admin port (default 9321)")
    serve.add_argument("--policy", metavar="NAME", help="policy of every pool")
    serve.add_argument(
        "--reuse-port",
        action="store_true",
        default=None,
        help="share the port (SO_REUSEPORT); a stop may reset connections, LISTEN_FDS avoids that",
    )
    serve.add_argument(
        "--supervised",
        action="store_true",
        help="under a small parent that can restart it without a gap (penstock restart, SIGUSR2)",
    )
    serve.add_argument("--log-level", metavar="L", help="debug, info, warning or error")
    serve.set_defaults(command=_serve)


def _add_operations(commands: Any) -> None:
    """Add the commands that ask a running proxy."""
    add_status(commands)
    add_top(commands)
    add_requests(commands)
    add_trace(commands)
    _add_usage(commands)
    add_reload(commands)
    add_restart(commands)
    _add_explain(commands)
    add_canary(commands)
    _add_states(commands)


def _add_usage(commands: Any) -> None:
    used = commands.add_parser(
        "usage",
        help="show what each tenant has used, and what is left of its budgets",
        epilog="Example: penstock usage --tenant research; exit status 1 when there is no such "
        "tenant, or the proxy does not answer.",
    )
    used.add_argument("--tenant", metavar="T", help="this one only")
    admin_client.add_arguments(used, usage, with_json=True)


def _add_explain(commands: Any) -> None:
    dry = commands.add_parser(
        "explain",
        help="show which backend would take a request, each backend's cost, and why it would wait",
        description="A dry run: nothing is sent, reserved or remembered.",
        epilog="Example: penstock explain request.json --header 'x-session-id: abc'. FILE is the "
        "body of a request, - is standard input. Exit status 1 when no backend can take it, it "
        "would be refused, or the proxy does not answer.",
    )
    dry.add_argument("file", type=Path, metavar="FILE", help="the body of a request, as JSON")
    dry.add_argument("--path", metavar="PATH", help="path of the request (default: by its keys)")
    dry.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="a request header"
    )
    dry.add_argument("--tenant", metavar="NAME", help="name of a configured tenant that asks")
    dry.add_argument(
        "--label", metavar="LABEL", help="what the classifier would say, which is not asked"
    )
    admin_client.add_arguments(dry, explain, with_json=True)


def _add_states(commands: Any) -> None:
    for state, text in (
        ("drain", "send a backend no new requests; running ones finish"),
        ("ready", "send a backend requests again"),
        ("maint", "send a backend no new requests and no probes"),
    ):
        change = commands.add_parser(
            state,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=f"Example: penstock {state} gpu-0 --wait; exit status 1 when the state is not "
            "reached in time or no backend has this name.",
        )
        change.add_argument("backend", metavar="BACKEND", help="name in the configuration")
        change.add_argument(
            "--wait",
            action="store_true",
            help="wait until the backend takes requests again"
            if state == "ready"
            else "wait until the backend has no request in flight",
        )
        change.add_argument(
            "--timeout", type=_seconds, default=600.0, metavar="S", help="for --wait (default 600)"
        )
        admin_client.add_arguments(change, set_admin_state)
        change.set_defaults(state=state)


def _seconds(text: str) -> float:
    """Parse a duration. It must be finite."""
    with contextlib.suppress(ValueError):
        told = plain(text, "s")
        if 0 <= (seconds := float(text if told is None else told)) <= YEAR_S:
            return seconds
    raise argparse.ArgumentTypeError(
        f"must be seconds from 0 to {YEAR_S:.0f}, or a duration such as 5m, got {text!r}"
    )


def _serve(parsed: argparse.Namespace) -> int:
    if parsed.supervised and CHANNEL not in os.environ:
        module = "penstock.proxy.process.supervisor"
        supervisor = [sys.executable, "-P", "-m", module, *sys.argv[1:]]
        os.execv(sys.executable, supervisor)  # noqa: S606 - this program itself
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
    # An early SIGHUP must not end the process. It needs no reload: the file is read right now.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    source = Source(config, os.environ, given)
    loaded = source.load()
    log = loaded.settings.log
    with log_to_stderr(log.level, log.messages, pid=CHANNEL in os.environ):
        run_loop(_serve_until_signal(source, loaded))
    return 0


async def _serve_until_signal(source: Source, loaded: Loaded) -> None:
    from penstock.proxy.app import App
    from penstock.proxy.process.notify import notify

    app = App(source, loaded, *source.files(loaded))
    try:
        await app.start()
    except OSError:
        await app.close()
        raise
    app.take_signals()
    # At every log level: it tells which free ports were taken.
    told = "penstock %s (%s) listening on %s:%d, admin on %s:%d"
    admin = (loaded.settings.admin.host, app.admin_port)
    given = (proxy.__version__, proxy.build(), app.host, app.port, *admin)
    logger.handle(logger.makeRecord(logger.name, logging.INFO, "", 0, told, given, None))
    notify("READY=1", f"STATUS=listening on port {app.port}, admin on {app.admin_port}")
    await app.serve()
    await app.leave()


def _check(parsed: argparse.Namespace) -> int:
    sound = [_is_sound(file, strict=parsed.strict) for file in parsed.files]
    return 0 if all(sound) else 2


def _is_sound(file: Path, *, strict: bool) -> bool:
    """Whether a file can be used. Prints everything that is wrong with it."""
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
        for line in run_loop(of_several_servers(loaded.settings)):
            print(f"{file}: note: {line}", file=sys.stderr)
    return sound


async def of_several_servers(settings: Settings, look_up: Lookup | None = None) -> list[str]:
    """Lines on backends whose names stand for several servers, as far as DNS tells in time."""
    look_up = look_up or Lookups()

    async def of(backend: BackendSettings) -> dict[str, object]:
        addresses = set(await look_up(urlsplit(backend.url).hostname or ""))
        servers = max(Counter(":" in each for each in addresses).values(), default=0)
        return {"name": backend.name, "servers": servers}

    named = [each for pool in settings.pools for each in pool.backends]
    looking = [asyncio.ensure_future(of(each)) for each in named]
    done, late = await asyncio.wait(looking, timeout=LOOKUPS_S) if looking else ((), ())
    for each in late:
        each.cancel()
    return several_of([each.result() for each in looking if each in done])


def _show(parsed: argparse.Namespace) -> int:
    print(render(load(parsed.file, os.environ, {})), end="")
    return 0


def _alerts(parsed: argparse.Namespace) -> int:
    from penstock.proxy.commands.alerts import alerts

    return alerts(parsed)


def _schema(parsed: argparse.Namespace) -> int:
    print(schema(), end="")
    return 0


def _demo(parsed: argparse.Namespace) -> int:
    from penstock.proxy.commands.demo import demo

    with log_to_stderr("warning"):
        return run_loop(
            demo(
                backends=parsed.backends,
                port=parsed.port,
                admin_port=parsed.admin_port,
                once=parsed.once,
                breaks=parsed.breaks,
            )
        )
