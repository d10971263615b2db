"""Whatever a random model prefers, what comes out parses: checked by json, jsonschema and re, over the decoded text."""

from __future__ import annotations

import gc
import json
import re

import jsonschema
import numpy as np
import pytest
import torch
from checkpoints import train_bpe

from octavo_common.errors import FailedPrecondition, InvalidArgument
from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.engine.plan import Draft
from octavo_worker.engine.types import RuleFault, SamplingParams
from octavo_worker.verify.base import WantedRow
from octavo_worker.verify.context import TokenContext
from octavo_worker.verify.coupled import Coupled
from octavo_worker.verify.grammars import MAX_CHARS, GrammarStore, InvalidGrammar

# Ten ids more than the tokenizer has, as models round their vocabularies up.
VOCAB, EOS = 330, 0
PROMPT = [5, 6, 7]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "größe": {"type": "integer", "minimum": -5, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["leaf", "東京", 'a"b']}, "maxItems": 3},
        "more": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "größe", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def bundle():
    return TokenizerBundle(tokenizer_json=train_bpe().to_str(), eos_token="<|end|>", eos_ids=(EOS,))


@pytest.fixture(scope="module")
def tokenizer(bundle):
    return Tokenizer(bundle)


@pytest.fixture(scope="module")
def store(bundle):
    return GrammarStore(bundle, vocab_size=VOCAB, eos_ids=bundle.eos_ids)


def random_logits(seed, position):
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1000 * seed + position)) * 2
    logits[0, EOS] += 1.0
    return logits


def generate(store, key, seed, *, num_tokens=400, told_again=(), **values):
    """Tokens up to the stop token; at some positions the state is rebuilt from the tokens, as after a preemption."""
    params = SamplingParams(
        max_tokens=num_tokens, temperature=0.8, seed=seed, grammar=key, **{"stop_token_ids": frozenset({EOS})} | values
    )
    tokens, context = list(PROMPT), None
    for position in range(len(PROMPT), len(PROMPT) + num_tokens):
        if context is None or position in told_again:
            context = TokenContext(params, num_prompt_tokens=len(PROMPT), matcher=store.get(key))
            context.know(0, tokens[:-1])
        context.know(position - 1, tokens[-1:])
        row = WantedRow(choices=(0,), position=position, params=params, context=context)
        verdict = Coupled().verify([row], random_logits(seed, position))[0]
        assert verdict.error is None, verdict.error
        tokens += verdict.tokens
        if tokens[-1] in params.stop_token_ids:
            return tokens[len(PROMPT) : -1]
    return None


def texts(store, tokenizer, key, seeds=range(25), **values):
    """Texts of the outputs that came to their end."""
    outputs = [generate(store, key, seed, **values) for seed in seeds]
    found = [tokenizer.decode(output) for output in outputs if output is not None]
    assert len(found) > len(outputs) * 0.5
    assert len(set(found)) > 1
    return found


def test_objects_of_a_schema_are_valid(store, tokenizer):
    for text in texts(store, tokenizer, store.compile("json_schema", json.dumps(SCHEMA))):
        jsonschema.validate(json.loads(text), SCHEMA)


def test_any_object_parses(store, tokenizer):
    for text in texts(store, tokenizer, store.compile("json_object"), range(15)):
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    "regex", [r"[a-f]{2,6}-\d{1,3}", r"(Größe|façade) ?[東京🙂]{1,3}", r"-?(0|[1-9][0-9]{0,5})(\.[0-9]{1,3})?"]
)
def test_texts_match_their_regex_whole(store, tokenizer, regex):
    for text in texts(store, tokenizer, store.compile("regex", regex)):
        assert re.fullmatch(regex, text)


def test_only_choices_come_out_and_all_of_them(store, tokenizer):
    choices = ["yes", "yes, but", "no", "東京", 'say "x"\n', "🙂"]
    found = texts(store, tokenizer, store.compile("choice", json.dumps(choices)), range(80))
    assert set(found) <= set(choices)
    assert len(set(found)) >= 4


