"""Prompts into token ids and token ids into text: bundle, template, tokenizer, detokenizer, stop strings."""
