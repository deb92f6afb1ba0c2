"""Comparing methods: which there are, what their runs left behind, and what can be said of it."""