@pytest.mark.parametrize(
    "grammar",
    ['root ::= "(" root ")" | num\nnum ::= [0-9] [0-9]?', 'start: "(" start ")" | NUM\nNUM: /[0-9][0-9]?/'],
    ids=["gbnf", "lark"],
)
def test_brackets_of_a_grammar_are_balanced(store, tokenizer, grammar):
    for text in texts(store, tokenizer, store.compile("ebnf", grammar)):
        number = text.strip("()")
        depth = text.count("(")
        assert text == "(" * depth + number + ")" * depth
        assert 1 <= len(number) <= 2
        assert number.isdigit()


def test_a_state_that_is_rebuilt_from_the_tokens_changes_nothing(store):
    key = store.compile("json_schema", json.dumps(SCHEMA))
    for seed in range(6):
        plain = generate(store, key, seed)
        assert plain is not None
        assert generate(store, key, seed, told_again=range(4, 400, 3)) == plain


def test_a_stop_token_ends_only_what_is_complete_even_if_the_grammar_knows_its_text(store, tokenizer):
    comma = tokenizer.encode(",", add_special=False)[0]
    key = store.compile("regex", r"[a-z]{3}(,[a-z]{3})?")
    for text in texts(store, tokenizer, key, stop_token_ids=frozenset({comma})):
        assert re.fullmatch(r"[a-z]{3}", text)


def test_without_a_stop_token_a_complete_output_is_an_error_that_names_the_grammar(store):
    params = SamplingParams(max_tokens=9, grammar=store.compile("choice", '["a"]'))
    context = TokenContext(params, num_prompt_tokens=1, matcher=store.get(params.grammar))
    context.know(0, [5, tokenizer_id(store, "a")])
    row = WantedRow(choices=(0,), position=2, params=params, context=context)
    error = Coupled().verify([row], random_logits(0, 0))[0].error
    assert error == "no token may follow: the grammar leaves none"
    assert isinstance(error, RuleFault) and error.code == "NO_TOKEN_ALLOWED"


def tokenizer_id(store, text):
    return Tokenizer(store._bundle).encode(text, add_special=False)[0]


def test_drafts_that_break_the_grammar_are_never_accepted_and_leave_no_trace(store, tokenizer):
    key = store.compile("regex", r"[a-f]{4}")
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=3, grammar=key, stop_token_ids=frozenset({EOS}))
    good, bad = tokenizer.encode("a", add_special=False)[0], tokenizer.encode("z", add_special=False)[0]
    draft = Draft(tokens=(bad, good, bad, good), parents=(-1, -1, 1, 1))
    logits = torch.cat([random_logits(9, i) for i in range(5)])
    # The draft's good tokens are what is drawn.
    logits[0, good] = logits[2, good] = 50.0
    context = TokenContext(params, num_prompt_tokens=3, matcher=store.get(key))
    context.know(0, PROMPT)
    row = WantedRow(choices=(0,), position=3, params=params, draft=draft, context=context)
    verdict = Coupled().verify([row], logits.clone())[0]
    assert verdict.accepted == (1, 3)
    assert re.fullmatch("[a-f]{3,4}", tokenizer.decode(verdict.tokens))
    again = Coupled().verify([row], logits.clone())[0]
    assert again == verdict


