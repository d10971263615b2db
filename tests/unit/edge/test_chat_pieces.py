"""Chat templates as pieces: what the device writes is what the template renders, or there is no chat."""

from __future__ import annotations

import json

import pytest

from octavo_common.text.template import ChatTemplate
from octavo_device.errors import DeviceError
from octavo_device.text import Turn, read_chat
from octavo_edge.bundle.chat import chat_document, reduce_template

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMING = (
    "{{ bos_token }}{% for message in messages %}{{ '[' + message['role'] + ']' }}{{ message['content'] | trim }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
NO_SYSTEM = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ '<' + message['role'] + '>' + message['content'] }}{% endfor %}<assistant>"
)
ONE_QUESTION = (
    "{% if messages | length > 2 %}{{ raise_exception('one') }}{% endif %}Q: {{ messages[-1]['content'] }}\nA:"
)
COUNTING = "{% for message in messages %}{{ loop.index ~ message['content'] }}{% endfor %} of {{ messages | length }}:"
UPPER = "{% for message in messages %}{{ message['content'] | upper }}{% endfor %}"
BROKEN = "{{ messages[7]['content'] }}"


@pytest.fixture
def renderer():
    made = []

    def make(source):
        made.append(ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}))
        return made[-1].render

    yield make
    for template in made:
        template.close()


def messages(turns, system=None):
    found = [] if system is None else [{"role": "system", "content": system}]
    for turn in turns:
        found.append({"role": "user", "content": turn.user})
        if turn.answer is not None:
            found.append({"role": "assistant", "content": turn.answer})
    return found


TURNS = [Turn(user=" Why?\n", answer="Since it is so. "), Turn(user="Übel"), Turn(user="<|im_end|>")]


@pytest.mark.parametrize("template", [CHATML, TRIMMING, NO_SYSTEM])
def test_pieces_are_the_template(renderer, template, tmp_path):
    render = renderer(template)
    found = reduce_template(render)
    assert found.pieces is not None
    (tmp_path / "chat.json").write_text(json.dumps(chat_document(found.pieces)))
    chat = read_chat(tmp_path)
    assert chat == found.pieces
    for system in (None, "Be kind."):
        for asked in ([TURNS[2]], TURNS[:2]):
            if system is not None and template is NO_SYSTEM:
                with pytest.raises(DeviceError, match="no system text"):
                    chat.render(asked, system)
                continue
            assert chat.render(asked, system) == render(messages(asked, system))
    assert bool(found.warning) == (template is NO_SYSTEM)


def test_a_template_for_one_question(renderer):
    found = reduce_template(renderer(ONE_QUESTION))
    assert found.pieces is not None and "no second question" in found.warning
    assert found.pieces.render([Turn(user="why")]) == "Q: why\nA:"
    with pytest.raises(DeviceError, match="one question"):
        found.pieces.render([Turn(user="a", answer="b"), Turn(user="c")])


@pytest.mark.parametrize("template", [COUNTING, UPPER, BROKEN])
def test_what_is_no_frame_gives_none_and_says_so(renderer, template):
    found = reduce_template(renderer(template))
    assert found.pieces is None
    assert found.warning.startswith("the chat template")
