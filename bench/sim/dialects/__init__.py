"""The wire formats of vLLM's APIs, streamed and whole: one file each."""
