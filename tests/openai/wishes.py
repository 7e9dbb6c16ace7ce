"""Fields that OpenAI does not have, and those whose effect is only seen in the draws: with speculation and without it."""

import openai

PROMPT = "Returns the number of elements in the"


def samples(client, model, expects):
    """Every field of sampling changes the text, the same way with every kind of speculation."""

    def text(more, **wishes):
        extra = {"ignore_eos": True, **more.get("extra_body", {}), **wishes}
        fields = {**dict(model=model, prompt=PROMPT, max_tokens=48, temperature=0.9, seed=11, user="ada"), **more, "extra_body": extra}
        return client.completions.create(**fields).choices[0].text

    plain = text({})
    fields = [
        {"temperature": 0.3}, {"top_p": 0.3}, {"seed": 12}, {"presence_penalty": 1.5}, {"frequency_penalty": 1.5},
        {"logit_bias": {str(token): -100 for token in range(300, 900)}},
        {"extra_body": {"top_k": 2}}, {"extra_body": {"min_p": 0.4}}, {"extra_body": {"repetition_penalty": 1.5}},
    ]
    for more in fields:
        found = text(more)
        assert found != plain, more
        for mode in ("off", "draft", "lookup"):
            assert text(more, speculation={"mode": mode}) == found, (more, mode)
    print("sampling:", len(fields), "fields, each the same text with four kinds of speculation")
    for more, param in [({"extra_body": {"min_p": 2}}, "min_p"), ({"logit_bias": {"99999": 1}}, "logit_bias"), ({"extra_body": {"top_k": 0.5}}, "top_k")]:
        expects(openai.BadRequestError, lambda: text(more), param)


def wishes(client, model, expects):
    asked = dict(model=model, prompt=PROMPT, max_tokens=40, temperature=0)

    def create(stream=False, **extra):
        return client.completions.create(**asked, stream=stream, extra_body={"ignore_eos": True, **extra})

    slo = {"ttft_ms": 500, "tpot_ms": 50}
    answer = create(include_metrics=True, priority=-2, speculation={"k_max": 4, "mode": "draft", "slo": slo})
    told = answer.model_extra["metrics"]["speculative_decoding"]
    steps = told["num_spec_steps"]
    assert sum(told["acceptance_histogram"]) == steps and len(told["acceptance_histogram"]) <= 5, told
    assert sum(i * n for i, n in enumerate(told["acceptance_histogram"])) == told["num_accepted_draft_tokens"], told
    if steps:
        assert abs(told["mean_acceptance_length"] - 1 - told["num_accepted_draft_tokens"] / steps) < 1e-6, told
    last = [chunk for chunk in create(stream=True, include_metrics=True)][-1]
    assert "speculative_decoding" in last.model_extra["metrics"], last
    assert "metrics" not in create().model_extra
    off = create(include_metrics=True, speculation={"mode": "off"})
    assert off.model_extra["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    assert off.choices[0].text == answer.choices[0].text
    print("metrics:", {name: told[name] for name in ("num_spec_steps", "mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram")})

    message = {"role": "user", "content": "What is a slice?"}
    chat = client.chat.completions.create(
        model=model, messages=[message, {"role": "assistant", "content": "A slice is"}], max_completion_tokens=12,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False, "continue_final_message": True},
    )
    assert chat.choices[0].message.content
    raw = client.completions.with_raw_response.create(**asked, extra_headers={"x-request-id": "job-7"})
    assert raw.headers["x-request-id"] == "job-7"
    version = client.get("../version", cast_to=object)
    assert set(version) == {"version"}, version

    refused = [
        ({"speculation": {"mode": "fast"}}, "speculation.mode"), ({"speculation": {"k_max": 17}}, "speculation.k_max"),
        ({"speculation": {"slo": {"tpot_ms": 0}}}, "speculation.slo.tpot_ms"), ({"priority": 1.5}, "priority"),
        ({"priority": 1, "speculation": {"priority": 2}}, "priority"), ({"include_metrics": "yes"}, "include_metrics"),
    ]
    for extra, param in refused:
        expects(openai.BadRequestError, lambda: create(**extra), param)
