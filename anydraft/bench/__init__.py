"""What `anydraft bench` is made of: prompts, nodes as processes, arms, figures, reports.

Imports neither node: they are processes, and what a run needs of them comes over gRPC.
"""
