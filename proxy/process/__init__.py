"""The process itself: signals, drain, descriptors, memory, systemd."""
