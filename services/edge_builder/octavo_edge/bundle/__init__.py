"""What a bundle has besides compiled graphs: the chat's frame, the embedding's table, and the metadata of all."""
