"""Prompts of the paths that hold several in fields of their own."""

import orjson
import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.forms import MalformedAsk
from penstock.balancing.reader import GENERATION, PROMPTS_MAX, Reader
from penstock.balancing.tokens import MEDIA_PART_TOKENS, NOTHING, TokenEstimator

CHAT, EMBED, SCORING = "/v1/chat/completions/batch", "/v2/embed", "/generative_scoring"
JSON = [(b"content-type", b"application/json")]
TURN = {"role": "user", "content": "Tell me [of] rivers, and of bridges."}


def ask(path: str, **fields: object) -> Ask:
    return Reader(TokenEstimator(), prefixes=True).read(
        path, JSON, orjson.dumps({"model": "m"} | fields), GENERATION
    )


def test_conversations_of_a_batch() -> None:
    one = ask(CHAT, messages=[[TURN]])
    many = ask(CHAT, messages=[[TURN, TURN]] * 6, max_tokens=9)
    assert (one.prompts, many.prompts, many.max_tokens) == (1, 6, 9)
    assert many.prompt_tokens == pytest.approx(12 * one.prompt_tokens, rel=0.1)
    assert many.measured != NOTHING
    assert not many.blocks


@pytest.mark.parametrize("path", [EMBED, SCORING, CHAT])
def test_what_they_do_not_know_cuts_no_prompt(path: str) -> None:
    many = {"texts": ["of rivers"] * 200, "items": ["Rhine"] * 200, "messages": [[TURN]] * 60}
    seen = ask(path, truncate_prompt_tokens=1, **many)
    assert seen.prompt_tokens >= ask(path, **many).prompt_tokens > 500


def test_texts_and_images_to_embed() -> None:
    texts = ask(EMBED, texts=["of rivers"] * 5, input_type="search_document")
    assert (texts.prompts, texts.media_parts) == (5, 0)
    mixed = ask(EMBED, inputs=[{"content": [{"type": "text", "text": "of rivers"}]}] * 4)
    assert mixed.prompts == 4
    images = ask(EMBED, images=["data:image/png;base64," + "A" * 50_000] * 2)
    assert (images.prompts, images.prompt_tokens) == (2, 2 * MEDIA_PART_TOKENS)
    # They may be cut to the model's length: nothing can be learnt of how long they were.
    assert texts.measured == mixed.measured == images.measured == NOTHING


def test_items_scored_after_a_query() -> None:
    text = ask(
        SCORING, query="Is it a river?", items=["the Rhine", "a bridge"], label_token_ids=[1]
    )
    assert text.prompts == 2
    assert text.prompt_tokens < 50
    assert text.measured == NOTHING  # the backend counts the query with each
    ids = ask(SCORING, query=[1, 2, 3], items=[[1, 2], [3, 4], [5]])
    assert (ids.prompts, ids.prompt_tokens) == (3, 8)
    mixed = ask(SCORING, query="river", items=[[1, 2], [3]])
    assert (mixed.prompts, mixed.measured) == (2, NOTHING)


@pytest.mark.parametrize("path", [CHAT, EMBED, SCORING])
@pytest.mark.parametrize("odd", [None, 1, "text", {}, [], [None, [1, [2]]], [[]] * 3])
def test_odd_values_are_the_backends_to_judge(path: str, odd: object) -> None:
    names = ("messages", "texts", "images", "inputs", "query", "items")
    seen = ask(path, **dict.fromkeys(names, odd))
    assert 1 <= seen.prompts <= 3
    assert 1 <= seen.prompt_tokens <= 3 * MEDIA_PART_TOKENS
    assert ask(path).prompts == 1


def test_long_lists_are_counted() -> None:
    assert ask(CHAT, messages=[[]] * 5_000).prompts == 5_000
    assert ask(CHAT, messages=[[]] * PROMPTS_MAX).prompts == PROMPTS_MAX
    with pytest.raises(MalformedAsk, match="at most 16,384 prompts"):
        ask(CHAT, messages=[[]] * 300_000)
    ids = [[7] * 100_000] * 2
    assert ask(SCORING, query="q", items=ids).prompts == 2
    assert ask(SCORING, query=[7], items=ids).prompt_tokens == 200_001


DOCUMENTS = ["The Rhine runs through the valley."] * 50


@pytest.mark.parametrize("path", ["/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("query", "documents"),
        ("queries", "documents"),
        ("queries", "items"),
        ("text_1", "text_2"),
        ("data_1", "data_2"),
    ],
)
def test_each_document_is_a_prompt_with_its_query(path: str, one: str, many: str) -> None:
    query = "Which river runs through the valley, and where does the mill stand? " * 20
    seen = ask(path, **{one: query, many: DOCUMENTS})
    alone = ask(path, **{one: query, many: DOCUMENTS[:1]})
    assert (seen.prompts, alone.prompts) == (50, 1)
    assert seen.prompt_tokens == pytest.approx(50 * alone.prompt_tokens, rel=0.1)
    assert seen.measured != NOTHING


def test_a_name_that_is_not_read_hides_no_documents() -> None:
    """Which of several pairs of names a backend takes, nobody can tell."""
    for decoy in ({"query": "", "documents": "x"}, {"queries": None, "items": None}):
        seen = ask("/score", text_1="Which river?" * 20, text_2=DOCUMENTS, **decoy)
        assert seen.prompts == 50
        assert seen.prompt_tokens > 50 * 60


@pytest.mark.parametrize("decoy", ["input", "prompt", "messages", "tools"])
def test_what_an_api_does_not_read_is_no_part_of_its_prompt(decoy: str) -> None:
    """A short member in place of what is computed would lower the charge."""
    assert ask(EMBED, texts=["of rivers"] * 50, **{decoy: "x"}).prompt_tokens > 100
    assert ask("/rerank", query="Which?", documents=DOCUMENTS, **{decoy: "x"}).prompt_tokens > 350


def test_as_many_queries_as_documents() -> None:
    seen = ask("/score", queries=["Which river?"] * 50, documents=DOCUMENTS)
    assert seen.prompts == 50
    assert seen.prompt_tokens == pytest.approx(50 * 14, rel=0.5)


def test_documents_of_a_large_body_are_all_counted() -> None:
    seen = ask("/rerank", query="Which river?", documents=DOCUMENTS * 20)
    large = ask("/rerank", query="Which river?", documents=[DOCUMENTS[0] * 40] * 1_000)
    assert (seen.prompts, large.prompts) == (1_000, 1_000)


def test_documents_are_cut_each() -> None:
    seen = ask("/rerank", query="Which?", documents=DOCUMENTS * 2, truncate_prompt_tokens=4)
    assert seen.prompt_tokens == 400
