"""A target that takes a set time a step, uses no core, and repeats what a real one has said.

Everything around it is the verify node as it is: scheduler, acceptance, alignment, services.
"""
