"""Whether a backend can serve: probes, and a pure state machine that they feed."""
