"""The official `openai` package against a running daemon: python3 client.py http://127.0.0.1:8000

The daemon must serve a pair with a chat template, run one sequence at a time and let one wait (tests/tests/openai.rs
starts it so). Prints what it saw; any surprise ends it with a traceback.
"""

import json
import queue
import re
import sys
import threading

import openai

import fields
import wishes

PROMPT = "Returns the number of elements in the"
LONG = {"prompt": PROMPT, "max_tokens": 400, "temperature": 0.8, "seed": 3, "extra_body": {"ignore_eos": True}}


def lists(client):
    models = client.models.list().data
    assert len(models) == 1, models
    name = models[0].id
    assert client.models.retrieve(name).id == name
    print("models:", name)
    return name


def completes(client, model):
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=24, temperature=0, seed=1)
    usage = answer.usage
    assert answer.choices[0].text and answer.choices[0].finish_reason in ("length", "stop")
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    print("completion:", repr(answer.choices[0].text), usage.prompt_tokens, "+", usage.completion_tokens, "tokens")

    stream = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=24, temperature=0, seed=1, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].text, (text, answer.choices[0].text)
    assert chunks[-1].usage == usage, (chunks[-1].usage, usage)
    print("streamed: the same text in", len(chunks), "chunks, with usage")

    plain = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=24, temperature=0, seed=1, extra_body={"speculation": {"k_max": 0}}
    )
    assert plain.choices[0].text == text
    print("without speculation: the same text")

    several = client.completions.create(model=model, prompt=[PROMPT], max_tokens=4)
    assert [choice.index for choice in several.choices] == [0]


def chats(client, model):
    messages = [{"role": "system", "content": "You explain Rust."}, {"role": "user", "content": "What is a slice?"}]
    asked = {"model": model, "messages": messages, "max_completion_tokens": 24, "temperature": 0.7, "seed": 5}
    answer = client.chat.completions.create(**asked)
    message = answer.choices[0].message
    assert message.role == "assistant" and isinstance(message.content, str)
    print("chat:", repr(message.content))

    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == message.content, (text, message.content)
    assert chunks[-1].usage == answer.usage
    print("chat streamed: the same text, with usage")


def predicts(client, model):
    asked = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_completion_tokens": 60, "temperature": 0}
    text = client.chat.completions.create(**asked).choices[0].message.content
    answer = client.chat.completions.create(**asked, prediction={"type": "content", "content": text})
    assert answer.choices[0].message.content == text
    details = answer.usage.completion_tokens_details
    accepted = details.accepted_prediction_tokens if details else 0
    print("prediction: the same text,", accepted, "predicted tokens accepted")


