"""What becomes of the parts of LiteLLM's configuration."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from penstock.conf.issues import ConfigError
from penstock.conf.settings import Settings
from penstock.proxy.commands.imports.command import imported
from tests.unit.proxy.commands.imports.carried import KEY, carried

pytestmark = pytest.mark.once


def entry(name: str, model: str, host: int, **params: Any) -> dict[str, Any]:
    base = f"http://10.0.0.{host}:8000/v1"
    model = model if "/" in model else f"hosted_vllm/{model}"
    return {"model_name": name, "litellm_params": {"model": model, "api_base": base, **params}}


def read(folder: Path, *entries: Any, **sections: Any) -> tuple[Settings, str]:
    text = yaml.safe_dump({"model_list": list(entries), **sections}, sort_keys=False)
    loaded, remarks = carried("litellm", text, folder)
    return loaded.settings, remarks


A, B, C = entry("a", "a", 1), entry("b", "b", 2), entry("c", "c", 3)


def targets(settings: Settings) -> dict[str, list[str]]:
    """By route, the pool and the model of each target."""
    return {
        route.name: [f"{each.pool}/{each.model}" for each in route.to] for route in settings.routes
    }


def shown(keys: Iterable[SecretStr | None]) -> list[str | None]:
    return [key and key.get_secret_value().removesuffix(f"-{KEY}") for key in keys]


def test_entries_of_one_name_are_one_pool(tmp_path: Path) -> None:
    settings, _ = read(tmp_path, A, entry("a", "a", 2))
    (pool,) = settings.pools
    assert pool.models == ("a",)
    assert [each.url for each in pool.backends] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert settings.routes == ()  # the pool's own name is asked for
    assert settings.listen.port == 4000


def test_a_name_that_the_server_does_not_know_is_a_route(tmp_path: Path) -> None:
    settings, _ = read(tmp_path, entry("gpt", "openai/meta-llama/Llama-3", 1))
    assert settings.routes[0].match.model == ("gpt",)
    assert targets(settings) == {"gpt": ["gpt/meta-llama/Llama-3"]}


def test_models_of_one_name_share_its_requests_by_weight(tmp_path: Path) -> None:
    old = (entry("gpt", "old", 1, weight=3), entry("gpt", "old", 2))
    settings, _ = read(tmp_path, *old, entry("gpt", "new", 3))
    assert targets(settings) == {"gpt": ["gpt/old", "gpt-2/new"]}
    assert [each.weight for each in settings.routes[0].to] == [4.0, 1.0]
    assert [each.policy for each in settings.pools] == ["weighted_random", "token_cost"]
    assert [each.weight for each in settings.pools[0].backends] == [3.0, 1.0]


def test_a_server_is_in_one_pool_however_many_names_it_has(tmp_path: Path) -> None:
    settings, _ = read(tmp_path, A, entry("lora", "lora", 1), entry("a", "a", 2))
    found = [(each.models, len(each.backends)) for each in settings.pools]
    assert found == [(("a", "lora"), 1), (("a",), 1)]
    assert targets(settings) == {"a": ["a/a", "a-2/a"]}


def test_a_name_that_another_pool_lists_too_gets_a_route(tmp_path: Path) -> None:
    """Without it requests would go to both pools."""
    settings, _ = read(tmp_path, A, entry("other", "a", 2))
    assert targets(settings) == {"a": ["a/a"], "other": ["other/a"]}


@pytest.mark.parametrize(
    ("strategy", "policy"),
    [
        ("simple-shuffle", "weighted_random"),
        ("least-busy", "least_requests"),
        ("latency-based-routing", "peak_ewma"),
        ("usage-based-routing-v2", "token_cost"),
        ("cost-based-routing", "token_cost"),
    ],
)
def test_strategies(strategy: str, policy: str, tmp_path: Path) -> None:
    settings, remarks = read(tmp_path, A, router_settings={"routing_strategy": strategy})
    assert settings.pools[0].policy == policy
    assert ("routing_strategy" in remarks) == (strategy == "cost-based-routing")


def test_prefixes_come_after_the_names_that_they_would_take(tmp_path: Path) -> None:
    settings, _ = read(
        tmp_path,
        entry("*", "c", 3),
        entry("claude-*", "a", 1),
        entry("claude-opus-*", "b", 2),
        C,
    )
    assert [(each.match.model, each.to[0].model) for each in settings.routes] == [
        (("c",), "c"),  # else the star would take it
        (("claude-opus-*",), "b"),
        (("claude-*",), "a"),
        (("*",), "c"),
    ]


def test_aliases(tmp_path: Path) -> None:
    aliases = {"gpt-4": "a", "gpt-3.5": {"model": "a", "hidden": True}, "b": "a", "x": "nobody"}
    settings, remarks = read(tmp_path, A, B, router_settings={"model_group_alias": aliases})
    assert [each.match.model for each in settings.routes] == [("a", "gpt-4", "gpt-3.5")]
    assert "the alias b. There is a model of this name, too." in remarks
    assert "the alias x. No pool serves nobody." in remarks


ON_ERRORS = ("no_backend", "overload", "errors")
MANY = [entry(f"m{number}", f"m{number}", number) for number in range(4, 10)]
NAMES = [each["model_name"] for each in MANY]


@pytest.mark.parametrize(
    ("wanted", "found", "lost"),
    [
        (  # they say for what they are
            {"fallbacks": [{"a": ["b", "none"]}], "context_window_fallbacks": [{"a": ["c", "b"]}]},
            {"a": [("b", None), ("c", ("context",))]},
            "the fall-back none. No pool serves it.",
        ),
        (  # those by default are for names without their own
            {"fallbacks": [{"a": ["b"]}, {name: ["b"] for name in NAMES}]}
            | {"default_fallbacks": ["c"]},
            {"a": [("b", ON_ERRORS)], "b": [("c", ON_ERRORS)]}
            | {name: [("b", ON_ERRORS)] for name in NAMES},
            "",
        ),
        (  # more than a route may have are told
            {"fallbacks": [{"a": NAMES}]},
            {"a": [(name, ON_ERRORS) for name in NAMES[:4]]},
            "the fall-back m8. A route has at most 4.",
        ),
    ],
)
@pytest.mark.parametrize("section", ["router_settings", "litellm_settings"])
def test_fall_backs(section: str, wanted: Any, found: Any, lost: str, tmp_path: Path) -> None:
    settings, remarks = read(tmp_path, A, B, C, *MANY, **{section: wanted})
    assert found == {
        route.name: [(each.pool, each.on) for each in route.fallbacks] for route in settings.routes
    }
    assert lost in remarks


def test_keys_are_variables(tmp_path: Path) -> None:
    settings, remarks = read(
        tmp_path,
        entry("a", "a", 1, api_key="os.environ/VLLM_KEY"),
        entry("b", "b", 2, api_key="sk-plain"),
        entry("c", "c", 3, api_key="none"),
        general_settings={"master_key": "os.environ/MASTER"},
    )
    assert shown(each.api_key for each in settings.pools) == ["VLLM_KEY", "B_API_KEY", None]
    assert "give it as B_API_KEY." in remarks
    assert shown(each.keys[0].key for each in settings.tenants) == ["MASTER"]


def test_servers_of_one_name_may_have_keys_of_their_own(tmp_path: Path) -> None:
    keys = enumerate(["os.environ/ONE", "os.environ/TWO", "none"], 1)
    settings, _ = read(tmp_path, *[entry("a", "a", host, api_key=key) for host, key in keys])
    (pool,) = settings.pools
    assert pool.api_key is None
    assert shown(each.api_key for each in pool.backends) == ["ONE", "TWO", None]


def test_defaults_of_a_name_become_those_of_its_route(tmp_path: Path) -> None:
    first = entry("a", "a", 1, temperature=0.2, max_tokens=9)
    settings, remarks = read(tmp_path, first)
    assert settings.routes[0].changes.body.defaults == {"temperature": 0.2}
    assert "max_tokens: 9. penstock counts by what the client asks for" in remarks
    settings, remarks = read(tmp_path, first, entry("a", "a", 2, temperature=0.9))
    assert settings.routes[0].changes.body.defaults == {}
    assert "All servers of a name get the same defaults here" in remarks


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"model": "azure/gpt-4o"}, "It is of the provider azure"),
        ({"model": "gpt-4o"}, "It is of a provider that is not named"),
        ({"model": "openai/gpt-4o", "api_base": None}, "It has no api_base"),
        ({"api_base": "http://10.0.0.1//serve/v1"}, "Its api_base must be empty or a path"),
        ({"api_base": "http://u:secret@10.0.0.1"}, "Its api_base must not hold credentials"),
        ({"model": "hosted_vllm/*"}, "Its server gets the name that is asked for"),
        ({"model": "hosted_vllm/a b"}, "A name has 1 to 256 characters, no spaces"),
    ],
)
def test_models_that_penstock_cannot_serve(
    params: dict[str, Any], why: str, tmp_path: Path
) -> None:
    other = entry("x", "x", 1)
    other["litellm_params"] |= params
    settings, remarks = read(tmp_path, A, other)
    assert len(settings.pools) == 1
    assert f"the model x. {why}" in remarks
    assert "secret" not in remarks


def test_times(tmp_path: Path) -> None:
    router = {"timeout": 600, "stream_timeout": "90"}
    settings, _ = read(tmp_path, A, router_settings=router)
    times = settings.timeouts
    assert (times.total_s, times.first_byte_s, times.idle_s) == (600, 90, 90)
    settings, _ = read(tmp_path, A, litellm_settings={"request_timeout": 30})
    assert settings.timeouts.total_s == 30


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model_list: [", "theirs:1: not valid YAML"),
        ("- a", "theirs:1: the file must be a mapping of keys"),
        ("model_list:\n- model_name: x\n", "theirs:2: model_list[0].litellm_params.model: is req"),
        ("x: 1\nmodel_list: 5\n", "theirs:2: model_list: must be a list, got ***"),
        ("x: 1\n", "theirs:1: model_list: has no model that penstock could serve"),
        (
            "model_list:\n- model_name: x\n  litellm_params:\n    model: vllm/x\n"
            "    api_base: 10.0.0.1:8000\n",
            "theirs:5: model_list[0].litellm_params.api_base: must begin with http:// or https://",
        ),
        (
            "model_list:\n- model_name: x\n  litellm_params: {model: a/b}\n",
            "Line 2, the model x: It is of the provider a",
        ),
    ],
)
def test_mistakes_name_their_line(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        imported("litellm", text, "theirs")
    assert told in str(refused.value)
