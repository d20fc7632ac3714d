"""An answer that is fixed beforehand: a call of a tool, or JSON by a schema.

A model decides by itself whether to call a tool; here it does where it may and the user spoke
last, so that a client's loop of calls and results ends with an answer in words. A value for a
schema is what a model under guided decoding would say: made up, but in shape. Types, required and
optional keys, enumerations, bounds and references are kept; of patterns only the common formats of
strings are. The same seed gives the same value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from json import dumps
from math import ceil, floor
from random import Random
from typing import Any, Final
from zlib import crc32

from penstock.bench.sim.errors import Refusal, invalid_field
from penstock.bench.sim.prompt import Prompt
from penstock.bench.sim.text import TOKEN_BYTES, Token, token_id

_ANY_OBJECT: Final = {"type": "object", "properties": {"answer": {}}}
# A schema may refer to itself: below this optional keys and list items are left out.
DEPTH: Final = 4
# And below this nothing helps: it asks for values without an end.
DEPTH_MAX: Final = 64
VALUES_MAX: Final = 10_000
ITEMS_MAX: Final = 100
CHARS_MAX: Final = 1_000

_WORDS: Final = ("gate", "water", "turbine", "river", "valve", "pressure", "stone", "light")
_FORMATS: Final = {
    "date": "2026-01-31",
    "time": "12:30:00Z",
    "date-time": "2026-01-31T12:30:00Z",
    "duration": "PT5M",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "email": "somebody@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
}


@dataclass(frozen=True, slots=True)
class Script:
    """What is said, and how it ends; `tool` is whose arguments it is, if it is a call."""

    text: str
    tool: str | None = None
    tokens: tuple[Token, ...] = field(init=False)

    def __post_init__(self) -> None:
        starts = range(0, len(self.text), TOKEN_BYTES)
        pieces = [self.text[start : start + TOKEN_BYTES] for start in starts]
        tokens = tuple(
            Token(token_id(piece.encode()), piece.encode(), dumps(piece)[1:-1].encode())
            for piece in pieces
        )
        object.__setattr__(self, "tokens", tokens)

    @property
    def finish(self) -> str:
        return "stop" if self.tool is None else "tool_calls"


class Recital:
    __slots__ = ("_left",)

    def __init__(self, script: Script) -> None:
        self._left = iter(script.tokens)

    def speak(self) -> Token:
        return next(self._left)


def script_of(body: Mapping[str, Any], prompt: Prompt) -> Script | None:
    """The script of a chat request, None where it may be answered in any words."""
    seed = crc32(prompt.text)
    tool = _tool_to_call(body)
    if tool is not None:
        parameters = tool.get("parameters") or {"type": "object"}
        return Script(_json(parameters, seed, "tools"), str(tool["name"]))
    schema = _schema_wanted(body.get("response_format"))
    return Script(_json(schema, seed, "response_format")) if schema is not None else None


def _tool_to_call(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The function to call: the one that is named, else the first."""
    choice = body.get("tool_choice") or ("auto" if body.get("tools") else "none")
    if choice == "none":
        return None
    tools = body.get("tools") or []
    given = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    functions = [each for each in given if isinstance(each, dict) and "name" in each]
    if choice in ("auto", "required"):
        asked = choice == "required" or _user_spoke_last(body)
        return functions[0] if asked and functions else None
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    for each in functions:
        if each["name"] == name:
            return each
    raise invalid_field("tool_choice", "The tool specified in `tool_choice` does not exist")


def _user_spoke_last(body: Mapping[str, Any]) -> bool:
    return bool(body["messages"]) and body["messages"][-1].get("role") == "user"


def _schema_wanted(wanted: Any) -> Any:
    """The schema that a `response_format` names, None for text."""
    if not isinstance(wanted, dict):
        return None
    kind = wanted.get("type")
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "json_schema":
        return None
    named = wanted.get("json_schema")
    if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
        raise invalid_field("response_format")
    return named["schema"]


def _json(schema: Any, seed: int, field: str) -> str:
    """Compact, as guided decoding has it without white space."""
    try:
        return dumps(value_of(schema, seed))
    except Endless as error:
        raise Refusal(400, str(error), param=field) from None
    except (TypeError, ValueError, AttributeError, OverflowError, ArithmeticError):
        raise invalid_field(field, "Input should be a valid JSON Schema") from None


class Endless(ValueError):
    """A schema that only an endless value satisfies."""


def value_of(schema: Any, seed: int) -> Any:
    """A value for the schema. Raises Endless."""
    return _Maker(schema, Random(seed)).value(schema, 0)