def tells_log_probabilities(client, model):
    asked = dict(model=model, prompt=PROMPT, max_tokens=12, temperature=0, seed=1, logprobs=3)
    told = client.completions.create(**asked).choices[0].logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 12
    # Greedy: each token is the likeliest in its place.
    for own, top in zip(told.token_logprobs, told.top_logprobs):
        assert own <= 0 and abs(own - max(top.values())) < 1e-6, (own, top)
    plain = client.completions.create(**asked, extra_body={"speculation": {"k_max": 0}}).choices[0].logprobs
    assert plain == told, (plain, told)
    streamed = [chunk.choices[0].logprobs for chunk in client.completions.create(**asked, stream=True) if chunk.choices[0].logprobs]
    assert [value for part in streamed for value in part.token_logprobs] == told.token_logprobs
    messages = [{"role": "user", "content": "What does Vec::len do?"}]
    asked = dict(model=model, messages=messages, max_completion_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
    content = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert len(content) == 8 and all(len(one.top_logprobs) == 2 for one in content), content
    assert all(one.logprob == one.top_logprobs[0].logprob and one.token == one.top_logprobs[0].token for one in content)
    chunks = client.chat.completions.create(**asked, stream=True)
    streamed = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert streamed == content, (streamed, content)
    print("log-probabilities: whole, streamed, of chats, the same without speculation")


def scores(client, model):
    score = client.completions.create(model=model, prompt=PROMPT, max_tokens=0, echo=True, logprobs=1)
    choice = score.choices[0]
    assert choice.text == PROMPT and score.usage.completion_tokens == 0, score
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
    assert len(choice.logprobs.tokens) == score.usage.prompt_tokens
    print("score of the prompt:", sum(choice.logprobs.token_logprobs[1:]))


def chooses(client, model):
    asked = dict(model=model, prompt=PROMPT, max_tokens=10, temperature=1, seed=2)
    two = client.completions.create(**asked, n=2)
    assert [choice.index for choice in two.choices] == [0, 1]
    assert two.usage.completion_tokens == sum([10, 10]) and two.choices[0].text != two.choices[1].text, two
    assert client.completions.create(**asked).choices[0].text == two.choices[0].text
    texts = ["", ""]
    for chunk in client.completions.create(**asked, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in two.choices], texts
    print("two choices:", texts)


def ends(client, model):
    asked = dict(model=model, prompt=PROMPT, max_tokens=16, temperature=0, user="somebody")
    text = client.completions.create(**asked, extra_body={"ignore_eos": True}).choices[0].text
    stop = text[3:6]
    at = text.find(stop)
    cut = client.completions.create(**asked, stop=stop)
    assert cut.choices[0].text == text[:at] and cut.choices[0].finish_reason == "stop", (cut, text)
    shown = client.completions.create(**asked, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert shown.choices[0].text == text[: at + 3], (shown, text)
    later = client.completions.create(**asked, stop=stop, extra_body={"min_tokens": 16, "ignore_eos": True})
    assert later.choices[0].text == text and later.choices[0].finish_reason == "length", later
    first = client.completions.create(**asked, logprobs=0, extra_body={"return_tokens_as_token_ids": True}).choices[0].logprobs.tokens[0]
    ended = client.completions.create(**asked, extra_body={"stop_token_ids": [int(first.removeprefix("token_id:"))]})
    assert ended.usage.completion_tokens == 0 and ended.choices[0].finish_reason == "stop", ended
    print("ends: by string, shown, not before enough tokens, by token")


def follows(client, model):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["map", "list"]}},
        "required": ["name", "size", "kind"],
        "additionalProperties": False,
    }
    asked = dict(
        model=model,
        messages=[{"role": "user", "content": "What does Vec::len do?"}],
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
        max_completion_tokens=200,
        seed=5,
    )
    choice = client.chat.completions.create(**asked).choices[0]
    value = json.loads(choice.message.content)
    assert choice.finish_reason == "stop" and set(value) == {"name", "size", "kind"}, choice
    assert len(value["name"]) <= 12 and 0 <= value["size"] <= 99 and value["kind"] in ("map", "list"), value
    streamed = client.chat.completions.create(**asked, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    assert text == choice.message.content, (text, choice)
    plain = client.chat.completions.create(**asked, extra_body={"speculation": {"k_max": 0}})
    assert plain.choices[0].message.content == text, plain

    def complete(**form):
        return client.completions.create(model=model, prompt=PROMPT, max_tokens=60, seed=1, extra_body=form).choices[0].text

    assert complete(guided_choice=["vector", "map"]) in ("vector", "map")
    assert re.fullmatch("[a-f]{3}-[0-9]{2}", complete(guided_regex="[a-f]{3}-[0-9]{2}"))
    assert re.fullmatch("<[a-z]{1,5}>", complete(structured_outputs={"grammar": 'start: "<" /[a-z]{1,5}/ ">"'}))
    expects(openai.BadRequestError, lambda: complete(guided_regex="("), "guided_regex")
    print("outputs of a given form:", value)


def calls(client, model):
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string", "maxLength": 12}, "unstable": {"type": "boolean"}},
        "required": ["path", "unstable"],
        "additionalProperties": False,
    }
    documents = {"type": "function", "function": {"name": "documents", "description": "Documents an item.", "parameters": schema}}
    lists = {"type": "function", "function": {"name": "lists", "description": "Lists all items."}}
    asked = dict(
        model=model,
        messages=[{"role": "user", "content": "What does Vec::len do?"}],
        tools=[documents, lists],
        tool_choice={"type": "function", "function": {"name": "documents"}},
        max_completion_tokens=200,
        seed=5,
    )

    def read(choice):
        return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]

    choice = client.chat.completions.create(**asked).choices[0]
    [(name, arguments)] = read(choice)
    assert name == "documents" and choice.finish_reason == "stop" and choice.message.content is None, choice
    assert set(arguments) == {"path", "unstable"} and len(arguments["path"]) <= 12, arguments
    asked.update(tool_choice="required", parallel_tool_calls=False)
    choice = client.chat.completions.create(**asked).choices[0]
    called = read(choice)
    assert len(called) == 1 and choice.finish_reason == "tool_calls", choice
    plain = client.chat.completions.create(**asked, extra_body={"speculation": {"k_max": 0}}).choices[0]
    assert read(plain) == called, (plain, choice)
    streamed, texts, finish = [], [], None
    for chunk in client.chat.completions.create(**asked, stream=True):
        finish = chunk.choices[0].finish_reason or finish
        assert not chunk.choices[0].delta.content, chunk
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.index == len(streamed):
                assert call.id.startswith("call_") and call.type == "function", call
                streamed.append(call.function.name)
                texts.append("")
            texts[call.index] += call.function.arguments
    assert [(name, json.loads(text)) for name, text in zip(streamed, texts)] == called and finish == "tool_calls", (streamed, texts)
    # The package puts a stream together by itself, too.
    with client.chat.completions.stream(**asked) as stream:
        stream.until_done()
        final = stream.get_final_completion().choices[0]
    assert read(final) == called and final.finish_reason == "tool_calls", final
    free = {**asked, "tool_choice": "auto", "max_completion_tokens": 16}
    choice = client.chat.completions.create(**free).choices[0]
    assert choice.message.content and not choice.message.tool_calls, choice
    expects(openai.BadRequestError, lambda: client.chat.completions.create(**{**asked, "tools": [documents, documents]}), "tools[1].function.name")
    print("calls:", arguments, called)


