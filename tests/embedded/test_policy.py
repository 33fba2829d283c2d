from pathlib import Path

import pytest
import torch

from estr.embedded.policy import Policy, PolicyShape, load_policy, response_logits, save_policy
from estr.embedded.tokenizer import ChatTokenizer
from estr.errors import UserError


def left_padded(rows: int, length: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, vocab, (rows, length), generator=generator)
    valid = torch.arange(length) >= torch.arange(rows)[:, None] % 4
    return tokens.masked_fill(~valid, 0), valid


def test_equals_transformers_on_a_left_padded_batch(policy: Policy, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    save_policy(policy, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens, valid = left_padded(6, 11, policy.shape.vocab_size)
    position = (valid.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = reference(input_ids=tokens, attention_mask=valid.long(), position_ids=position).logits
        ours, _ = policy(tokens, valid=valid)
    assert type(reference).__name__ == "Qwen2ForCausalLM"
    assert expected[valid].std() > 0.5
    torch.testing.assert_close(ours[valid], expected[valid], atol=1e-5, rtol=1e-5)


def test_saved_folder_round_trips(policy: Policy, tmp_path: Path) -> None:
    save_policy(policy, tmp_path)
    loaded = load_policy(tmp_path)
    assert loaded.shape == policy.shape
    for name, tensor in policy.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_token_by_token_equals_one_pass(policy: Policy) -> None:
    tokens, valid = left_padded(4, 9, policy.shape.vocab_size)
    whole, _ = policy(tokens, valid=valid)
    logits, cache = policy(tokens[:, :4], valid=valid[:, :4])
    parts = [logits]
    for t in range(4, 9):
        logits, cache = policy(tokens[:, t : t + 1], cache)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1)[valid], whole[valid], atol=1e-5, rtol=1e-5)


def test_cache_with_room_equals_the_one_that_is_copied(policy: Policy) -> None:
    prompts, valid = left_padded(3, 6, policy.shape.vocab_size)
    tokens = torch.randint(0, policy.shape.vocab_size, (6, 5), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        _, cache = policy(prompts, valid=valid)
        copied, roomy = cache.expand(2), cache.expand(2, room=5)
        for part in (tokens[:, :2], tokens[:, 2:3], tokens[:, 3:]):
            expected, copied = policy(part, copied)
            ours, roomy = policy(part, roomy)
            assert torch.equal(ours, expected)
        again, _ = policy(tokens[:, -1:], roomy.without_last())
        assert torch.equal(again[:, 0], ours[:, -1])


def test_group_shares_its_prompt_without_changing_values_or_gradients(policy: Policy) -> None:
    prompts, valid = left_padded(3, 6, policy.shape.vocab_size)
    responses = torch.randint(0, policy.shape.vocab_size, (6, 5), generator=torch.Generator().manual_seed(1))
    gradients = []
    for p, v in ((prompts, valid), (prompts.repeat_interleave(2, 0), valid.repeat_interleave(2, 0))):
        policy.zero_grad()
        logits = response_logits(policy, p, v, responses, torch.ones_like(responses, dtype=torch.bool))
        logits.log_softmax(-1).square().mean().backward()
        gradients.append((logits.detach(), [parameter.grad.clone() for parameter in policy.parameters()]))
    torch.testing.assert_close(gradients[0][0], gradients[1][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients[0][1], gradients[1][1], atol=1e-4, rtol=1e-4)


def test_response_logits_predict_the_token_at_their_own_position(policy: Policy) -> None:
    prompts, valid = left_padded(2, 6, policy.shape.vocab_size)
    responses = torch.randint(0, policy.shape.vocab_size, (2, 5), generator=torch.Generator().manual_seed(1))
    whole, _ = policy(torch.cat([prompts, responses], 1), valid=torch.cat([valid, responses >= 0], 1))
    mask = torch.tensor([[True, True, False, True, True], [False, True, True, True, False]])
    logits = response_logits(policy, prompts, valid, responses, mask)
    torch.testing.assert_close(logits, whole[:, 5:-1][mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_truncated_folder_is_one_clear_error(policy: Policy, tmp_path: Path, name: str) -> None:
    save_policy(policy, tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="not a policy that the embedded engine can read"):
        load_policy(tmp_path)


def test_tokenizer_equals_transformers(tmp_path: Path, shape: PolicyShape) -> None:
    from transformers import AutoTokenizer

    tokenizer = ChatTokenizer.from_words(["1", "2", "3", "+", "Answer:"])
    save_policy(Policy(shape), tmp_path)
    tokenizer.save(tmp_path)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "system", "content": "1"}, {"role": "user", "content": "1 + 2"}]
    text = tokenizer.render(chat)
    assert text == reference.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    turns = [{"role": "assistant", "content": " 3"}, {"role": "tool", "content": "2"}]
    assert tokenizer.render([*chat, *turns]) == reference.apply_chat_template(
        [*chat, *turns], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer.encode(text)
    assert ids == reference(text, add_special_tokens=False)["input_ids"]
    assert ids == ChatTokenizer.load(tmp_path).encode(text)
    response = [*tokenizer.encode(" 3 Answer: 3"), tokenizer.end_id]
    assert tokenizer.decode(response) == reference.decode(response, skip_special_tokens=True) == " 3 Answer: 3"
    assert (tokenizer.pad_id, tokenizer.end_id) == (reference.pad_token_id, reference.eos_token_id)


def test_unknown_word_is_refused() -> None:
    with pytest.raises(UserError, match="vocabulary lacks"):
        ChatTokenizer.from_words(["1"]).encode(" 1 banana")


def test_a_dialogue_is_encoded_as_the_template_renders_it_and_only_the_assistant_is_its_own() -> None:
    tokenizer = ChatTokenizer.from_words(["1", "2", "3", "call", "Answer:"])
    prompt = [{"role": "user", "content": "1 2"}]
    response = [
        {"role": "assistant", "content": "call 1"},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "Answer: 3"},
    ]
    ids, own = tokenizer.encode_dialogue(response)
    whole = tokenizer.encode(tokenizer.render([*prompt, *response]))
    opening = tokenizer.encode("<|im_start|> assistant")
    assert tokenizer.encode(tokenizer.render(prompt)) + ids + opening == whole
    written = tokenizer.decode([token for token, mine in zip(ids, own, strict=True) if mine])
    assert written == " call 1 Answer: 3"
    assert sum(own) == 2 + 2 + 2  # the words and the end of each turn


def test_an_unknown_word_of_a_tool_becomes_unk() -> None:
    tokenizer = ChatTokenizer.from_words(["1"])
    assert tokenizer.decode(tokenizer.tool_turn(("1 banana 1",))) == " tool 1 <unk> 1 assistant"


def test_a_tool_may_say_nothing() -> None:
    tokenizer = ChatTokenizer.from_words(["1"])
    turn = tokenizer.tool_turn(("", "1"))
    assert tokenizer.decode(turn) == " tool tool 1 assistant"
    chat = [{"role": "tool", "content": ""}, {"role": "tool", "content": "1"}]
    assert tokenizer.encode(tokenizer.render(chat)) == list(turn)
