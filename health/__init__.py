"""Whether a backend can serve: probes outside, a pure state machine inside."""
