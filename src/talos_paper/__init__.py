"""The paper beside the library: its published numbers, how to run its rows again, and its theory as data.

Nothing is imported here: `talos_paper.published` needs no torch, and a command that only prints a published
table stays fast.
"""