def test_an_output_that_breaks_the_grammar_is_refused(store, tokenizer):
    params = SamplingParams(max_tokens=9, grammar=store.compile("regex", "[0-9]+"))
    context = TokenContext(params, num_prompt_tokens=1, matcher=store.get(params.grammar))
    with pytest.raises(Exception, match="does not follow the grammar"):
        context.know(0, [5, *tokenizer.encode("x", add_special=False)])


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("regex", "([", r"unclosed character class, at character 2: \["),
        ("regex", "(?=a)b", "look-around.* is not supported, at character 1"),
        ("regex", r"a\bc", r"word borders \(\\b\)"),
        ("regex", "(" * 20_000 + "a" + ")" * 20_000, "nest"),
        ("regex", r"[^\s\S]", "no output follows it"),
        ("json_schema", '{"type": "foo"}', "the type 'foo' at #"),
        ("json_schema", "[1, 2", "EOF|[Ee]xpect"),
        ("json_schema", '{"$ref": "http://localhost/x"}', "localhost"),
        ("json_schema", '{"properties": {"a": {"$ref": "#/$defs/x"}}}', r"\$ref at #/properties/a: .* no /\$defs/x"),
        ("json_schema", '{"properties": {"not": {"items": {"not": {}}}}}', "not at #/properties/not/items: "),
        ("json_schema", '{"$defs": {"a/b": {"uniqueItems": true}}, "$ref": "#/$defs/a~1b"}', r"at #/\$defs/a~1b: "),
        ("json_schema", '{"properties": {"when": {"format": "moon"}}}', "format 'moon' at #/properties/when"),
        ("json_schema", '{"items": {"pattern": "a(?!b)"}}', "pattern at #/items: look-around.* at character 2"),
        ("json_schema", '{"$ref": "#"}', "no output follows it"),
        ("json_schema", "false", "no JSON value follows it"),
        ("json_schema", '{"a":' * 5000 + "1" + "}" * 5000, "recursion"),
        ("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}', "no JSON value follows it"),
        ("choice", "[]", "list"),
        ("choice", '["a", 3]', "list"),
        ("choice", "no", "Expecting"),
        ("ebnf", "start: nothing", "unknown name"),
        ("ebnf", "root ::= (", r"Expected '\)' at line 1"),
        ("ebnf", 'start: "a" B\nB: /b(/', r"line 2, column 4: the regular expression /b\(/: unclosed group"),
        ("ebnf", 'start: %json {"oneOf": [{"type": "number"}, {"type": "integer"}]}', "one schema of a oneOf"),
        ("ebnf", 'start: start "a"', "no output follows it"),
        ("regex", "a" * (MAX_CHARS + 1), "characters"),
        ("regex", "\ud800", "surrogates"),
        ("poem", "x", "no such kind"),
    ],
)
def test_a_bad_grammar_is_the_callers_error_with_a_hint(store, kind, text, says):
    with pytest.raises(InvalidGrammar, match=says) as caught:
        store.compile(kind, text)
    assert isinstance(caught.value, InvalidArgument)
    assert caught.value.code == "INVALID_GRAMMAR"
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("kind", ["json_schema", "json_object", "regex", "ebnf"])
def test_no_error_names_what_only_the_library_knows(store, kind):
    bad = [
        '{"oneOf": [{"type": "number"}, {"type": "integer"}]}',
        '{"not": {}}',
        "[^\\s\\S]",
        "start: start",
        "(",
        '{"if": {}}',
    ]
    for text in bad:
        try:
            store.compile(kind, text)
        except InvalidGrammar as error:
            assert not re.search(r"NoExtension|Enable|Unimplemented|llguidance|GBNF to Lark|octavo \d", str(error))


def test_a_one_of_is_enforced_where_its_schemas_exclude_each_other(store, tokenizer):
    def kind_of(name, inner):
        named = {"kind": {"const": name}, "value": inner}
        return {"type": "object", "properties": named, "required": ["kind", "value"], "additionalProperties": False}

    schema = {"oneOf": [kind_of("flag", {"type": "boolean"}), kind_of("small", {"type": "integer", "maximum": 9})]}
    for text in texts(store, tokenizer, store.compile("json_schema", json.dumps(schema))):
        jsonschema.validate(json.loads(text), schema)


def test_a_one_of_whose_schemas_overlap_is_refused_by_its_place_and_taken_as_any_of_when_asked(store, tokenizer):
    overlapping = [{"type": "number", "maximum": 999}, {"type": "integer", "minimum": 0, "maximum": 99}]
    schema = {
        "type": "object",
        "properties": {"fine": {"oneOf": [{"type": "null"}, {"type": "boolean"}]}, "not fine": {"oneOf": overlapping}},
        "required": ["fine", "not fine"],
        "additionalProperties": False,
    }
    with pytest.raises(InvalidGrammar, match="oneOf at #/properties/not fine: ") as caught:
        store.compile("json_schema", json.dumps(schema))
    assert "coerce_one_of" in caught.value.hint
    key = store.compile("json_schema", json.dumps(schema | {"x-guidance": {"coerce_one_of": True}}))
    as_any_of = schema | {"properties": schema["properties"] | {"not fine": {"anyOf": overlapping}}}
    for text in texts(store, tokenizer, key):
        jsonschema.validate(json.loads(text), as_any_of)


