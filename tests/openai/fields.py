"""Fields of OpenAI's and vLLM's clients beyond those of the draws: honoured, taken without effect, or refused by name."""

import openai

PROMPT = "Returns the number of elements in the"


def counts(client, model):
    """`usage` as it grows, and tokens by their ids."""
    asked = dict(model=model, prompt=PROMPT, max_tokens=16, temperature=0, extra_body={"return_token_ids": True, "ignore_eos": True})
    whole = client.completions.create(**asked)
    choice = whole.choices[0].model_extra
    assert len(choice["token_ids"]) == 16 and len(choice["prompt_token_ids"]) == whole.usage.prompt_tokens, choice
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(client.completions.create(**asked, stream=True, stream_options=options))
    used = [chunk.usage.completion_tokens for chunk in chunks]
    assert used == sorted(used) and used[-1] == used[-2] == 16, used
    assert all(chunk.usage.total_tokens == chunk.usage.prompt_tokens + chunk.usage.completion_tokens for chunk in chunks)
    streamed = [token for chunk in chunks if chunk.choices for token in chunk.choices[0].model_extra["token_ids"]]
    assert streamed == choice["token_ids"], (streamed, choice)
    chat = dict(model=model, messages=[{"role": "user", "content": "What is a slice?"}], max_completion_tokens=8)
    first = next(iter(client.chat.completions.create(**chat, stream=True, stream_options=options)))
    assert first.usage.completion_tokens == 0 and first.usage.prompt_tokens > 0, first
    print("usage in every chunk:", used)
    return choice


def chooses_tokens(client, model, told):
    asked = dict(model=model, prompt=PROMPT, max_tokens=24, temperature=0)

    def create(mode="auto", **extra):
        speculation = {"speculation": {"mode": mode}, "return_token_ids": True, "ignore_eos": True}
        choice = client.completions.create(**asked, extra_body={**extra, **speculation}).choices[0]
        return choice.text, choice.model_extra["token_ids"]

    text = create()[0]
    word = next(word for word in text.split() if len(word) > 3 and word.isalpha())
    for extra in ({"bad_words": [word]}, {"allowed_token_ids": told["token_ids"]}):
        found = create(**extra)
        assert "bad_words" not in extra or word not in found[0].split(), (word, found)
        assert "allowed_token_ids" not in extra or set(found[1]) <= set(told["token_ids"]), found
        for mode in ("off", "draft", "lookup"):
            assert create(mode, **extra) == found, (extra, mode)
    print(f"without {word!r}: {create(bad_words=[word])[0]!r}")


def cuts(client, model, told):
    def prompt(**extra):
        answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=1, extra_body={"return_token_ids": True, **extra})
        return answer.choices[0].model_extra["prompt_token_ids"]

    whole = told["prompt_token_ids"]
    assert prompt(add_special_tokens=False) == whole[1:], whole
    assert prompt(truncate_prompt_tokens=3) == whole[-3:] and prompt(truncate_prompt_tokens=-1) == whole
    long = client.completions.create(model=model, prompt="a slice " * 2000, max_tokens=4, extra_body={"truncate_prompt_tokens": -1})
    print("of a long prompt", long.usage.prompt_tokens, "tokens are kept")


def salts(client, model):
    def cached(salt):
        extra = {"cache_salt": salt} if salt else {}
        answer = client.completions.create(model=model, prompt="Nobody has said this before. " * 12, max_tokens=8, extra_body=extra)
        return answer.usage.prompt_tokens_details.cached_tokens > 0

    assert [cached(salt) for salt in (None, None, "a", "a", "b", None)] == [False, True, False, True, False, True]
    print("cached prompts: under one salt alone")


def takes(client, model, expects):
    said = dict(model=model, messages=[{"role": "user", "content": "What is a slice?"}], max_completion_tokens=8, seed=3)
    plain = client.chat.completions.create(**said).choices[0].message.content
    taken = dict(
        metadata={"a": "b"}, prompt_cache_key="k", safety_identifier="me", user="me", reasoning_effort="medium", verbosity="medium", store=False,
        service_tier="auto",
    )
    assert client.chat.completions.create(**said, **taken).choices[0].message.content == plain
    for more, param in [
        ({"reasoning_effort": "low"}, "reasoning_effort"), ({"verbosity": "high"}, "verbosity"), ({"store": True}, "store"),
        ({"extra_body": {"allowed_token_ids": []}}, "allowed_token_ids"), ({"extra_body": {"bad_words": [""]}}, "bad_words[0]"),
        ({"extra_body": {"truncate_prompt_tokens": -2}}, "truncate_prompt_tokens"), ({"extra_body": {"cache_salt": ""}}, "cache_salt"),
    ]:
        expects(openai.BadRequestError, lambda: client.chat.completions.create(**said, **more), param)


def calls_with_a_form(client, model):
    """What instructor sends in the Responses API: the function's schema as the form of a text as well."""
    schema = {"type": "object", "properties": {"stable": {"type": "boolean"}}, "required": ["stable"], "additionalProperties": False}
    call = client.responses.create(
        model=model, input="Is Vec stable?", max_output_tokens=60,
        tools=[{"type": "function", "name": "Answer", "parameters": schema}], tool_choice={"type": "function", "name": "Answer"},
        text={"format": {"type": "json_schema", "name": "Answer", "strict": True, "schema": schema}},
    ).output[0]
    assert call.type == "function_call" and call.name == "Answer", call
    print("a call beside a form:", call.arguments)


def fields(client, model, expects):
    told = counts(client, model)
    chooses_tokens(client, model, told)
    cuts(client, model, told)
    salts(client, model)
    takes(client, model, expects)
    calls_with_a_form(client, model)
