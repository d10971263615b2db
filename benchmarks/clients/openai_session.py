"""A session of the openai package. Address and key come from its own variables; it knows nothing of Octavo."""

from __future__ import annotations

import os

import openai

QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]


def main() -> None:
    model = os.environ["MODEL"]
    client = openai.OpenAI(max_retries=0)
    print("openai", openai.__version__)
    print("models:", [m.id for m in client.models.list()])
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=32)
    print("chat:", repr(answer.choices[0].message.content), answer.choices[0].finish_reason, _counts(answer.usage))
    whole = answer.choices[0].message.content
    asked = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 32}
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    print(f"stream: {len(chunks)} chunks, same text: {text == whole},", _counts(chunks[-1].usage))
    prompt = "One, two, three,"
    completion = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=8, echo=True)
    print("completion:", repr(completion.choices[0].text))
    seeded = [
        client.completions.create(model=model, prompt="Once", max_tokens=16, seed=7).choices[0].text for _ in range(2)
    ]
    print("same seed, same text:", seeded[0] == seeded[1])
    for name, kind, call in (
        ("temperature -1", openai.BadRequestError, {"model": model, "temperature": -1}),
        ("unknown model", openai.NotFoundError, {"model": "none"}),
    ):
        try:
            client.chat.completions.create(messages=QUESTION, **call)
        except kind as error:
            print(f"{name}: {type(error).__name__} {error.status_code} {error.code}")
    raw = client.chat.completions.create(model=model, messages=QUESTION, stream=True)
    next(raw)
    raw.close()
    print("closed a stream of job", raw.response.headers["x-octavo-job"])


def _counts(usage: object) -> str:
    return f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
