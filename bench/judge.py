"""`penstock bench judge`: `vllm bench serve`, an outside judge, through penstock.

Starts simulated servers and penstock before them, runs vLLM's own benchmark client against it and
lets it speak for itself. Also with `--direct`: the same client straight to one server, to see what
the client itself measures. Needs an environment with vLLM, the CPU build too (`make test-vllm`).
"""

import os
import shlex
import subprocess
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from penstock.balancing.policies import POLICIES
from penstock.bench.arguments import count, option
from penstock.bench.peers.field import start_penstock
from penstock.bench.peers.fleet import Fleet
from penstock.bench.peers.peer import MODEL, url
from penstock.bench.processes import stop
from penstock.bench.report import BenchError
from penstock.bench.sim.profiles import GPUS

# The client loads a tokenizer from a folder, and nothing from anywhere else.
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OPENAI_API_KEY": "none",
}
LOAD: Final = (
    *("--dataset-name", "prefix_repetition", "--num-prompts", "400", "--request-rate", "20"),
    *("--prefix-repetition-prefix-len", "512", "--prefix-repetition-suffix-len", "128"),
    *("--prefix-repetition-num-prefixes", "16", "--prefix-repetition-output-len", "32"),
)


def run(options: Namespace) -> int:
    """Run the client; returns its exit status. Raises BenchError."""
    if not (options.vllm / "bin" / "vllm").exists():
        raise BenchError(f"no bin/vllm in {options.vllm}")
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(options.servers, options.profile, 1.0))
        penstock = start_penstock(fleet.ports, options.policy)
        stack.callback(stop, penstock.process)
        command = _command(options, fleet.ports[0] if options.direct else penstock.port)
        print(f"$ {shlex.join(command)}", flush=True)
        done = subprocess.run(command, env=os.environ | ENVIRONMENT, check=False)
        tokens = [each["prompt_tokens_total"] for each in fleet.work()]
        print(f"prompt tokens of each server: {tokens}")
    return done.returncode


def _command(options: Namespace, port: int) -> list[str]:
    command = [str(options.vllm / "bin" / "vllm"), "bench", "serve", "--backend", "openai-chat"]
    command += ["--base-url", url(port), "--endpoint", "/v1/chat/completions"]
    command += ["--model", MODEL, "--tokenizer", str(options.tokenizer), *LOAD]
    return [*command, "--disable-tqdm", "--percentile-metrics", "ttft,itl,e2el", *options.more]


def arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--vllm", type=Path, required=True, metavar="FOLDER", help="an environment with vLLM")
    add("--tokenizer", type=Path, required=True, metavar="FOLDER", help="a model's folder")
    option(parser, "--policy", POLICIES, "token_cost", "of penstock")
    option(parser, "--servers N", count, 4, "simulated servers")
    option(parser, "--profile", GPUS, "8b-1xh100", "of each")
    option(parser, "--direct", bool, None, "straight to the first server, without penstock")
    add("more", nargs="*", help="after `--`: further options of `vllm bench serve`")
