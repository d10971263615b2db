"""From logits to tokens: drawing them, and checking drafts against the draws."""
