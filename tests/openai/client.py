"""The official `openai` package against a running daemon: python3 client.py http://127.0.0.1:8000

The daemon must serve a pair with a chat template, run one sequence at a time and let one wait (tests/tests/openai.rs
starts it so). Prints what it saw; any surprise ends it with a traceback.
"""

import queue
import sys
import threading

import openai

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
    expects(openai.BadRequestError, create(n=2), "n")
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
    refuses(client, model)
    is_limited(client, model)
    print(f"openai {openai.__version__}: all as expected")


main()
