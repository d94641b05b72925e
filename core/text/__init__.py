"""From text and messages to token ids, and back."""
