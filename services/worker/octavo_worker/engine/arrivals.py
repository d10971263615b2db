"""Which requests can run here, and the sequences that they begin as. Pure checks: changes nothing."""

from __future__ import annotations

from octavo_worker.engine.beams import BeamSearch
from octavo_worker.engine.blocks import BlockPool
from octavo_worker.engine.sequence import BeamGroup, Rank, Sequence, Story
from octavo_worker.engine.types import AdmissionError, Limits, Request, SeqId


def check_request(request: Request, limits: Limits, pool: BlockPool, *, lookahead: int) -> None:
    """Raise AdmissionError when the request can never run."""
    num_tokens, num_rows = len(request.prompt), max_rows(request)
    limit = max_tokens_of(request, limits, pool, lookahead=lookahead)
    if num_rows > limits.max_sequences:
        message = f"{num_rows} choices are wanted, and a step has at most {limits.max_sequences} sequences"
        raise AdmissionError(message, code="TOO_MANY_CHOICES", num_tokens=num_rows, limit=limits.max_sequences)
    if num_tokens >= limit:
        message = f"the prompt has {num_tokens} tokens, and a sequence has at most {limit}"
        if request.beam is not None and num_tokens < limits.max_sequence_tokens:
            message = f"{num_rows} beams of {num_tokens} tokens do not fit into the memory of keys and values"
        raise AdmissionError(message, code="PROMPT_TOO_LONG", num_tokens=num_tokens, limit=limit)
    if num_rows > 1 and request.output:
        raise AdmissionError("several choices cannot take up earlier output", code="OUTPUT_OF_MANY")


def max_rows(request: Request) -> int:
    """Most rows of a step that the request takes at once."""
    return request.num_choices if request.beam is None else request.beam.width


def max_tokens_of(request: Request, limits: Limits, pool: BlockPool, *, lookahead: int) -> int:
    """Longest sequence, prompt included. Choices can take turns; beams need the tails of all of them at once."""
    if request.beam is None:
        return limits.max_sequence_tokens
    num_shared = len(request.prompt) // pool.block_size
    num_blocks = num_shared + (pool.num_blocks - num_shared) // request.beam.width
    return min(limits.max_sequence_tokens, num_blocks * pool.block_size - lookahead)


def make_sequence(request: Request, *, rank: Rank, root: bytes, max_sequence_tokens: int) -> Sequence:
    """The sequence that computes the prompt: the first choice, or the first beam."""
    seq = Sequence(
        request=request,
        id=SeqId(request.id, 0),
        rank=rank,
        root=root,
        tokens=[*request.prompt, *request.output],
        story=Story(),
        draws=tuple(range(request.num_choices)) if request.beam is None else (0,),
    )
    if request.beam is not None:
        params = request.params
        search = BeamSearch(
            request.beam,
            max_tokens=min(params.max_tokens, max_sequence_tokens - len(request.prompt)),
            stop_token_ids=params.stop_token_ids,
            num_logprobs=params.num_logprobs or 0,
        )
        seq.group = BeamGroup(search=search, width=request.beam.width, members=[seq])
    return seq
