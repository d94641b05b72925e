from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from neve.errors import CheckpointError, RequestError
from neve.text.chat_template import MAX_RENDERED_CHARS, ChatTemplate

USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: Any = USER, tools: Any = None, **variables: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, tools, True, variables)


def test_variables():
    """A template sees messages, tools, the flag, named tokens and extra variables."""
    source = (
        "{{ bos_token }}{{ messages[0].content }}{{ tools[0].name }}"
        "{{ add_generation_prompt }}{{ enable_thinking }}{{ eos_token }}"
    )

    text = render(source, tools=[{"name": "f"}], enable_thinking=False)

    assert text == "<s>hifTrueFalse"


def test_whitespace_control():
    """Blocks leave neither their indentation nor their line end."""
    assert render("{% if true %}\n  {% set a = 1 %}\n{{ a }}\n{% endif %}\n") == "1\n"


def test_loop_controls_and_generation_blocks():
    """`break`, `continue` and the training mark `generation` are understood."""
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 3 %}{% break %}{% endif %}{% generation %}{{ i }}{% endgeneration %}"
        "{% endfor %}"
    )

    assert render(source) == "02"


def test_tojson():
    """`tojson` keeps every character, HTML's too, and takes Python's arguments."""
    value = {"b": "<é&'日>", "a": 1}

    assert render("{{ v | tojson }}", v=value) == '{"b": "<é&\'日>", "a": 1}'
    assert render("{{ v | tojson(sort_keys=true, indent=1) }}", v=value).startswith('{\n "a"')


def test_strftime_now():
    """`strftime_now` formats the present time."""
    assert render("{{ strftime_now('%Y') }}") == datetime.now().strftime("%Y")


def test_refusal():
    """What a template says by `raise_exception` reaches the caller."""
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")

    assert caught.value.code == "template_refused"
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].missing.field }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].missing | tojson }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_faults(source: str):
    """A template that cannot cope with the messages is a typed error of the request."""
    with pytest.raises(RequestError) as caught:
        render(source)

    assert caught.value.code == "template_failed"
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ 'a' * 10 ** 12 }}",
        "{{ 10 ** 12 * [1] }}",
        "{{ 2 ** (10 ** 9) }}",
        "{% for i in range(1000) %}{{ 'a' * 100000 }}{% endfor %}",
    ],
)
def test_sandbox(source: str):
    """A hostile template cannot reach Python, change its input or write without end."""
    with pytest.raises(CheckpointError, match="stopped"):
        render(source)


def test_output_within_the_bound():
    """The bound is on the whole text, and what stays below it is rendered."""
    assert len(render("{{ 'a' * n }}", n=MAX_RENDERED_CHARS)) == MAX_RENDERED_CHARS


def test_input_is_not_changed():
    """`set` in a template changes nothing outside it."""
    messages = [{"role": "user", "content": "hi"}]
    render("{% set messages = [] %}{% set ns = namespace(a=1) %}{% set ns.a = 2 %}", messages)

    assert messages == [{"role": "user", "content": "hi"}]


def test_broken_template():
    """A template that is not Jinja is a fault of the checkpoint, with the line."""
    with pytest.raises(CheckpointError, match="line 2"):
        ChatTemplate("a\n{% if %}", {})
    with pytest.raises(CheckpointError, match="no_such_filter"):
        ChatTemplate("{{ a | no_such_filter }}", {})


def test_taken_names():
    """Extra variables cannot replace the conversation."""
    with pytest.raises(RequestError, match="messages, tools") as caught:
        ChatTemplate("", {}).render(USER, None, True, {"tools": [], "messages": []})

    assert caught.value.param == "template_kwargs"
