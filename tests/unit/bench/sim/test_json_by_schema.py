"""What a simulated server says under guided decoding satisfies the schema, whatever that is."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from penstock.bench.sim.errors import Refusal
from penstock.bench.sim.job import chat_job
from penstock.bench.sim.script import Endless, value_of
from penstock.conf.show import schema as settings_schema

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "left": {"$ref": "#/$defs/node"},
                "right": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name", "right", "children"],
        }
    },
    "$ref": "#/$defs/node",
}
SCHEMAS: list[Any] = [
    {},
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]},
    {"type": "integer", "minimum": 7, "maximum": 7},
    {"type": "integer", "exclusiveMinimum": 7, "exclusiveMaximum": 9},
    {"type": "integer", "minimum": 1, "multipleOf": 5},
    {"type": "integer", "maximum": -3},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
    {"type": "number", "maximum": -0.5},
    {"type": "string", "minLength": 30, "maxLength": 31},
    {"type": "string", "maxLength": 2},
    {"type": "string", "maxLength": 0},
    {"type": ["null", "string"]},
    {"type": "boolean"},
    {"const": {"x": [1, None]}},
    {"enum": ["red", 3, None]},
    {"type": "array", "items": {"enum": [1, 2]}, "minItems": 3},
    {"type": "array", "items": {"type": "string"}, "maxItems": 0},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
            {"properties": {"b": {"type": "string"}}, "required": ["b"]},
        ]
    },
    TREE,
    {"type": "object", "patternProperties": {"^x": {"type": "string"}}},
    json.loads(settings_schema()) | {"required": ["log"]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
@pytest.mark.parametrize("seed", range(3))
def test_the_value_satisfies_the_schema(schema: Any, seed: int) -> None:
    value = value_of(schema, seed)
    problems = [
        error.message
        for error in Draft202012Validator(schema).iter_errors(value)
        # Of patterns only the common formats are kept.
        if "pattern" not in error.schema_path and error.validator not in ("pattern", "anyOf")
    ]
    assert problems == []
    assert value_of(schema, seed) == value
    assert len(json.dumps(value)) < 50_000


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"allOf": [{"$ref": "#"}]},
        {"required": ["a", "b"], "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}},
    ],
)
def test_a_schema_that_has_no_end_is_refused(schema: Any) -> None:
    with pytest.raises(Endless):
        value_of(schema, 1)


ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"$ref": "#"}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"type": "string", "minLength": "x"}},
            }
        },
        {"tools": [TOOL]},
        {"tools": [], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"tools": [TOOL], "tool_choice": "sometimes"},
    ],
)
def test_what_cannot_be_answered_in_shape_is_a_400(fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        chat_job(ASK | fields)
    assert refused.value.status == 400


def test_a_limit_cuts_a_script_and_none_does_not() -> None:
    wanted = {"type": "json_schema", "json_schema": {"schema": {"const": "x" * 100}}}
    job = chat_job(ASK | {"response_format": wanted})
    assert job.script is not None
    assert job.script.text == json.dumps("x" * 100)
    assert job.max_tokens == len(job.script.tokens)
    assert chat_job(ASK | {"response_format": wanted, "max_tokens": 3}).max_tokens == 3
    assert chat_job(ASK | {"response_format": {"type": "text"}}).script is None