class _Maker:
    def __init__(self, root: Any, rng: Random) -> None:
        self._root = root
        self._rng = rng
        self._made = 0

    def value(self, schema: Any, depth: int) -> Any:
        self._made += 1
        if depth > DEPTH_MAX or self._made > VALUES_MAX:
            raise Endless("the schema has no value that ends")
        schema = self._resolved(schema, depth)
        if "const" in schema:
            return schema["const"]
        if options := schema.get("enum"):
            return self._rng.choice(options)
        kind = schema.get("type") or _kind_of(schema)
        if isinstance(kind, list):
            kind = "null" if depth > DEPTH and "null" in kind else kind[0]
        make = getattr(self, f"_{kind}", None)
        return make(schema, depth) if make else None

    def _resolved(self, schema: Any, depth: int) -> Mapping[str, Any]:
        """The schema with references followed, one alternative taken and its parts merged."""
        for _ in range(DEPTH_MAX):
            if not isinstance(schema, dict):
                return {}  # true: whatever
            rest = {key: part for key, part in schema.items() if key not in _JOINED}
            if "$ref" in schema:
                found = self._at(str(schema["$ref"]))
            elif options := schema.get("anyOf") or schema.get("oneOf"):
                found = _ending(options) if depth > DEPTH else options[0]
            elif parts := schema.get("allOf"):
                found = {}
                if depth > DEPTH_MAX:
                    break
                for part in parts:
                    found = _merged(found, self._resolved(part, depth + 1))
            else:
                return schema
            schema = _merged(found if isinstance(found, dict) else {}, rest)
        raise Endless("the schema refers to itself")

    def _at(self, pointer: str) -> Any:
        node = self._root
        for step in pointer.lstrip("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            node = node.get(name, {}) if isinstance(node, dict) else {}
        return node

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required") or ()
        properties = schema.get("properties") or {}
        names = required if depth >= DEPTH else [*properties, *required]
        return {name: self.value(properties.get(name, {}), depth + 1) for name in names}

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems") or []
        wanted = max(int(schema.get("minItems", 0)), len(first), 0 if depth >= DEPTH else 1)
        count = min(wanted, int(schema.get("maxItems", wanted)), ITEMS_MAX)
        items = schema.get("items", {})
        kinds = [*first, *[items] * count][:count]
        return [self.value(kind, depth + 1) for kind in kinds]

    def _string(self, schema: Mapping[str, Any], depth: int) -> str:
        if known := _FORMATS.get(str(schema.get("format"))):
            return known
        least = min(int(schema.get("minLength", 1)), CHARS_MAX)
        text = self._rng.choice(_WORDS)
        while len(text) < least:
            text += f" {self._rng.choice(_WORDS)}"
        return text[: int(schema.get("maxLength", max(least, len(text))))]

    def _integer(self, schema: Mapping[str, Any], depth: int) -> int:
        step = schema.get("multipleOf", 1)
        low, high = _bounds(schema, 1)
        if low is None:
            low = 0 if high is None or high >= 0 else high - 9 * step
        if high is None:
            high = low + 9 * step
        first, last = ceil(low / step), floor(high / step)
        return int(self._rng.randint(first, max(first, last)) * step)

    def _number(self, schema: Mapping[str, Any], depth: int) -> float:
        if "multipleOf" in schema:
            return float(self._integer(schema, depth))
        low, high = _bounds(schema, 0.001)
        if low is None:
            low = 0.0 if high is None or high >= 0 else high - 1.0
        return float(low + (high - low if high is not None else 1.0) * 0.5)

    def _boolean(self, schema: Mapping[str, Any], depth: int) -> bool:
        return self._rng.random() < 0.5

    def _null(self, schema: Mapping[str, Any], depth: int) -> None:
        return None


_JOINED: Final = frozenset({"$ref", "anyOf", "oneOf", "allOf"})


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both at once, keys and required names of both."""
    found = {**one, **other}
    for key, join in (("properties", dict), ("required", list)):
        if key in one and key in other:
            found[key] = {**one[key], **other[key]} if join is dict else [*one[key], *other[key]]
    return found


def _ending(options: list[Any]) -> Any:
    """The alternative that ends soonest, by its looks."""
    ends = ("null", "boolean", "integer", "number", "string")
    return next((o for o in options if isinstance(o, dict) and o.get("type") in ends), options[-1])


def _kind_of(schema: Mapping[str, Any]) -> str:
    """The type that the keys speak of, where none is said."""
    if "properties" in schema or "required" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else "string"


def _bounds(schema: Mapping[str, Any], above: float) -> tuple[float | None, float | None]:
    """The least and the largest number; `above` is how far from an exclusive one."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if (more := schema.get("exclusiveMinimum")) is not None:
        low = more + above if low is None else max(low, more + above)
    if (less := schema.get("exclusiveMaximum")) is not None:
        high = less - above if high is None else min(high, less - above)
    return low, high
