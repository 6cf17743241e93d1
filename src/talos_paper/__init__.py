"""The paper beside the library: its published numbers, recipes that repeat its runs, and its theory as numbers.

Nothing is imported here, so that `talos_paper.published` and `talos --help` need no torch.
"""
