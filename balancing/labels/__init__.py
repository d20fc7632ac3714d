"""The labels that a classifier gives requests. Pure: time is an argument."""
