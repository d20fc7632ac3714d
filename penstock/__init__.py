"""The one name that the wheel claims: its packages are `penstock.proxy`, `penstock.balancing`, ….

In a checkout they are links to the folders beside this one.
"""
