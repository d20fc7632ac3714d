"""What becomes of the parts of LiteLLM's configuration."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.conf.issues import ConfigError
from penstock.conf.settings import Settings
from penstock.proxy.commands.imports.command import imported
from tests.unit.proxy.commands.imports.carried import carried

pytestmark = pytest.mark.once


def entry(name: str, model: str, host: int, **params: Any) -> dict[str, Any]:
    base = f"http://10.0.0.{host}:8000/v1"
    return {
        "model_name": name,
        "litellm_params": {"model": f"hosted_vllm/{model}", "api_base": base, **params},
    }


def read(folder: Path, *entries: Any, **sections: Any) -> tuple[Settings, str]:
    text = yaml.safe_dump({"model_list": list(entries), **sections}, sort_keys=False)
    loaded, remarks = carried("litellm", text, folder)
    return loaded.settings, remarks


A = entry("a", "a", 1)


def test_entries_of_one_name_are_one_pool(tmp_path: Path) -> None:
    settings, _ = read(tmp_path, A, entry("a", "a", 2))
    (pool,) = settings.pools
    assert pool.models == ("a",)
    assert [each.url for each in pool.backends] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert settings.routes == ()  # the pool's own name is asked for
    assert settings.listen.port == 4000


def test_models_of_one_name_share_its_requests_by_weight(tmp_path: Path) -> None:
    old = (entry("gpt", "old", 1, weight=3), entry("gpt", "old", 2))
    settings, _ = read(tmp_path, *old, entry("gpt", "new", 3))
    (route,) = settings.routes
    found = [(each.pool, each.weight, each.model) for each in route.to]
    assert found == [("gpt", 4.0, "old"), ("gpt-2", 1.0, "new")]
    assert [each.policy for each in settings.pools] == ["weighted_random", "token_cost"]
    assert [each.weight for each in settings.pools[0].backends] == [3.0, 1.0]


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
            "model_list:\n- model_name: x\n  litellm_params: {model: vllm/x, weight: -1,\n"
            "    api_base: http://a}\n",
            "theirs:3: model_list[0].litellm_params.weight: must be a number above 0",
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
