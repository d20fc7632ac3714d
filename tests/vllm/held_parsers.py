"""Two parsers for a vLLM, both registered as `held`: its stream is silent for long after it began.

vLLM imports this file by its path (`--tool-parser-plugin`, `--reasoning-parser-plugin`). The
reasoning parser shows the first tokens as reasoning. The tool parser then holds back a call until
HELD_S have passed, as parsers do that tell the arguments of a call only when they are whole.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
)
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager

HELD_S = 90.0
REASONING_TOKENS = 8
ARGUMENTS = json.dumps({"lock": "north", "height_m": 3})


@ReasoningParserManager.register_module("held")
class HeldReasoning(ReasoningParser):
    """The first tokens of an answer are reasoning."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        return False

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Any) -> bool:
        return len(input_ids) >= REASONING_TOKENS

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        return []

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        return model_output, None

    def extract_reasoning_streaming(
        self, previous_text: str, current_text: str, delta_text: str, *_: Any, **__: Any
    ) -> DeltaMessage | None:
        return DeltaMessage(reasoning=delta_text)


@ToolParserManager.register_module("held")
class HeldTools(ToolParser):
    """One call of the first tool, told HELD_S after the reasoning."""

    began_s = 0.0
    told = False

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=model_output)

    def extract_tool_calls_streaming(self, *texts: Any, **more: Any) -> DeltaMessage | None:
        now_s = time.monotonic()
        self.began_s = self.began_s or now_s
        if now_s < self.began_s + HELD_S or self.told:
            return None
        self.told = True
        request = more["request"] if more else texts[-1]
        name = request.tools[0].function.name
        self.prev_tool_call_arr = [{"name": name, "arguments": json.loads(ARGUMENTS)}]
        self.streamed_args_for_tool = [ARGUMENTS]
        function = DeltaFunctionCall(name=name, arguments=ARGUMENTS)
        call = DeltaToolCall(index=0, type="function", id="call-1", function=function)
        return DeltaMessage(tool_calls=[call])
