"""Cutting a quantised model into the graphs that devices load one after another, and running them."""
