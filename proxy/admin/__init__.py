"""The admin port: the fleet, dry runs of a choice, reload, metrics."""