def responds(client, model):
    asked = dict(model=model, instructions="You explain Rust.", input="What is a slice?", max_output_tokens=24, temperature=0.7, seed=5)
    seed = asked.pop("seed")
    answer = client.responses.create(**asked, extra_body={"seed": seed}, metadata={"who": "me"})
    messages = [{"role": "system", "content": "You explain Rust."}, {"role": "user", "content": "What is a slice?"}]
    chat = client.chat.completions.create(model=model, messages=messages, max_completion_tokens=24, temperature=0.7, seed=seed)
    assert answer.output_text == chat.choices[0].message.content, (answer, chat)
    assert answer.object == "response" and answer.store is False and answer.metadata == {"who": "me"}, answer
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (chat.usage.prompt_tokens, chat.usage.completion_tokens)
    ended = {"length": "incomplete", "stop": "completed"}[chat.choices[0].finish_reason]
    assert answer.status == ended, answer
    events = list(client.responses.create(**asked, extra_body={"seed": seed}, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response." + ended), events
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == answer.output_text == events[-1].response.output_text
    # The package puts a stream together by itself, too.
    with client.responses.stream(**asked, extra_body={"seed": seed}) as stream:
        parts = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(parts) == text, parts
    print("response:", repr(text), "in", len(events), "events")

    schema = {"type": "object", "properties": {"path": {"type": "string", "maxLength": 12}}, "required": ["path"], "additionalProperties": False}
    tools = [{"type": "function", "name": "documents", "parameters": schema, "strict": True}]
    asked = dict(model=model, tools=tools, tool_choice="required", parallel_tool_calls=False, max_output_tokens=200, extra_body={"seed": 5})
    call = client.responses.create(**asked, input="What does Vec::len do?").output[0]
    assert call.type == "function_call" and call.name == "documents" and set(json.loads(call.arguments)) == {"path"}, call
    streamed = list(client.responses.create(**asked, input="What does Vec::len do?", stream=True))
    [done] = [event for event in streamed if event.type == "response.function_call_arguments.done"]
    pieces = "".join(event.delta for event in streamed if event.type == "response.function_call_arguments.delta")
    assert call.arguments == done.arguments == pieces, (call, done, pieces)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "the number of elements"}
    said = [{"role": "user", "content": "What does Vec::len do?"}, call, output]
    again = client.responses.create(**{**asked, "tool_choice": "none", "max_output_tokens": 8}, input=said)
    assert again.output_text, again
    print("response with a call:", call.arguments)

    form = {"type": "json_schema", "name": "answer", "strict": True, "schema": schema}
    formed = client.responses.create(model=model, input="Which item?", text={"format": form}, max_output_tokens=200)
    assert set(json.loads(formed.output_text)) == {"path"}, formed
    expects(openai.NotFoundError, lambda: client.responses.retrieve(answer.id))
    expects(openai.BadRequestError, lambda: client.responses.create(model=model, input="x", previous_response_id=answer.id), "previous_response_id")
    expects(openai.BadRequestError, lambda: client.responses.create(model=model, input="x", tools=[{"type": "web_search"}]), "tools[0].type")


def expects(error, call, param=None):
    try:
        call()
    except error as caught:
        assert type(caught) is error, caught
        assert param is None or caught.param == param, (param, caught.param)
        print(f"{error.__name__}: {caught.message}")
        return caught
    raise AssertionError(f"{error.__name__} was expected")


def refuses(client, model):
    def create(**fields):
        return lambda: client.completions.create(**{"model": model, "prompt": PROMPT, "max_tokens": 4, **fields})

    expects(openai.NotFoundError, create(model="gpt-9"), "model")
    expects(openai.NotFoundError, lambda: client.models.retrieve("gpt-9"))
    expects(openai.BadRequestError, create(temperature=3), "temperature")
    expects(openai.BadRequestError, create(n=17), "n")
    expects(openai.BadRequestError, create(best_of=3), "best_of")
    expects(openai.BadRequestError, create(logprobs=21), "logprobs")
    expects(openai.BadRequestError, create(max_tokens=0), "max_tokens")
    expects(openai.BadRequestError, create(prompt="x " * 20000))
    expects(openai.BadRequestError, create(extra_body={"max_token": 4}), "max_token")
    expects(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=[]), "messages")


def is_limited(client, model):
    """One stream runs and one request may wait: of two more at once, whichever comes second is refused."""
    running = client.completions.create(model=model, stream=True, **LONG)
    next(iter(running))
    refused = queue.Queue()

    def ask():
        try:
            client.completions.create(model=model, **LONG)
        except openai.RateLimitError as error:
            refused.put(error)

    others = [threading.Thread(target=ask) for _ in range(2)]
    for other in others:
        other.start()
    error = refused.get(timeout=60)
    running.close()
    for other in others:
        other.join()
    assert refused.empty(), "the one that waited was refused as well"
    assert int(error.response.headers["retry-after"]) >= 1
    print("RateLimitError:", error.message)


def main():
    client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=120)
    model = lists(client)
    completes(client, model)
    chats(client, model)
    predicts(client, model)
    tells_log_probabilities(client, model)
    scores(client, model)
    chooses(client, model)
    ends(client, model)
    follows(client, model)
    calls(client, model)
    responds(client, model)
    wishes.samples(client, model, expects)
    wishes.wishes(client, model, expects)
    fields.fields(client, model, expects)
    refuses(client, model)
    is_limited(client, model)
    print(f"openai {openai.__version__}: all as expected")


main()
