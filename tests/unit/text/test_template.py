"""Chat templates: the same text as transformers, and no template can hang, grow or reach out."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from fakes.small_tokenizers import byte_level_tokenizer
from templates_text_support import CHATML, MISTRAL, TEMPLATES
from transformers import PreTrainedTokenizerFast

from octavo_common.errors import OctavoError
from octavo_common.text.template import ChatTemplate, TemplateBusy, TemplateError, TemplateRefused

CONVERSATIONS = {
    "one": [{"role": "user", "content": "What is the capital of France?"}],
    "system": [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "Größe 🙂 <|im_end|> {{ 7*7 }} {% if %}"},
    ],
    "several": [
        {"role": "user", "content": "a\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": ""},
    ],
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
HELLO = [{"role": "user", "content": "hello"}]
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def template_of():
    """Makes templates and ends their processes."""
    made: list[ChatTemplate] = []

    def make(source: str, **options) -> ChatTemplate:
        made.append(ChatTemplate(source, special_tokens=TOKENS, **options))
        return made[-1]

    yield make
    for template in made:
        template.close()


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_text_is_that_of_transformers(name, add_generation_prompt, template_of):
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), **TOKENS)
    ours = template_of(TEMPLATES[name])
    for messages in CONVERSATIONS.values():
        expected = theirs.apply_chat_template(
            messages, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=add_generation_prompt
        )
        assert ours.render(messages, add_generation_prompt=add_generation_prompt) == expected


def test_the_templates_own_objection_is_the_callers_error(template_of):
    with pytest.raises(TemplateRefused, match="roles must alternate") as caught:
        template_of(MISTRAL).render([{"role": "assistant", "content": "hi"}])
    assert caught.value.code == "TEMPLATE_ERROR" and caught.value.param == "messages"


BROKEN = {
    "syntax": "{% if %}",
    "class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('id') }}",
    "mutation": "{{ messages.append(1) }}",
    "missing": "{{ nothing.at.all }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "long text": "{{ 'a' * 10**9 }}",
    "long list": "{{ range(10**9)|list }}",
    "padding": "{{ '%1000000000d' % 1 }}{{ 'a'.ljust(10**9) }}",
    "replacing": "{{ ('a' * 10**6).replace('', 'b' * 10**6) }}",
    "doubling": "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "much output": "{% for i in range(99999) %}{{ 'a' * 100 }}{% endfor %}",
    "endless": LOOPS,
    "power": "{{ 10**(10**8) }}",
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_or_hostile_template_ends_in_a_typed_error(name, template_of):
    template = template_of(BROKEN[name], deadline_s=1.0)
    with pytest.raises(TemplateError) as caught:
        template.render(HELLO)
    assert caught.value.code == "TEMPLATE_ERROR" and "chat template" in caught.value.message


def test_attributes_reached_by_formatting_are_nothing(template_of):
    template = template_of("{{ '{0.__class__}{0.append}'.format(messages) }}{{ '%s' | format(messages.__class__) }}")
    assert template.render(HELLO) == ""


def test_after_an_endless_render_the_next_one_works(template_of):
    template = template_of(
        "{% if messages[0].content == 'loop' %}" + LOOPS + "{% endif %}{{ messages[0].content }}", deadline_s=0.5
    )
    assert template.render(HELLO) == "hello"
    with pytest.raises(TemplateError):
        template.render([{"role": "user", "content": "loop"}])
    assert template.render(HELLO) == "hello"


def test_nobody_queues_behind_a_template_that_overstays(template_of):
    template = template_of(LOOPS, deadline_s=1.0)
    errors: list[OctavoError] = []

    def render() -> None:
        try:
            template.render(HELLO)
        except OctavoError as error:
            errors.append(error)

    threads = [threading.Thread(target=render) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # One or, where a thread came late, a few were stopped at the limit; the others were refused without a turn.
    assert len(errors) == 8 and sum(isinstance(e, TemplateBusy) for e in errors) >= 5
    assert all(e.retry_after_s for e in errors if isinstance(e, TemplateBusy))


def test_a_helper_that_died_is_replaced(template_of):
    template = template_of(CHATML)
    text = template.render(HELLO)
    assert template._helper is not None
    os.kill(template._helper.pid, 9)
    for _ in range(2):
        try:
            assert template.render(HELLO) == text
            break
        except TemplateError:
            continue
    else:
        pytest.fail("the helper was not replaced")


def test_the_helper_sees_no_environment(template_of, monkeypatch):
    monkeypatch.setenv("OCTAVO_INTERNAL_TOKEN", "secret")
    template = template_of(CHATML)
    template.start()
    assert template._helper is not None
    assert b"secret" not in Path(f"/proc/{template._helper.pid}/environ").read_bytes()


def test_closing_ends_the_helper_and_so_does_forgetting_the_template(template_of):
    template = template_of(CHATML)
    template.start()
    helper = template._helper
    assert helper is not None and helper.is_alive
    template.close()
    assert not helper.is_alive
    forgotten = ChatTemplate(CHATML)
    forgotten.start()
    helper = forgotten._helper
    assert helper is not None
    del forgotten
    assert not helper.is_alive


def test_threads_share_a_template(template_of):
    template = template_of("{{ messages[0].content }}")
    texts = [f"text {n} " * 2000 for n in range(16)]
    got: dict[str, str] = {}
    threads = [
        threading.Thread(target=lambda t=t: got.update({t: template.render([{"role": "user", "content": t}])}))
        for t in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {t: t for t in texts}


def test_a_fault_is_told_in_one_sentence_with_a_hint(template_of):
    with pytest.raises(TemplateError) as caught:
        template_of("{{ messages.append(1) }}").render(HELLO)
    assert "append" in caught.value.message and not caught.value.message.endswith(".")
    assert "model" in caught.value.hint and "\n" not in caught.value.message
