"""An answer that is fixed beforehand: a call of a tool, or JSON by a schema.

A model decides by itself whether to call a tool; here it does where it may and the user spoke
last, so that a client's loop of calls and results ends with an answer in words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from json import dumps
from typing import Any, Final
from zlib import crc32

from penstock.bench.sim.errors import Refusal, invalid_field
from penstock.bench.sim.json_by_schema import Endless, value_of
from penstock.bench.sim.prompt import Prompt
from penstock.bench.sim.text import TOKEN_BYTES, Token, token_id

_ANY_OBJECT: Final = {"type": "object", "properties": {"answer": {}}}


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
    """Speaks a script, one token at a time."""

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