BLANK = re.compile(r"[ \t\r\n]")
FLAT = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 4}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def outside_strings(text):
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)


def test_json_has_one_space_behind_commas_and_colons_and_no_other(store, tokenizer):
    for kind, text in (("json_schema", json.dumps(SCHEMA)), ("json_object", "")):
        for output in texts(store, tokenizer, store.compile(kind, text), range(15)):
            assert not BLANK.search(re.sub("([,:]) ", r"\1", outside_strings(output)))


def test_python_writes_json_that_every_schema_grammar_takes(store, tokenizer):
    value = {"a": True, "b": [1, 2, 1]}
    for text in (json.dumps(value), json.dumps(value, separators=(",", ":"))):
        matcher = store.get(store.compile("json_schema", json.dumps(FLAT)))
        assert all(matcher.accept(token) for token in tokenizer.encode(text, add_special=False))
        assert matcher.is_complete


def test_a_model_that_wants_nothing_but_white_space_still_ends_its_json(store, tokenizer):
    blank = [token for token in range(2, 320) if not tokenizer.token_bytes(token).strip()]
    assert len(blank) > 3
    key = store.compile("json_schema", json.dumps(FLAT))
    output = generate(store, key, 1, num_tokens=60, logit_bias=tuple((token, 100.0) for token in blank))
    assert output is not None
    jsonschema.validate(json.loads(tokenizer.decode(output)), FLAT)


def test_the_caller_may_ask_for_other_white_space_in_the_schema(store, tokenizer):
    spaced = json.dumps({"a": False, "b": [2]}, indent=2)
    compact = json.dumps({"a": False, "b": [2]}, separators=(",", ":"))
    for options, accepted in (
        ({"whitespace_flexible": True}, (spaced, compact)),
        ({"whitespace_pattern": ""}, (compact,)),
    ):
        for text in (spaced, compact):
            matcher = store.get(store.compile("json_schema", json.dumps(FLAT | {"x-guidance": options})))
            taken = all(matcher.accept(token) for token in tokenizer.encode(text, add_special=False))
            assert (taken and matcher.is_complete) == (text in accepted)


def test_a_grammar_without_an_end_holds_nobody_up(store):
    matcher = store.get(store.compile("ebnf", "start: A+ B\nA: /a+/\nB: /a+/"))
    assert matcher.mask().any()


def test_a_grammar_is_kept_while_somebody_holds_its_key(bundle):
    store = GrammarStore(bundle, vocab_size=VOCAB, eos_ids=bundle.eos_ids)
    held = store.compile("choice", '["held"]')
    assert store.compile("choice", '["held"]') is held
    passing = str(store.compile("choice", '["passing"]'))
    for number in range(70):
        store.compile("choice", json.dumps([f"other {number}"]))
    gc.collect()
    assert store.get(str(held)).mask().any()
    with pytest.raises(KeyError):
        store.get(passing)


def test_ids_that_the_tokenizer_does_not_have_are_never_allowed(store, tokenizer):
    bits = np.unpackbits(store.get(store.compile("regex", "(?s:.*)")).mask(), bitorder="little")
    letters = [token for token in range(2, 320) if tokenizer.token_bytes(token).isascii()]
    assert len(letters) > 100
    assert bits[letters].all()
    assert not bits[320:].any()
    assert not bits[:2].any()


def test_a_model_without_an_end_of_sequence_token_cannot_be_constrained(bundle):
    with pytest.raises(FailedPrecondition, match="end-of-sequence"):
        GrammarStore(bundle, vocab_size=VOCAB, eos_ids=()).compile("json_object")
