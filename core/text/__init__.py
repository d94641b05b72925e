"""Conversion of text and messages to token ids, and of token ids to text."""
