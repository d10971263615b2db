"""What tool-chains need alike: their options, graphs in the form that they take, and the check of what they made."""
